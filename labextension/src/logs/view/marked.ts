import type { Row, Rows } from '../lines/rows';

interface Mark {
  readonly index: number;
  readonly row: Row;
}

/** The rows that were gone to or chosen; they stay the same lines where others come before them. */
export class Marked {
  /** Where it began, and the row that was gone to last. */
  private begun: Mark | null = null;
  private last: Mark | null = null;

  /** The row that was gone to last. */
  get place(): number | null {
    return this.last?.index ?? null;
  }

  /** The first row and the last one. */
  get range(): readonly [number, number] | null {
    const [a, b] = [this.begun?.index ?? 0, this.last?.index ?? 0];
    return this.last && [Math.min(a, b), Math.max(a, b)];
  }

  /** Marks a row, with `further` also all from the first that was marked. */
  set(rows: Rows, index: number, further = false): void {
    this.last = index < rows.length ? { index, row: rows.at(index) } : null;
    this.begun = (further && this.begun) || this.last;
  }

  clear(): void {
    this.begun = this.last = null;
  }

  /** Finds its lines again where the rows from `kept` on are others. */
  turn(rows: Rows, kept: number): void {
    const found = (mark: Mark | null) =>
      mark && mark.index >= kept ? { index: rows.find(mark.row), row: mark.row } : mark;
    [this.begun, this.last] = [found(this.begun), found(this.last)];
  }
}
