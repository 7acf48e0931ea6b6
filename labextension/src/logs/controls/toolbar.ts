import type { TranslationBundle } from '@jupyterlab/translation';

import { Level } from '../text/levels';
import type { Times, View } from '../view/columns';
import { button, download, make, Toggle } from '../view/dom';

import { RanksMenu } from './ranksmenu';

export interface ToolbarOptions {
  readonly trans: TranslationBundle;
  readonly url: (rank: number) => string;
  /** The URL of an archive of all ranks' logs, with or without times. */
  readonly archive: (times: boolean) => string;
  /** Called with what the user changed in the view. */
  readonly changed: (change: Partial<View>) => void;
  readonly follow: (on: boolean) => void;
  readonly search: () => void;
  readonly copy: () => void;
  readonly copyLink: () => void;
}

/** What the toolbar reflects besides the `View`. */
export interface Shown {
  readonly ranks: readonly number[];
  readonly following: boolean;
  readonly picked: boolean;
  /** Whether links lead to the job: they don't once it is deleted. */
  readonly linked: boolean;
}

// Milliseconds without typing before a filter is applied: it examines every line.
const PAUSE = 200;

/** The row of controls above the logs. */
export class Toolbar {
  readonly node: HTMLElement;
  private readonly ranks: RanksMenu;
  private readonly only: HTMLElement;
  private readonly merged: Toggle;
  private readonly fold: Toggle;
  private readonly wrap: Toggle;
  private readonly follow: Toggle;
  private readonly copy: HTMLButtonElement;
  private readonly copyLink: HTMLButtonElement;
  private readonly archive: HTMLAnchorElement;

  constructor(private readonly options: ToolbarOptions) {
    const { trans, url, changed, follow, search, copy, copyLink } = options;
    this.only = download(0, url(0), trans);
    this.archive = make('a', 'download', {
      download: '',
      textContent: trans.__('Download all'),
      title: trans.__('Download all ranks’ logs as one archive, with times if they are shown')
    });
    this.ranks = new RanksMenu({ trans, url, chose: chosen => changed({ chosen }) });
    this.merged = new Toggle(
      trans.__('Merged'),
      trans.__('Show all ranks in one column, in the order the lines were written'),
      merged => changed({ merged })
    );
    this.fold = new Toggle(
      trans.__('Fold'),
      trans.__('Show consecutive identical lines once, with a count'),
      fold => changed({ fold })
    );
    this.wrap = new Toggle(trans.__('Wrap'), trans.__('Wrap long lines'), wrap =>
      changed({ wrap })
    );
    this.follow = new Toggle(trans.__('Follow'), trans.__('Keep the end in view (f)'), follow);
    const find = button(trans.__('Search'), trans.__('Search all lines (Ctrl+F or /)'), search);
    this.copy = copier(
      trans.__('Copy'),
      trans.__('Copy the selected lines with ranks and times (c); click line numbers to select'),
      copy
    );
    const link = trans.__('Copy a link to the selected line (l)');
    this.copyLink = copier(trans.__('Copy link'), link, copyLink);
    const which = [this.merged.node, this.ranks.node, this.level(), this.filter()];
    const how = [this.times(), this.fold.node, this.wrap.node, this.follow.node];
    how.push(this.copy, this.copyLink, this.only, this.archive);
    this.node = make('div', 'toolbar', {}, ...which, find, ...how);
    this.node.setAttribute('role', 'group');
    this.node.setAttribute('aria-label', trans.__('Log view'));
  }

  /** Shows the current state. */
  update(view: View, { ranks, following, picked, linked }: Shown): void {
    this.ranks.update(ranks, view.chosen);
    this.merged.on = view.merged;
    const many = ranks.length > 1;
    this.merged.node.hidden = this.ranks.node.hidden = !many;
    this.only.hidden = many;
    this.archive.hidden = !many;
    this.archive.href = this.options.archive(view.times !== 'none');
    this.copy.disabled = this.copyLink.disabled = !picked;
    this.copyLink.hidden = !linked;
    this.fold.on = view.fold;
    this.wrap.on = view.wrap;
    this.follow.on = following;
  }

  private level(): HTMLElement {
    const { trans, changed } = this.options;
    const names: [Level, string][] = [
      [Level.debug, trans.__('All levels')],
      [Level.info, trans.__('Info and above')],
      [Level.warning, trans.__('Warnings and errors')],
      [Level.error, trans.__('Errors')]
    ];
    const options = names.map(([level, name]) => new Option(name, String(level)));
    const select = make('select', 'level', {}, ...options);
    select.setAttribute('aria-label', trans.__('Levels'));
    select.addEventListener('change', () => changed({ level: Number(select.value) as Level }));
    return select;
  }

  private times(): HTMLElement {
    const { trans, changed } = this.options;
    const names: [Times, string][] = [
      ['none', trans.__('No times')],
      ['day', trans.__('Time of day')],
      ['since', trans.__('Time since start')]
    ];
    const select = make(
      'select',
      'times',
      {},
      ...names.map(([times, name]) => new Option(name, times))
    );
    select.setAttribute('aria-label', trans.__('Timestamps'));
    select.addEventListener('change', () => changed({ times: select.value as Times }));
    return select;
  }

  private filter(): HTMLElement {
    const { trans, changed } = this.options;
    const placeholder = trans.__('Only lines with…');
    const input = make('input', 'filter', { type: 'search', placeholder });
    input.setAttribute('aria-label', trans.__('Show only lines with this text'));
    let timer: ReturnType<typeof setTimeout> | undefined;
    input.addEventListener('input', () => {
      clearTimeout(timer);
      timer = setTimeout(() => changed({ filter: input.value }), PAUSE);
    });
    return input;
  }
}

/** A button that leaves the text that it copies selected. */
function copier(label: string, caption: string, pressed: () => void): HTMLButtonElement {
  const element = button(label, caption, pressed);
  element.addEventListener('mousedown', event => event.preventDefault());
  return element;
}
