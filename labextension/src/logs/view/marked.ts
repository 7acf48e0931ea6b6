import type { Row, Rows } from '../lines/rows';

interface Mark {
  readonly index: number;
  readonly row: Row;
}

/** The rows that are marked; they stay the same lines when others are inserted before them. */
export class Marked {
  /** Where the marked range began, and the row that was marked last. */
  private begun: Mark | null = null;
  private last: Mark | null = null;

  /** The row that was marked last. */
  get place(): number | null {
    return this.last?.index ?? null;
  }

  /** The first and the last marked row. */
  get range(): readonly [number, number] | null {
    const [a, b] = [this.begun?.index ?? 0, this.last?.index ?? 0];
    return this.last && [Math.min(a, b), Math.max(a, b)];
  }

  /** Marks a row; with `further`, all rows from where the range began up to this one. */
  set(rows: Rows, index: number, further = false): void {
    this.last = index < rows.length ? { index, row: rows.at(index) } : null;
    this.begun = (further && this.begun) || this.last;
  }

  clear(): void {
    this.begun = this.last = null;
  }

  /** Finds the marked lines again after the rows from `kept` on have changed. */
  turn(rows: Rows, kept: number): void {
    const relocate = (mark: Mark | null) =>
      mark && mark.index >= kept ? { index: rows.find(mark.row), row: mark.row } : mark;
    [this.begun, this.last] = [relocate(this.begun), relocate(this.last)];
  }
}
