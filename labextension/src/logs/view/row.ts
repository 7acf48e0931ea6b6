/** Rows on the page: each keeps its element as long as it is shown. */

import type { TranslationBundle } from '@jupyterlab/translation';

import { isOpen, levelOf, type Row, textOf } from '../lines/rows';
import { ranges } from '../lines/search';
import { spans } from '../text/ansi';
import { Level } from '../text/levels';

import { button, CSS, make } from './dom';
import { linked, pieces } from './pieces';

// Characters of a line drawn at first, and at most: a browser can't lay out megabytes.
const SHORT = 4000;
const LONG = 200_000;

/** How rows are drawn. */
export interface Look {
  readonly trans: TranslationBundle;
  /** The text before a line. */
  readonly gutter: (row: Row) => string;
  /** What is highlighted. */
  readonly pattern: RegExp | null;
  /** How many lines the row stands for. */
  readonly folded: number;
}

/** Draws a row. */
export function drawRow(row: Row, look: Look): HTMLElement {
  const level = levelOf(row);
  const node = make('div', 'row');
  node.dataset['level'] = String(level);
  node.dataset['open'] = String(isOpen(row));
  node.style.setProperty('--jp-nbtorchjob-rank', String(hueOf(row.log.rank)));
  if (level === Level.mark) {
    node.append(look.trans.__('restarted: round %1', textOf(row)));
    return node;
  }
  node.dataset['gutter'] = look.gutter(row);
  if (look.folded > 1) {
    const many = look.folded.toLocaleString();
    const title = look.trans.__('%1 identical lines in a row', many);
    node.append(make('span', 'folded', { title }, `${many} ×`));
  }
  node.append(drawText(textOf(row), look));
  return node;
}

function drawText(text: string | null, { trans, pattern }: Look): HTMLElement {
  const node = make('span', 'text');
  if (text === null) {
    node.append(make('em', 'gone', {}, trans.__('no longer in memory: download the log')));
    return node;
  }
  fill(node, text, SHORT, pattern);
  const more = text.length - SHORT;
  if (more > 0) {
    const show = trans.__('Show more of this line');
    node.append(
      button(trans.__('… %1 more', more.toLocaleString()), show, () => {
        node.closest<HTMLElement>('[role=log]')?.focus({ preventScroll: true }); // the button goes
        fill(node, text, LONG, pattern);
        if (text.length > LONG) {
          const left = (text.length - LONG).toLocaleString();
          node.append(trans.__('… %1 more: download the log', left));
        }
      })
    );
  }
  return node;
}

function fill(node: HTMLElement, text: string, most: number, pattern: RegExp | null): void {
  const shown = spans(text.length > most ? text.slice(0, most) : text);
  const plain = shown.map(span => span.text).join('');
  const hits = pattern ? ranges(pattern, plain) : [];
  node.replaceChildren(...linked(pieces(shown, hits)));
}

/** A stretch of rows, one element each. */
export class Stretch {
  readonly node = make('div', 'rows');
  private readonly shown = new Map<number, HTMLElement>();

  constructor(private readonly draw: (index: number) => HTMLElement) {}

  get height(): number {
    return this.node.offsetHeight;
  }

  /** The element of a row that is shown. */
  element(index: number): HTMLElement | undefined {
    return this.shown.get(index);
  }

  /** The row that a node is, or is in; -1: none of those shown. */
  indexOf(inside: Node | null): number {
    for (const [index, element] of this.shown) {
      if (element.contains(inside)) {
        return index;
      }
    }
    return -1;
  }

  /** Shows only the rows from `first` up to but excluding `end`. */
  show(first: number, end: number): void {
    this.drop(index => index < first || index >= end);
    let next: HTMLElement | null = null;
    for (let index = end - 1; index >= first; index--) {
      let element = this.shown.get(index);
      if (!element) {
        element = this.draw(index);
        this.shown.set(index, element);
        this.node.insertBefore(element, next);
      }
      next = element;
    }
  }

  /** Drops the rows from `first` on, so that `show` draws them again. */
  forget(first: number): void {
    this.drop(index => index >= first);
  }

  /** Marks a range of rows, or none. */
  point(range: readonly [number, number] | null): void {
    const [from, to] = range ?? [0, -1];
    for (const [index, element] of this.shown) {
      element.classList.toggle(`${CSS}-current`, index >= from && index <= to);
    }
  }

  private drop(test: (index: number) => boolean): void {
    for (const [index, element] of this.shown) {
      if (test(index)) {
        element.remove();
        this.shown.delete(index);
      }
    }
  }
}

/** A rank's hue, from cyan to magenta: red, amber and green stand for states (`text/colours.py`). */
export function hueOf(rank: number): number {
  return Math.round(180 + (((rank * 137.5) / 360) % 1) * 140);
}
