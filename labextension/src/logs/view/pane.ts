import type { TranslationBundle } from '@jupyterlab/translation';

import type { Row, Rows } from '../lines/rows';
import { type Accept, Folded, matching, Scan } from '../lines/search';

import type { Picked } from './copied';
import { button, CSS, make } from './dom';
import { Marked } from './marked';
import { drawRow, Stretch } from './row';
import { VirtualScroll } from './virtualscroll';

/** What a pane shows, and its label. */
export interface PaneOptions {
  readonly rows: Rows;
  readonly label: string;
  readonly trans: TranslationBundle;
  readonly gutter: (row: Row) => string;
  /** The text shown if there are no lines. */
  readonly nothing: () => string;
  /** Shown above the lines. */
  readonly heading?: HTMLElement | undefined;
  /** Called when something has changed that the next frame must draw. */
  readonly changed: () => void;
}

/** A column of lines; only those in view have elements. */
export class Pane {
  readonly node: HTMLElement;
  readonly scroller = make('div', 'scroller', { tabIndex: 0 });
  private readonly spacer = make('div', 'spacer');
  private readonly layer = make('div', 'layer');
  private readonly stretch = new Stretch(index => this.row(index));
  private readonly scroll = new VirtualScroll();
  private readonly jump: HTMLButtonElement;
  private readonly empty = make('div', 'note');
  private readonly observer: ResizeObserver;
  private filtered: Scan | null = null;
  private folded: Folded | null = null;
  private scan: Scan | null = null;
  private pattern: RegExp | null = null;
  private followed = true;
  private seen = 0;
  private settled = 0;
  private turns = 0;
  private readonly marks = new Marked();
  /** The first line in view. */
  private top: Row | null = null;
  /** Whether some of its text is selected. */
  private selecting = false;
  private widest = 0;
  private atEnd = true;

  constructor(private readonly options: PaneOptions) {
    const { trans } = options;
    this.jump = button('', trans.__('Jump to the end and follow (End)'), () => this.follow(true));
    this.jump.classList.add('jp-nbtorchjob-log-jump');
    this.scroller.setAttribute('role', 'log');
    this.scroller.setAttribute('aria-live', 'off');
    this.scroller.setAttribute('aria-label', options.label);
    this.layer.append(this.stretch.node);
    this.spacer.append(this.layer);
    this.scroller.append(this.spacer, this.empty);
    const heading = options.heading ? [options.heading] : [];
    this.node = make('div', 'pane', {}, ...heading, this.scroller, this.jump);
    this.observer = new ResizeObserver(() => this.resized());
    this.observer.observe(this.scroller);
    this.scroller.addEventListener('scroll', () => this.scrolled(), { passive: true });
    this.scroller.addEventListener('wheel', event => this.wheeled(event));
    this.scroller.addEventListener('mousedown', event => this.pressed(event));
    document.addEventListener('selectionchange', this.selects);
  }

  dispose(): void {
    document.removeEventListener('selectionchange', this.selects);
    this.observer.disconnect();
    this.node.remove();
  }

  /** The rows that are shown. */
  get rows(): Rows {
    return this.folded ?? this.filtered ?? this.options.rows;
  }

  /** The shown rows that match the search; null: there is no search. */
  get hits(): Scan | null {
    return this.scan;
  }

  get following(): boolean {
    return this.followed;
  }

  /** Whether `place` is a marked row. */
  get marked(): boolean {
    return this.marks.place !== null;
  }

  /** The row that was marked last, or else the first in view. */
  get place(): number {
    return this.marks.place ?? this.scroll.first;
  }

  /** The rows with selected text, or else the marked ones. */
  get picked(): Picked | null {
    const range = (this.selecting && this.selected()) || this.marks.range;
    return range && { rows: this.rows, from: range[0], to: range[1] };
  }

  /** Shows only accepted rows (null: all); with `fold`, leaves out rows that repeat the one above. */
  filter(accept: Accept | null, fold: boolean): void {
    this.filtered = accept && new Scan(this.options.rows, accept);
    this.folded = fold ? new Folded(this.filtered ?? this.options.rows) : null;
    [this.turns, this.top] = [this.rows.turned?.count ?? 0, null];
    this.search(this.pattern);
  }

  /** Finds and highlights what matches. */
  search(pattern: RegExp | null): void {
    this.pattern = pattern;
    this.scan = pattern && new Scan(this.rows, matching(pattern));
    this.marks.clear();
    this.stretch.forget(0);
    this.options.changed();
  }

