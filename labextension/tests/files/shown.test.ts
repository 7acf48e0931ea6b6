import { describe, expect, it } from 'vitest';

import { IMAGE_BYTES, TEXT_BYTES, bytesFor, rowsIn, shownOf, sizeOf } from '../../src/files/shown';

import { english } from '../jobs';

const bytes = (text: string) => new TextEncoder().encode(text);
const shown = (path: string, text: string, size = bytes(text).length) =>
  shownOf(path, bytes(text), size);

describe('what is shown of a file', () => {
  it('is text where it is UTF-8, also when cut within a character', () => {
    expect(shown('artifacts/log', 'é\n')).toEqual({ kind: 'text', text: 'é\n', whole: true });
    const cut = bytes('aé').slice(0, 2);
    expect(shownOf('artifacts/log', cut, 3)).toEqual({ kind: 'text', text: 'a', whole: false });
    expect(shownOf('artifacts/log', cut, 2)).toEqual({ kind: 'none' }); // it is no more than that
    expect(shown('artifacts/page.html', '<b>')).toEqual({ kind: 'text', text: '<b>', whole: true });
  });

  it('is nothing where it is neither text nor an image', () => {
    expect(shown('checkpoints/last.pt', 'PK\0')).toEqual({ kind: 'none' });
    expect(shownOf('x', new Uint8Array([255, 254]), 2)).toEqual({ kind: 'none' });
  });

  it('is an image by its name, unless that is too big', () => {
    expect(shown('artifacts/Loss.PNG', 'x')).toEqual({ kind: 'image', type: 'image/png' });
    expect(shown('artifacts/loss.svg', 'x', IMAGE_BYTES + 1)).toEqual({ kind: 'none' });
    expect(bytesFor('a.png', 10)).toBe(IMAGE_BYTES);
    expect(bytesFor('a.png', IMAGE_BYTES + 1)).toBe(0);
    expect(bytesFor('a.txt', 1e12)).toBe(TEXT_BYTES);
  });

  it('is a table where fields are separated, without a line that is cut off', () => {
    expect(shown('a.csv', 'x,y\n1,"a ""b"",\nc"\r\n\n2,')).toEqual({
      kind: 'table',
      rows: [
        ['x', 'y'],
        ['1', 'a "b",\nc'],
        ['2', '']
      ],
      whole: true
    });
    expect(shown('a.tsv', 'x\ty\n1\t2\n3', 100)).toMatchObject({
      rows: [
        ['x', 'y'],
        ['1', '2']
      ],
      whole: false
    });
    const long = shown('a.csv', 'n\n'.repeat(5000));
    expect(long.kind === 'table' && [long.rows.length, long.whole]).toEqual([1001, false]);
    expect(rowsIn('', ',')).toEqual([]);
  });

  it('is no more of a wide table than a page draws at once', () => {
    const wide = shown('a.csv', `${'0,'.repeat(784)}1\n`.repeat(500));
    expect(wide.kind === 'table' && [wide.rows.length, wide.rows[0]?.length, wide.whole]).toEqual([
      101,
      200,
      false
    ]);
  });

  it('has its size in words', () => {
    expect([0, 999, 1000, 123_456, 5_120_000, 7.5e12].map(size => sizeOf(size, english))).toEqual([
      '0 B',
      '999 B',
      '1.0 kB',
      '123 kB',
      '5.1 MB',
      '7.5 TB'
    ]);
  });
});
