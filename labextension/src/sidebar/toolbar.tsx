/** Above the list: its title and buttons, the search, the order and the selection. */

import { useRef } from 'react';

import { SORTS, type Sort } from '../model/groups';
import type { Job } from '../model/record';

import { type IconName, usePage } from './context';

interface ButtonProps {
  readonly icon: IconName;
  readonly label: string;
  readonly pressed?: boolean;
  readonly disabled?: boolean;
  readonly onClick: () => void;
}

/** A button that shows an icon, with its label as a tooltip and for screen readers. */
export function IconButton({ icon, label, pressed, disabled, onClick }: ButtonProps) {
  const page = usePage();
  return (
    <button
      className="jp-nbtorchjob-jobs-icon-button"
      title={label}
      aria-label={label}
      aria-pressed={pressed}
      disabled={disabled}
      onClick={onClick}
    >
      {page.icon(icon)}
    </button>
  );
}

interface ToolbarProps {
  readonly onlyNotebook: boolean;
  /** Whether a notebook is open that the list can be limited to. */
  readonly notebookOpen: boolean;
  readonly onOnlyNotebook: (only: boolean) => void;
  /** The listed jobs that have ended. */
  readonly ended: readonly Job[];
}

export function Toolbar({ onlyNotebook, notebookOpen, onOnlyNotebook, ended }: ToolbarProps) {
  const { deleteAll, offers, refresh, start, trans } = usePage();
  return (
    <div className="jp-nbtorchjob-jobs-toolbar">
      <h2>{trans.__('Torch jobs')}</h2>
      <IconButton
        icon="notebook"
        label={trans.__('Only jobs of the active notebook')}
        pressed={onlyNotebook}
        disabled={!notebookOpen && !onlyNotebook}
        onClick={() => onOnlyNotebook(!onlyNotebook)}
      />
      {offers('openPanel') && (
        <IconButton
          icon="openPanel"
          label={trans.__('Open the options panel in the notebook')}
          onClick={() => start('openPanel')}
        />
      )}
      <IconButton
        icon="deleteEnded"
        label={trans.__('Delete all listed jobs that have ended')}
        disabled={ended.length === 0}
        onClick={() => deleteAll(ended)}
      />
      <IconButton icon="refresh" label={trans.__('Refresh')} onClick={refresh} />
    </div>
  );
}

interface SearchProps {
  readonly text: string;
  /** How many jobs the search finds. */
  readonly count: number;
  readonly onText: (text: string) => void;
}

export function SearchField({ text, count, onText }: SearchProps) {
  const { trans } = usePage();
  const input = useRef<HTMLInputElement>(null);
  const clear = () => {
    onText('');
    input.current?.focus(); // the button goes
  };
  const result = text ? trans._n('%1 job found', '%1 jobs found', count) : '';
  return (
    <div className="jp-nbtorchjob-jobs-searched">
      <input
        ref={input}
        value={text}
        placeholder={trans.__('Search jobs')}
        aria-label={trans.__('Search jobs by name, notebook, place, status, note or #tag')}
        spellCheck={false}
        onChange={event => onText(event.target.value)}
        onKeyDown={event => event.key === 'Escape' && onText('')}
      />
      {text && <IconButton icon="clear" label={trans.__('Clear the search')} onClick={clear} />}
      <span className="jp-nbtorchjob-jobs-found" role="status">
        {result}
      </span>
    </div>
  );
}

interface SortProps {
  readonly sort: Sort;
  readonly onSort: (sort: Sort) => void;
}

export function SortField({ sort, onSort }: SortProps) {
  const { trans } = usePage();
  const words: Record<Sort, string> = {
    state: trans.__('By state'),
    start: trans.__('By start'),
    name: trans.__('By name'),
    duration: trans.__('By duration')
  };
  return (
    <select
      className="jp-nbtorchjob-jobs-sort"
      value={sort}
      title={trans.__('Order of the jobs')}
      aria-label={trans.__('Order of the jobs')}
      onChange={({ target }) => onSort(SORTS[target.selectedIndex] ?? 'state')}
    >
      {SORTS.map(order => (
        <option key={order} value={order}>
          {words[order]}
        </option>
      ))}
    </select>
  );
}

interface SelectionProps {
  /** The oldest first: the others are compared with it. */
  readonly selected: readonly Job[];
  readonly onClear: () => void;
}

/** How many jobs are selected, and the actions on them. */
export function Selection({ selected, onClear }: SelectionProps) {
  const { comparable, compare, trans } = usePage();
  return (
    <div className="jp-nbtorchjob-jobs-selection">
      <span role="status">{trans._n('%1 job selected', '%1 jobs selected', selected.length)}</span>
      <button
        className="jp-nbtorchjob-jobs-button"
        title={trans.__('Their curves in one chart, and how their options and code differ')}
        disabled={!comparable(selected)}
        onClick={() => compare(selected)}
      >
        {trans.__('Compare')}
      </button>
      <button className="jp-nbtorchjob-jobs-button" onClick={onClear}>
        {trans.__('Clear')}
      </button>
    </div>
  );
}