  /** Sets whether long lines are wrapped. */
  wrap(on: boolean): void {
    this.scroll.wrap = on;
    this.stretch.forget(0);
    this.options.changed();
  }

  /** Redraws all rows in the next frame. */
  redraw(): void {
    this.stretch.forget(0);
    this.options.changed();
  }

  /** Sticks to the end, or stays where it is. */
  follow(on: boolean): void {
    this.followed = on;
    this.options.changed();
  }

  /** Goes to a row and marks it; with `follows`, the rows after it are in view too. */
  go(index: number, follows = false): void {
    this.measure(); // the observer measures a new pane's rows only after the page is drawn
    this.mark(index);
    this.scroll.rows = this.seen = this.rows.length;
    this.scroll.reveal(index, follows);
  }

  /** Extends the marks by a row; without marks, marks the first row in view (the last row when following). */
  extend(by: 1 | -1): void {
    const start = this.followed ? this.rows.length - 1 : this.scroll.first;
    const to = this.marked ? this.place + by : start;
    if (to >= 0 && to < this.rows.length) {
      this.mark(to, true);
      this.scroll.reveal(to);
    }
  }

  /** Marks no rows. */
  unmark(): void {
    this.marks.clear();
    this.options.changed();
  }

  private mark(index: number, further = false): void {
    this.followed = false;
    this.marks.set(this.rows, index, further);
    this.options.changed();
  }

  /** Moves by rows; an infinite number goes to the start or the end. */
  move(rows: number): void {
    this.scroll.moveTo(this.scroll.top + rows * this.scroll.rowHeight);
    this.followed = rows === Infinity;
    this.options.changed();
  }

  /** How many rows a page has. */
  get page(): number {
    return Math.max(1, this.scroll.count - 3);
  }

  /** Continues filtering and searching until time is up; returns whether all rows were examined. */
  work(timeIsUp: () => boolean): boolean {
    return [this.filtered, this.folded, this.scan]
      .map(scan => scan?.step(timeIsUp) ?? true)
      .every(done => done);
  }

  /** Draws what is in view. */
  draw(): void {
    const { rows, scroll } = this;
    if (!scroll.viewHeight) {
      return; // hidden
    }
    // The last folded row may stand for more lines now.
    this.stretch.forget(this.folded ? this.settled - 1 : this.settled);
    scroll.rows = rows.length;
    this.turn();
    this.settled = rows.settled;
    if (this.followed) {
      scroll.moveTo(scroll.range);
      this.seen = rows.length;
    }
    // Without rows the spacer would push the note about that out of view.
    this.spacer.style.height = rows.length ? `${scroll.height}px` : '0';
    this.layer.style.height = rows.length ? `${scroll.viewHeight}px` : '0';
    if (Math.abs(this.scroller.scrollTop - scroll.scrollTop) >= 1) {
      this.scroller.scrollTop = scroll.scrollTop;
    }
    this.lay();
    this.stretch.point(this.marks.range);
    this.tell();
  }

  /** Stays with the line that is in view after others were inserted before it. */
  private turn(): void {
    const { turned } = this.rows;
    const kept = turned && turned.count !== this.turns ? turned.kept(this.turns) : Infinity;
    this.turns = turned?.count ?? 0;
    this.stretch.forget(kept);
    if (kept <= this.scroll.first && this.top && !this.followed) {
      const moved = this.rows.find(this.top) - this.scroll.first;
      this.scroll.moveTo(this.scroll.top + moved * this.scroll.rowHeight);
    }
    this.marks.turn(this.rows, kept);
  }

  /** Puts the rows in view where they belong. */
  private lay(): void {
    const { scroll, stretch } = this;
    const end = Math.min(scroll.first + scroll.count, scroll.rows);
    stretch.show(scroll.first, end);
    this.top = scroll.first < this.rows.length ? this.rows.at(scroll.first) : null;
    let shift = -scroll.hidden * this.firstHeight();
    this.atEnd = scroll.top >= scroll.range - 1;
    if (scroll.wrap && end === scroll.rows && stretch.height + shift <= scroll.viewHeight) {
      // Wrapped rows are taller than assumed, so the scroll bar goes beyond the end: stay at the end.
      stretch.show(Math.max(0, end - scroll.count), end);
      shift = Math.min(0, scroll.viewHeight - stretch.height);
      this.atEnd = true;
    }
    stretch.node.style.transform = `translateY(${shift}px)`;
    this.widen();
  }

  private firstHeight(): number {
    const { scroll, stretch } = this;
    return (scroll.wrap && stretch.element(scroll.first)?.offsetHeight) || scroll.rowHeight;
  }

