// @vitest-environment jsdom
// The diagrams of the documentation are Mermaid's, which draws nothing of one that it can't parse.
import { readdirSync, readFileSync } from 'node:fs';
import mermaid from 'mermaid';
import { expect, test } from 'vitest';

const docs = '../docs';
const blocks = readdirSync(docs)
  .filter(page => page.endsWith('.md'))
  .flatMap(page => {
    const text = readFileSync(`${docs}/${page}`, 'utf8');
    return [...text.matchAll(/^```mermaid\n(.*?)^```$/gms)].map(([, diagram = ''], at) => ({
      page,
      at,
      diagram
    }));
  });

test.each(blocks)('$page: diagram $at can be drawn', async ({ diagram }) => {
  await expect(mermaid.parse(diagram)).resolves.toBeTruthy();
});
