/** What the tests use of Node, whose types aren't installed. */
declare module 'node:fs' {
  export function readFileSync(path: URL | string, encoding: 'utf8'): string;
  export function readdirSync(path: string): string[];
}
