import tseslint from 'typescript-eslint';

/** Let imports point one way: each of these folders uses only those before it. */
function layers(folder, names) {
  return names.slice(0, -1).map((name, at) => ({
    files: [`${folder}/${name}/**`],
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
      // `onClick={() => show()}` is clear.
      '@typescript-eslint/no-confusing-void-expression': ['error', { ignoreArrowShorthand: true }],
      // Messages contain many numbers, which need no conversion.
      '@typescript-eslint/restrict-template-expressions': ['error', { allowNumber: true }],
      // Props and options are destructured, and their functions use no `this`.
      '@typescript-eslint/unbound-method': 'off'
    }
  },
  ...layers('src', ['model', 'commands', 'logs', ...AFTER_LOGS]),
  ...layers('src/logs', ['text', 'lines', 'view', 'controls', ...AFTER_LOGS]),
  {
    // A fake may be loosely typed; the code under test isn't.
    files: ['tests/**'],
    ...tseslint.configs.disableTypeChecked,
    rules: {
      ...tseslint.configs.disableTypeChecked.rules,
      '@typescript-eslint/no-non-null-assertion': 'off'
    }
  }
);
