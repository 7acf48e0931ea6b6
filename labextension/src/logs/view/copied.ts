import { levelOf, type Rows, textOf } from '../lines/rows';
import { plain } from '../text/ansi';
import { Level } from '../text/levels';

import { stamp } from './times';

/** A range of rows, from the first to the last. */
export interface Picked {
  readonly rows: Rows;
  readonly from: number;
  readonly to: number;
}

/** The lines as text, each with its time and its rank, as `nbtorchjob logs` prints them. */
export function copied({ rows, from, to }: Picked): string[] {
  const lines: string[] = [];
  for (let index = from; index <= to; index++) {
    const row = rows.at(index);
    if (levelOf(row) !== Level.mark) {
      const at = row.log.time(row.line);
      const head = `${at ? `${stamp(at)} ` : ''}[rank${row.log.rank}]: `;
      lines.push(head + plain(textOf(row) ?? ''));
    }
  }
  return lines;
}
