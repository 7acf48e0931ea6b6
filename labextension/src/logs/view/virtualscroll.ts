// Chromium cuts an element's height at 33.5 million pixels, Firefox at 17.8.
const TALLEST = 15e6;

/**
 * Which rows of a list are in view, each `rowHeight` pixels high, and where the scroll bar is.
 *
 * `top` is the exact position in the list in pixels; the scrolled element has at most about `TALLEST`,
 * so that in longer lists each of its pixels stands for several.
 */
export class VirtualScroll {
  rows = 0;
  rowHeight = 1;
  viewHeight = 0;
  /** Whether rows may be higher than `rowHeight`: then the last one can be brought to the top. */
  wrap = false;
  private at = 0;

  get top(): number {
    return Math.min(this.at, this.range);
  }

  /** How high the scrolled element must be. */
  get height(): number {
    return Math.min(this.range, TALLEST) + this.viewHeight;
  }

  /** The most that `top` can be. */
  get range(): number {
    const seen = this.wrap ? this.rowHeight : this.viewHeight;
    return Math.max(0, this.rows * this.rowHeight - seen);
  }

  /** Whether a pixel of the scroll bar stands for several of the list. */
  get scaled(): boolean {
    return this.range > TALLEST;
  }

  /** Where the scroll bar must be. */
  get scrollTop(): number {
    return this.top / this.scale;
  }

  get first(): number {
    return Math.floor(this.top / this.rowHeight);
  }

  /** How much of the first row is above the edge, from 0 to 1. */
  get hidden(): number {
    return this.top / this.rowHeight - this.first;
  }

  /** How many rows fill the view at most. */
  get count(): number {
    return Math.ceil(this.viewHeight / this.rowHeight) + 1;
  }

  moveTo(top: number): void {
    this.at = Math.min(Math.max(0, top), this.range);
  }

  /**
   * Moves as a wheel turns, by pixels, rows or pages (`WheelEvent.deltaMode`): by pixels of the list, even where
   * a pixel of the scroll bar stands for several.
   */
  turn(delta: number, mode: number): void {
    const unit = [1, this.rowHeight, this.viewHeight][mode] ?? 1;
    this.moveTo(this.top + delta * unit);
  }

  /** Follows the scroll bar; a position that was set comes back rounded, and is ignored. */
  scrolled(scrollTop: number): void {
    if (Math.abs(scrollTop - this.scrollTop) >= 1) {
      this.moveTo(scrollTop * this.scale);
    }
  }

  /** Brings a row into view, a third of the way down, if it isn't there already or `always`. */
  reveal(row: number, always = false): void {
    const place = row * this.rowHeight;
    const inside = place >= this.top && place <= this.top + this.viewHeight - 2 * this.rowHeight;
    if (!inside || this.wrap || always) {
      this.moveTo(place - this.viewHeight / 3);
    }
  }

  private get scale(): number {
    return Math.max(1, this.range / TALLEST);
  }
}
