import type { TranslationBundle } from '@jupyterlab/translation';

import { levelOf, type Row, Single } from '../lines/rows';
import { type Accept, matching, pattern } from '../lines/search';
import type { LogStore } from '../lines/store';
import { Level } from '../text/levels';

import type { Picked } from './copied';
import { download, make } from './dom';
import { ofDay, since } from './times';
import { Pane, type PaneOptions } from './pane';

// More columns than this side by side are unreadable.
const MOST = 8;
// The properties of a view that decide which lines are shown.
const FILTERS = ['chosen', 'level', 'filter', 'fold'] as const;

/** Chosen ranks; null: all. */
export type Chosen = ReadonlySet<number> | null;

/** Which part of the logs is shown, and how. */
export interface View {
  /** Whether all ranks share one column, or have a column each. */
  readonly merged: boolean;
  readonly chosen: Chosen;
  /** The lowest level that is shown. */
  readonly level: Level;
  /** Only lines with this text. */
  readonly filter: string;
  /** Whether lines that repeat the line above them are folded into it. */
  readonly fold: boolean;
  readonly wrap: boolean;
  /** The time shown before a line: none, the time of day, or the time since the earliest line. */
  readonly times: Times;
}

export type Times = 'none' | 'day' | 'since';

export interface ColumnsOptions {
  readonly store: LogStore;
  readonly trans: TranslationBundle;
  readonly url: (rank: number) => string;
  /** The text shown for a log without lines. */
  readonly nothing: () => string;
  /** Called when something has changed that the next frame must draw. */
  readonly changed: () => void;
}

/** The panes side by side: one for all ranks merged, or one per rank. */
export class Columns {
  readonly node = make('div', 'columns');
  panes: readonly Pane[] = [];
  private owners: readonly (number | null)[] = [];
  private key = '';
  private view: View | null = null;
  private last: Pane | undefined;

  constructor(private readonly options: ColumnsOptions) {
    this.node.addEventListener('focusin', event => {
      const pane = this.panes.find(pane => pane.node.contains(event.target as Node));
      this.last = pane ?? this.last;
    });
  }

  dispose(): void {
    this.panes.forEach(pane => pane.dispose());
  }

  /** The pane that receives keys. */
  get active(): Pane | undefined {
    return this.last && this.panes.includes(this.last) ? this.last : this.panes[0];
  }

  /** The picked lines, of the active pane or else of another. */
  get picked(): Picked | null {
    const picked = [this.active, ...this.panes].map(pane => pane?.picked ?? null);
    return picked.find(range => range !== null) ?? null;
  }

  /** Focuses the lines of the active pane. */
  focus(): void {
    this.active?.scroller.focus();
  }

  /** Shows these ranks as the view asks; returns whether the panes were replaced. */
  show(view: View, ranks: readonly number[]): boolean {
    const before = this.view;
    this.view = view;
    const fresh = this.arrange(view, ranks);
    if (fresh || FILTERS.some(name => view[name] !== before?.[name])) {
      const accept = accepted(view);
      this.panes.forEach(pane => pane.filter(accept, view.fold));
    }
    if (fresh || view.wrap !== before?.wrap) {
      this.node.dataset['wrap'] = String(view.wrap);
      this.panes.forEach(pane => pane.wrap(view.wrap));
    }
    if (view.times !== before?.times) {
      this.panes.forEach(pane => pane.redraw());
    }
    return fresh;
  }

  /** Whether a rank's lines are in one of the panes, unless a filter hides them. */
  has(rank: number): boolean {
    const chosen = this.view?.chosen?.has(rank) ?? true;
    return chosen && this.owners.some(owner => owner === null || owner === rank);
  }

  /** Goes to a line, or the next one that is shown, with the lines after it in view; returns the row. */
  go(row: Row): Row | null {
    const pane =
      this.panes[this.owners.findIndex(owner => (owner ?? row.log.rank) === row.log.rank)];
    if (!pane?.rows.length) {
      return null;
    }
    const index = Math.min(pane.rows.find(row), pane.rows.length - 1);
    pane.go(index, true);
    return pane.rows.at(index);
  }

  private arrange(view: View, ranks: readonly number[]): boolean {
    const shown = ranks.filter(rank => view.chosen?.has(rank) ?? true);
    const owners = view.merged ? [null] : shown.slice(0, MOST);
    const many = ranks.length > 1;
    const key = `${owners.join()} ${many} ${shown.length > MOST}`;
    if (key === this.key) {
      return false;
    }
    const focused = this.node.contains(document.activeElement);
    this.dispose();
    [this.owners, this.key] = [owners, key];
    this.panes = owners.map(rank => (rank === null ? this.merged(many) : this.single(rank)));
    this.node.replaceChildren(...this.panes.map(pane => pane.node), ...this.left(view, shown));
    if (focused) {
      this.focus(); // removing the focused element leaves nothing focused
    }
    return true;
  }

  private single(rank: number): Pane {
    const { store, trans, url } = this.options;
    const name = trans.__('rank %1', rank);
    const heading = make('div', 'heading', {}, name, download(rank, url(rank), trans));
    const label = trans.__('Log of rank %1', rank);
    const rows = new Single(store.log(rank));
    return this.pane({
      rows,
      label,
      heading,
      gutter: row => this.gutter(row, String(row.line + 1))
    });
  }

  private merged(many: boolean): Pane {
    const { store, trans } = this.options;
    const label = trans.__('Logs of all ranks, in the order they were written');
    const number = (row: Row) => this.gutter(row, String(row.line + 1));
    const both = (row: Row) =>
      this.gutter(row, `r${row.log.rank}${String(row.line + 1).padStart(7)}`);
    const pane = this.pane({ rows: store.merged, label, gutter: many ? both : number });
    pane.node.dataset['many'] = String(many);
    return pane;
  }

  private gutter({ log, line }: Row, name: string): string {
    const at = log.time(line);
    const times = this.view?.times ?? 'none';
    if (times === 'none' || !at) {
      return name;
    }
    return `${times === 'day' ? ofDay(at) : since(at - this.options.store.start)}  ${name}`;
  }

  private pane(options: Omit<PaneOptions, 'trans' | 'changed' | 'nothing'>): Pane {
    const { trans, changed, nothing } = this.options;
    return new Pane({ trans, changed, nothing, ...options });
  }

  private left(view: View, shown: readonly number[]): HTMLElement[] {
    const { trans } = this.options;
    if (!shown.length && !view.merged) {
      return [make('div', 'note', {}, trans.__('No ranks selected.'))];
    }
    const left = view.merged ? 0 : shown.length - MOST;
    const text = trans._n(
      '%1 more selected rank isn’t shown.',
      '%1 more selected ranks aren’t shown.',
      left
    );
    return left > 0 ? [make('div', 'note', {}, text)] : [];
  }
}

/** Which rows a view shows; null: all. */
function accepted({ merged, chosen, level, filter }: View): Accept | null {
  const tests: Accept[] = [];
  if (merged && chosen) {
    tests.push(row => chosen.has(row.log.rank));
  }
  if (level > Level.debug) {
    tests.push(row => levelOf(row) >= level);
  }
  const regexp = pattern({ text: filter, regex: false, matchCase: false });
  if (regexp) {
    tests.push(matching(regexp));
  }
  return tests.length ? (row, index, rows) => tests.every(test => test(row, index, rows)) : null;
}
