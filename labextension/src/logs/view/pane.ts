import type { TranslationBundle } from '@jupyterlab/translation';

import type { Row, Rows } from '../lines/rows';
import { type Accept, Folded, matching, Scan } from '../lines/search';

import type { Picked } from './copied';
import { button, CSS, make } from './dom';
import { Marked } from './marked';
import { drawRow, Stretch } from './row';
import { VirtualScroll } from './virtualscroll';

/** What a pane shows, and how it is called. */
export interface PaneOptions {
  readonly rows: Rows;
  readonly label: string;
  readonly trans: TranslationBundle;
  readonly gutter: (row: Row) => string;
  /** What is said where there are no lines. */
  readonly nothing: () => string;
  /** Stands above the lines. */
  readonly heading?: HTMLElement | undefined;
  /** Something changed that is to be drawn with the next frame. */
  readonly changed: () => void;
}

/** A column of lines, of which only those in view are elements. */
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
  private wanted: RegExp | null = null;
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

  /** Those that were searched for; null: nothing was. */
  get hits(): Scan | null {
    return this.scan;
  }

  get following(): boolean {
    return this.followed;
  }

  /** Whether `place` was gone to. */
  get marked(): boolean {
    return this.marks.place !== null;
  }

  /** The row that was gone to last, or the first in view. */
  get place(): number {
    return this.marks.place ?? this.scroll.first;
  }

  /** The rows with text that is selected, or else those that are marked. */
  get picked(): Picked | null {
    const range = (this.selecting && this.selected()) || this.marks.range;
    return range && { rows: this.rows, from: range[0], to: range[1] };
  }

  /** Shows only rows that are accepted, null: all; with `fold` each of those that say the same once. */
  filter(accept: Accept | null, fold: boolean): void {
    this.filtered = accept && new Scan(this.options.rows, accept);
    this.folded = fold ? new Folded(this.filtered ?? this.options.rows) : null;
    [this.turns, this.top] = [this.rows.turned?.count ?? 0, null];
    this.search(this.wanted);
  }

  /** Highlights what matches. */
  search(wanted: RegExp | null): void {
    this.wanted = wanted;
    this.scan = wanted && new Scan(this.rows, matching(wanted));
    this.marks.clear();
    this.stretch.forget(0);
    this.options.changed();
  }

  /** Breaks lines that are too long, or doesn't. */
  wrap(on: boolean): void {
    this.scroll.wrap = on;
    this.stretch.forget(0);
    this.options.changed();
  }

  /** Has all rows drawn anew. */
  redraw(): void {
    this.stretch.forget(0);
    this.options.changed();
  }

  /** Sticks to the end, or stays where it is. */
  follow(on: boolean): void {
    this.followed = on;
    this.options.changed();
  }

  /** Goes to a row and marks it; with what follows it in view, if that is asked for. */
  go(index: number, follows = false): void {
    this.measure(); // the observer tells only once the page was drawn how high a new pane's rows are
    this.mark(index);
    this.scroll.rows = this.seen = this.rows.length;
    this.scroll.reveal(index, follows);
  }

  /** Marks the next row or the one before, too; the first one in view where none is. */
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

  /** Moves by rows; an infinite number: to the start or the end. */
  move(rows: number): void {
    this.scroll.moveTo(this.scroll.top + rows * this.scroll.rowHeight);
    this.followed = rows === Infinity;
    this.options.changed();
  }

  /** How many rows a page has. */
  get page(): number {
    return Math.max(1, this.scroll.count - 3);
  }

  /** Filters and searches on until time is up; gives whether all was looked at. */
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
    // What the last row stands for may have become more.
    this.stretch.forget(this.folded ? this.settled - 1 : this.settled);
    scroll.rows = rows.length;
    this.turn();
    this.settled = rows.settled;
    if (this.followed) {
      scroll.moveTo(scroll.range);
      this.seen = rows.length;
    }
    // With no rows it would push away what is said of that.
    this.spacer.style.height = rows.length ? `${scroll.height}px` : '0';
    this.layer.style.height = rows.length ? `${scroll.viewHeight}px` : '0';
    if (Math.abs(this.scroller.scrollTop - scroll.scrollTop) >= 1) {
      this.scroller.scrollTop = scroll.scrollTop;
    }
    this.lay();
    this.stretch.point(this.marks.range);
    this.tell();
  }

  /** Stays with the line that is in view where others were put before it. */
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

  /** Puts the rows where they belong. */
  private lay(): void {
    const { scroll, stretch } = this;
    const end = Math.min(scroll.first + scroll.count, scroll.rows);
    stretch.show(scroll.first, end);
    this.top = scroll.first < this.rows.length ? this.rows.at(scroll.first) : null;
    let shift = -scroll.hidden * this.firstHeight();
    this.atEnd = scroll.top >= scroll.range - 1;
    if (scroll.wrap && end === scroll.rows && stretch.height + shift <= scroll.viewHeight) {
      // Rows are higher than thought, so that the scroll bar goes beyond the end: stay at the end.
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

  /** Keeps the width of the widest line so far: the other scroll bar would come and go. */
  private widen(): void {
    const wide = this.scroll.wrap ? 0 : this.stretch.node.scrollWidth;
    // Rows are as wide as the view at least: only what goes beyond it is text.
    const width = wide > this.scroller.clientWidth ? wide : 0;
    if (width > this.widest || this.scroll.wrap) {
      this.widest = width;
      this.spacer.style.minWidth = width ? `${width}px` : '';
    }
  }

  private row(index: number): HTMLElement {
    const { trans, gutter } = this.options;
    const folded = this.folded?.count(index) ?? 1;
    return drawRow(this.rows.at(index), { trans, gutter, wanted: this.wanted, folded });
  }

  /** Text that is being selected stays where it is. */
  private readonly selects = (): void => {
    const before = this.selecting;
    this.selecting = this.selected() !== null;
    if (this.selecting && this.followed) {
      this.follow(false);
    } else if (this.selecting !== before) {
      this.options.changed();
    }
  };

  /** The rows between which text is selected. */
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

  /** A line's number isn't text: to press it marks the line, with Shift also those up to there. */
  private pressed(event: MouseEvent): void {
    const { button, target, shiftKey } = event;
    if (!button && target instanceof HTMLElement && target.classList.contains(`${CSS}-row`)) {
      event.preventDefault(); // with Shift text would be selected
      document.getSelection()?.removeAllRanges();
      this.scroller.focus({ preventScroll: true });
      const index = this.stretch.indexOf(target);
      const alone = this.marks.range?.every(each => each === index);
      if (alone && !shiftKey) {
        this.unmark();
      } else {
        this.mark(index, shiftKey);
      }
    }
  }

  /** Says that there is nothing, or what came while the view stayed where it is. */
  private tell(): void {
    const { trans, nothing, rows } = this.options;
    const looked = [this.filtered, this.folded].every(scan => scan?.done ?? true);
    this.empty.hidden = this.rows.length > 0 || !looked;
    this.empty.textContent = rows.length ? trans.__('No line matches.') : nothing();
    const fresh = this.scroll.rows - this.seen;
    this.jump.hidden = this.followed || this.scroll.range === 0;
    this.jump.textContent =
      fresh > 0
        ? trans._n('↓ %2 new line', '↓ %2 new lines', fresh, fresh.toLocaleString())
        : trans.__('↓ Jump to end');
  }

  private scrolled(): void {
    if (this.followed && this.scroller.clientHeight !== this.scroll.viewHeight) {
      this.resized(); // it was the layout that moved the bar, and not the user
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