  /** Keeps the width of the widest line so far: otherwise the horizontal scroll bar would come and go. */
  private widen(): void {
    const wide = this.scroll.wrap ? 0 : this.stretch.node.scrollWidth;
    // Rows are at least as wide as the view: only a greater width is that of text.
    const width = wide > this.scroller.clientWidth ? wide : 0;
    if (width > this.widest || this.scroll.wrap) {
      this.widest = width;
      this.spacer.style.minWidth = width ? `${width}px` : '';
    }
  }

  private row(index: number): HTMLElement {
    const { trans, gutter } = this.options;
    const folded = this.folded?.count(index) ?? 1;
    return drawRow(this.rows.at(index), { trans, gutter, pattern: this.pattern, folded });
  }

  /** Stops following when text is selected, so that it stays where it is. */
  private readonly selects = (): void => {
    const before = this.selecting;
    this.selecting = this.selected() !== null;
    if (this.selecting && this.followed) {
      this.follow(false);
    } else if (this.selecting !== before) {
      this.options.changed();
    }
  };

  /** The first and the last row with selected text. */
  private selected(): readonly [number, number] | null {
    const selection = document.getSelection();
    if (!selection || selection.isCollapsed) {
      return null;
    }
    const [from, to] = [selection.anchorNode, selection.focusNode].map(node =>
      this.stretch.indexOf(node)
    ) as [number, number];
    return from < 0 || to < 0 ? null : [Math.min(from, to), Math.max(from, to)];
  }

  /** Marks a line when its number, which isn't text, is pressed; with Shift, all lines up to there. */
  private pressed(event: MouseEvent): void {
    const { button, target, shiftKey } = event;
    if (!button && target instanceof HTMLElement && target.classList.contains(`${CSS}-row`)) {
      event.preventDefault(); // otherwise Shift would select text
      document.getSelection()?.removeAllRanges();
      this.scroller.focus({ preventScroll: true });
      const index = this.stretch.indexOf(target);
      const alone = this.marks.range?.every(bound => bound === index);
      if (alone && !shiftKey) {
        this.unmark();
      } else {
        this.mark(index, shiftKey);
      }
    }
  }

  /** Shows that there are no lines, or how many have come while the view stayed where it is. */
  private tell(): void {
    const { trans, nothing, rows } = this.options;
    const looked = [this.filtered, this.folded].every(scan => scan?.done ?? true);
    this.empty.hidden = this.rows.length > 0 || !looked;
    this.empty.textContent = rows.length ? trans.__('No matching lines.') : nothing();
    const fresh = this.scroll.rows - this.seen;
    const needless = this.followed || this.scroll.range === 0;
    if (needless && document.activeElement === this.jump) {
      this.scroller.focus({ preventScroll: true }); // a hidden button takes no keys
    }
    this.jump.hidden = needless;
    this.jump.textContent =
      fresh > 0
        ? trans._n('↓ %2 new line', '↓ %2 new lines', fresh, fresh.toLocaleString())
        : trans.__('↓ Jump to end');
  }

  private scrolled(): void {
    if (this.followed && this.scroller.clientHeight !== this.scroll.viewHeight) {
      this.resized(); // the layout moved the bar, not the user
      return;
    }
    const before = this.scroll.top;
    this.scroll.scrolled(this.scroller.scrollTop);
    if (this.scroll.top !== before) {
      this.followed = false;
      this.draw();
      // Smooth scrolling begins with a pixel, which is still at the end.
      this.followed = this.atEnd && this.scroll.top > before;
      this.options.changed();
    }
  }

  private wheeled(event: WheelEvent): void {
    const { scroll } = this;
    if (event.ctrlKey || event.shiftKey || !event.deltaY) {
      return;
    }
    // Smooth scrolling begins with less than a pixel, and new lines would take it back to the end.
    this.followed &&= event.deltaY > 0 || scroll.range === 0;
    if (scroll.scaled) {
      event.preventDefault();
      scroll.turn(event.deltaY, event.deltaMode);
      this.follow(event.deltaY > 0 && scroll.top === scroll.range);
    }
  }

  private resized(): void {
    this.measure();
    this.options.changed();
  }

  private measure(): void {
    const size = parseFloat(getComputedStyle(this.scroller).fontSize) || 13;
    this.scroll.rowHeight = Math.round(size * 1.35);
    this.scroller.style.setProperty('--jp-nbtorchjob-row', `${this.scroll.rowHeight}px`);
    this.scroll.viewHeight = this.scroller.clientHeight;
  }
}
