/** What a page shows of a file: an image, a table, text, or nothing (pure functions). */

import type { TranslationBundle } from '@jupyterlab/translation';

/** The most bytes requested; an image is shown whole or not at all. */
export const IMAGE_BYTES = 8 << 20; // same as `frontends/server/routes/logs.MOST_SHOWN`
export const TEXT_BYTES = 1 << 20;
const MOST_ROWS = 1000;
const MOST_COLUMNS = 200;
const MOST_CELLS = 20_000; // each is an element of the page

const IMAGES: Readonly<Record<string, string>> = {
  bmp: 'image/bmp',
  gif: 'image/gif',
  jpeg: 'image/jpeg',
  jpg: 'image/jpeg',
  png: 'image/png',
  svg: 'image/svg+xml',
  webp: 'image/webp'
};
const SEPARATED: Readonly<Record<string, string>> = { csv: ',', tsv: '\t' };

export type Shown =
  | { readonly kind: 'image'; readonly type: string }
  | {
      readonly kind: 'table';
      readonly rows: readonly (readonly string[])[];
      readonly whole: boolean;
    }
  | { readonly kind: 'text'; readonly text: string; readonly whole: boolean }
  | { readonly kind: 'none' };

function ending(path: string): string {
  return /\.([^./]+)$/.exec(path)?.[1]?.toLowerCase() ?? '';
}

/** The most bytes needed to show a file; 0: it is an image that is too big to show. */
export function bytesFor(path: string, size: number): number {
  if (ending(path) in IMAGES) {
    return size <= IMAGE_BYTES ? IMAGE_BYTES : 0;
  }
  return TEXT_BYTES;
}

/** What to show of a file of this size, given its first bytes. */
export function shownOf(path: string, bytes: Uint8Array, size: number): Shown {
  const type = IMAGES[ending(path)];
  if (type !== undefined) {
    return size <= IMAGE_BYTES ? { kind: 'image', type } : { kind: 'none' };
  }
  const whole = bytes.length >= size;
  const text = decoded(bytes, whole);
  if (text === null) {
    return { kind: 'none' };
  }
  const separator = SEPARATED[ending(path)];
  if (separator === undefined) {
    return { kind: 'text', text, whole };
  }
  const rows = rowsIn(whole ? text : text.slice(0, text.lastIndexOf('\n') + 1), separator);
  const columns = Math.min(MOST_COLUMNS, Math.max(0, ...rows.map(row => row.length)));
  const most = 1 + Math.min(MOST_ROWS, Math.floor(MOST_CELLS / Math.max(1, columns)));
  return {
    kind: 'table',
    rows: rows.slice(0, most).map(row => row.slice(0, columns)),
    whole: whole && rows.length <= most && rows.every(row => row.length <= columns)
  };
}

/** Bytes as UTF-8, which may end within a character; null: they aren't text. */
function decoded(bytes: Uint8Array, whole: boolean): string | null {
  if (bytes.includes(0)) {
    return null;
  }
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes, { stream: !whole });
  } catch {
    return null;
  }
}

/** The fields of each line, as RFC 4180 defines them. */
export function rowsIn(text: string, separator: string): string[][] {
  const rows: string[][] = [];
  let row: string[] = [];
  let field = '';
  let quoted = false;
  const endRow = () => {
    row.push(field);
    if (row.length > 1 || field !== '') {
      rows.push(row);
    }
    [row, field] = [[], ''];
  };
  for (let at = 0; at < text.length && rows.length <= MOST_ROWS + 1; at++) {
    const letter = text[at] ?? '';
    if (quoted) {
      if (letter !== '"') {
        field += letter;
      } else if (text[at + 1] === '"') {
        field += letter;
        at++;
      } else {
        quoted = false;
      }
    } else if (letter === '"' && field === '') {
      quoted = true;
    } else if (letter === separator) {
      row.push(field);
      field = '';
    } else if (letter === '\n') {
      endRow();
    } else if (letter !== '\r') {
      field += letter;
    }
  }
  endRow();
  return rows;
}

/** A size as cards show it: "12 B", "3.4 kB", "1.2 MB". */
export function sizeOf(bytes: number, trans: TranslationBundle): string {
  const units = ['kB', 'MB', 'GB', 'TB'];
  if (bytes < 1000) {
    return trans.__('%1 B', bytes);
  }
  const step = Math.min(Math.floor(Math.log10(bytes) / 3), units.length);
  const value = bytes / 1000 ** step;
  return `${value < 100 ? value.toFixed(1) : Math.round(value)} ${units[step - 1] ?? ''}`;
}
