import type { TranslationBundle } from '@jupyterlab/translation';

import type { Chosen } from '../view/columns';
import { button, download, make } from '../view/dom';

export interface RanksOptions {
  readonly trans: TranslationBundle;
  /** The URL of a rank's whole log. */
  readonly url: (rank: number) => string;
  readonly chose: (chosen: Chosen) => void;
}

/** Ranks in short form: "0–3, 8". */
export function spoken(ranks: readonly number[]): string {
  const runs: [number, number][] = [];
  for (const rank of [...ranks].sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && rank === last[1] + 1) {
      last[1] = rank;
    } else {
      runs.push([rank, rank]);
    }
  }
  return runs.map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`)).join(', ');
}

/** A button with a menu of ranks, to choose which are shown and to download their logs. */
export class RanksMenu {
  readonly node: HTMLElement;
  private readonly opener: HTMLButtonElement;
  private readonly menu: HTMLElement;
  private ranks: readonly number[] = [];
  private chosen: Chosen = null;

  constructor(private readonly options: RanksOptions) {
    const { trans } = options;
    this.opener = button('', trans.__('Choose ranks, or download their logs'), () =>
      this.show(this.menu.hidden)
    );
    this.menu = make('div', 'menu', { hidden: true });
    this.menu.setAttribute('role', 'group');
    this.menu.setAttribute('aria-label', trans.__('Ranks'));
    this.node = make('div', 'ranks', {}, this.opener, this.menu);
    this.node.addEventListener('keydown', event => this.pressed(event));
    this.node.addEventListener('focusout', event => {
      if (event.relatedTarget && !this.node.contains(event.relatedTarget as Node)) {
        this.show(false);
      }
    });
    this.show(false);
    this.label();
  }

  /** Shows which ranks there are and which of them are chosen. */
  update(ranks: readonly number[], chosen: Chosen): void {
    const same = ranks.length === this.ranks.length && chosen === this.chosen;
    [this.ranks, this.chosen] = [ranks, chosen];
    if (!same) {
      this.label();
      this.fill();
    }
  }

  private label(): void {
    const { trans } = this.options;
    const { ranks, chosen } = this;
    const [many, shown] = [ranks.length, chosen?.size ?? 0];
    const some = () =>
      trans._n(
        'Rank %2 (%1 of %3)',
        'Ranks %2 (%1 of %3)',
        shown,
        spoken([...(chosen ?? [])]),
        many
      );
    const none = () =>
      chosen ? trans.__('None of %1 ranks', many) : trans._n('%1 rank', 'All %1 ranks', many);
    this.opener.textContent = `${shown > 0 ? some() : none()} ▾`;
  }

  private show(on: boolean): void {
    this.menu.hidden = !on;
    this.opener.setAttribute('aria-expanded', String(on));
  }

  private pressed(event: KeyboardEvent): void {
    if (event.key === 'Escape' && !this.menu.hidden) {
      event.stopPropagation();
      this.show(false);
      this.opener.focus();
    }
  }

  private fill(): void {
    const { trans, chose } = this.options;
    const focused = [...this.menu.querySelectorAll('input')].findIndex(
      input => input === document.activeElement
    );
    const all = button(trans.__('All'), trans.__('Show all ranks'), () => chose(null));
    const none = button(trans.__('None'), trans.__('Hide all ranks'), () => chose(new Set()));
    const items = this.ranks.map(rank => this.item(rank));
    this.menu.replaceChildren(make('div', 'menu-head', {}, all, none), ...items);
    this.menu.querySelectorAll('input')[focused]?.focus();
  }

  private item(rank: number): HTMLElement {
    const { trans, url } = this.options;
    const box = document.createElement('input');
    box.type = 'checkbox';
    box.checked = this.chosen?.has(rank) ?? true;
    box.addEventListener('change', () => this.choose(rank, box.checked));
    const label = make('label', 'rank', {}, box, trans.__('rank %1', rank));
    return make('div', 'menu-item', {}, label, download(rank, url(rank), trans));
  }

  private choose(rank: number, on: boolean): void {
    const chosen = new Set(this.chosen ?? this.ranks);
    chosen[on ? 'add' : 'delete'](rank);
    this.options.chose(chosen.size === this.ranks.length ? null : chosen);
  }
}
