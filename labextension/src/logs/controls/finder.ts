import type { TranslationBundle } from '@jupyterlab/translation';

import { pattern } from '../lines/search';
import type { Columns } from '../view/columns';
import { button, make, Toggle } from '../view/dom';
import type { Pane } from '../view/pane';

export interface FinderOptions {
  readonly trans: TranslationBundle;
  readonly columns: Columns;
  readonly closed: () => void;
}

/** The bar that searches all shown lines; it counts matching lines, not matches. */
export class Finder {
  readonly node: HTMLElement;
  private readonly input: HTMLInputElement;
  private readonly count = make('span', 'count');
  private readonly regex: Toggle;
  private readonly matchCase: Toggle;
  private current: Pane | null = null;
  private pattern: RegExp | null = null;

  constructor(private readonly options: FinderOptions) {
    const { trans } = options;
    this.input = make('input', 'find', { type: 'search', placeholder: trans.__('Search') });
    this.input.setAttribute('aria-label', trans.__('Search all lines'));
    this.input.addEventListener('input', () => this.search());
    this.matchCase = new Toggle('Aa', trans.__('Match case'), () => this.search());
    this.regex = new Toggle('.*', trans.__('Regular expression'), () => this.search());
    this.count.setAttribute('role', 'status');
    const previous = button('↑', trans.__('Previous (Shift+F3)'), () => this.step(-1));
    const next = button('↓', trans.__('Next (F3)'), () => this.step(1));
    const close = button('×', trans.__('Close (Escape)'), () => this.close());
    const how = [this.input, this.matchCase.node, this.regex.node];
    this.node = make('div', 'finder', {}, ...how, this.count, previous, next, close);
    this.node.hidden = true;
    this.node.setAttribute('role', 'search');
    this.node.addEventListener('keydown', event => this.pressed(event));
  }

  open(): void {
    this.node.hidden = false;
    this.input.select();
    this.input.focus();
    this.search();
  }

  close(): void {
    this.node.hidden = true;
    this.apply(null);
    this.options.closed();
  }

  /** Makes new panes search too. */
  renew(): void {
    this.current = null;
    this.options.columns.panes.forEach(pane => pane.search(this.pattern));
  }

  /** Goes to the next line found, or with -1 to the previous one; wraps around at the ends. */
  step(by: 1 | -1): void {
    const { panes, active } = this.options.columns;
    const start = panes.findIndex(pane => pane === (this.current ?? active));
    for (let turn = 0; turn <= panes.length; turn++) {
      const pane = panes.at((start + by * turn) % panes.length);
      const row = pane && nextIn(pane, by, turn > 0);
      if (pane && row !== undefined) {
        this.current = pane;
        pane.go(row);
        return;
      }
    }
  }

  /** Shows how many lines were found so far. */
  update(): void {
    const { trans, columns } = this.options;
    if (!this.pattern) {
      return;
    }
    const hitsIn = (panes: readonly Pane[]) =>
      panes.reduce((sum, pane) => sum + (pane.hits?.length ?? 0), 0);
    const count = hitsIn(columns.panes);
    const total = count.toLocaleString();
    const done = columns.panes.every(pane => pane.hits?.done ?? true);
    const place = this.current?.hits?.from(this.current.place) ?? 0;
    const before = columns.panes.findIndex(pane => pane === this.current);
    const at = hitsIn(columns.panes.slice(0, Math.max(0, before))) + place + 1;
    const lines = trans._n('%2 line', '%2 lines', count, total);
    const place_ = at.toLocaleString();
    const of = trans._n('%2 of %3 line', '%2 of %3 lines', count, place_, total);
    const none = done ? trans.__('No matching lines.') : trans.__('Searching…');
    this.say(count ? (before < 0 ? lines : of) + (done ? '' : '…') : none);
  }

  private search(): void {
    const text = this.input.value;
    const [regex, matchCase] = [this.regex.on, this.matchCase.on];
    this.input.removeAttribute('aria-invalid');
    try {
      this.apply(pattern({ text, regex, matchCase }));
    } catch (error) {
      this.apply(null);
      this.input.setAttribute('aria-invalid', 'true');
      this.say(error instanceof Error ? error.message : String(error));
    }
  }

  private apply(regexp: RegExp | null): void {
    this.pattern = regexp;
    this.say('');
    this.renew();
  }

  private say(text: string): void {
    if (this.count.textContent !== text) {
      this.count.textContent = text;
    }
  }

  private pressed(event: KeyboardEvent): void {
    if (event.key === 'Enter' && event.target === this.input) {
      event.preventDefault();
      this.step(event.shiftKey ? -1 : 1);
    } else if (event.key === 'Escape') {
      event.stopPropagation();
      this.close();
    }
  }
}

/** The next match from a pane's place, in the direction `by`; with `around`, its first or last match. */
function nextIn(pane: Pane, by: 1 | -1, around: boolean): number | undefined {
  const scan = pane.hits;
  if (!scan?.length) {
    return undefined;
  }
  const forth = by > 0 ? scan.from(pane.place + (pane.marked ? 1 : 0)) : scan.from(pane.place) - 1;
  const index = around ? (by > 0 ? 0 : scan.length - 1) : forth;
  return index >= 0 && index < scan.length ? scan.source(index) : undefined;
}
