import { plain } from '../text/ansi';
import { Level } from '../text/levels';

import { Packed } from './packed';
import { levelOf, type Row, type Rows, textOf, Turned } from './rows';

/** A text to search for, and how it matches. */
export interface Query {
  readonly text: string;
  readonly regex: boolean;
  readonly matchCase: boolean;
}

/**
 * The query as a regular expression; null if it is empty.
 *
 * @throws SyntaxError if it isn't a valid one.
 */
export function pattern({ text, regex, matchCase }: Query): RegExp | null {
  const source = regex ? text : text.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&');
  return text ? new RegExp(source, matchCase ? '' : 'i') : null;
}

/** Whether to keep a row, which is at `index` in `rows`. */
export type Accept = (row: Row, index: number, rows: Rows) => boolean;

/** Accepts rows whose text matches, but never marks. */
export function matching(regexp: RegExp): Accept {
  return row => levelOf(row) !== Level.mark && regexp.test(plain(textOf(row) ?? ''));
}

/** Where the text matches: at most `most` pairs of start and end. */
export function ranges(regexp: RegExp, text: string, most = 1000): [number, number][] {
  const pairs: [number, number][] = [];
  for (const match of text.matchAll(new RegExp(regexp.source, `${regexp.flags}g`))) {
    if (match[0]) {
      pairs.push([match.index, match.index + match[0].length]);
    }
    if (pairs.length === most) {
      break;
    }
  }
  return pairs;
}

const SLICE = 256;

/** The accepted rows, found slice by slice; the scan continues when more rows have come. */
export class Scan implements Rows {
  protected readonly indices = new Packed(4);
  readonly turned = new Turned();
  protected next = 0;
  private seen: number;

  constructor(
    protected readonly rows: Rows,
    private readonly accept: Accept
  ) {
    this.seen = rows.turned?.count ?? 0;
  }

  get settled(): number {
    return this.indices.length;
  }

  get length(): number {
    return this.indices.length;
  }

  /** Whether all settled rows were examined. */
  get done(): boolean {
    return this.next >= this.rows.settled;
  }

  /** The index, in the scanned rows, of the found row at `index`. */
  source(index: number): number {
    return this.indices.at(index);
  }

  at(index: number): Row {
    return this.rows.at(this.source(index));
  }

  find(row: Row): number {
    return this.from(this.rows.find(row));
  }

  /** The index of the first found row that isn't before the scanned row at `index`. */
  from(index: number): number {
    return this.indices.floor(index - 1) + 1;
  }

  /** Continues until all is done or time is up; returns whether all is done. */
  step(timeIsUp: () => boolean): boolean {
    this.turn();
    while (!this.done && !timeIsUp()) {
      const end = Math.min(this.next + SLICE, this.rows.settled);
      for (; this.next < end; this.next++) {
        if (this.accept(this.rows.at(this.next), this.next, this.rows)) {
          this.indices.push(this.next);
        }
      }
    }
    return this.done;
  }

  /** Forgets found rows that may have moved. */
  private turn(): void {
    const { turned } = this.rows;
    if (turned && turned.count !== this.seen) {
      const kept = turned.kept(this.seen);
      this.seen = turned.count;
      if (kept < this.next) {
        this.indices.cut(this.from(kept));
        this.next = kept;
        this.turned.from(this.indices.length);
      }
    }
  }
}

/** The rows without those that repeat the text of the row above them, whichever rank wrote it. */
export class Folded extends Scan {
  constructor(rows: Rows) {
    super(rows, (row, index) => index === 0 || !alike(row, rows.at(index - 1)));
  }

  /** How many rows the one at `index` stands for. */
  count(index: number): number {
    const end = index + 1 < this.indices.length ? this.source(index + 1) : this.next;
    return end - this.source(index);
  }

  /** A row that is left out is found at the row that stands for it. */
  override find(row: Row): number {
    return Math.max(0, this.indices.floor(this.rows.find(row)));
  }
}

function alike(row: Row, other: Row): boolean {
  const text = textOf(row);
  return text !== null && text === textOf(other) && levelOf(row) !== Level.mark;
}
