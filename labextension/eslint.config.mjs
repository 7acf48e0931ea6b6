import tseslint from 'typescript-eslint';

export default tseslint.config(
  ...tseslint.configs.strictTypeChecked,
  {
    languageOptions: {
      parserOptions: { project: './tests/tsconfig.json', tsconfigRootDir: import.meta.dirname }
    },
    rules: {
      // `onClick={() => show()}` reads as what it does.
      '@typescript-eslint/no-confusing-void-expression': ['error', { ignoreArrowShorthand: true }],
      // Numbers stand in messages everywhere, and read as what they are.
      '@typescript-eslint/restrict-template-expressions': ['error', { allowNumber: true }],
      // Props and options are taken apart: theirs are functions without a `this`.
      '@typescript-eslint/unbound-method': 'off'
    }
  },
  {
    // A fake is as loosely typed as it may be; what it is given to isn't.
    files: ['tests/**'],
    ...tseslint.configs.disableTypeChecked,
    rules: {
      ...tseslint.configs.disableTypeChecked.rules,
      '@typescript-eslint/no-non-null-assertion': 'off'
    }
  }
);
