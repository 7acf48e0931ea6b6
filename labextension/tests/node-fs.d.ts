/** What the tests use of Node, whose types aren't installed. */
declare module 'node:fs' {
  export function readFileSync(path: URL, encoding: 'utf8'): string;
}
