import tseslint from 'typescript-eslint';

/** Imports point one way: each of these rooms uses only those before it. */
function rooms(folder, names) {
  return names.slice(0, -1).map((room, at) => ({
    files: [`${folder}/${room}/**`],
    rules: {
      'no-restricted-imports': [
        'error',
        { patterns: [{ regex: `^(\\.\\./)+(${names.slice(at + 1).join('|')})(/|$)` }] }
      ]
    }
  }));
}

const AFTER_LOGS = ['notebook', 'sidebar', 'shell', 'plugins'];

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
  ...rooms('src', ['model', 'commands', 'logs', ...AFTER_LOGS]),
  ...rooms('src/logs', ['text', 'lines', 'view', 'controls', ...AFTER_LOGS]),
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
