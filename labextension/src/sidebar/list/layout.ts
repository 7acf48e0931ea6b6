/** The list as rows of known heights, and which of them are in view (pure). */

import { type Group, type GroupName, groupOf } from '../../model/groups';
import type { Job } from '../../model/record';
import { type Listed, type Runs, isRuns } from '../../model/runs';

/** In pixels, the same as in `style/sidebar.css`. */
export const GROUP_HEIGHT = 28;
export const JOB_HEIGHT = 46;
/** Added below for each node whose use is shown. */
export const USE_HEIGHT = 16;

export interface GroupRow {
  readonly kind: 'group';
  readonly key: GroupName;
  readonly count: number;
  readonly open: boolean;
}

/** A row below another one, or at the top level. */
interface Placed {
  /** Its place among its siblings, from 1. */
  readonly position: number;
  readonly size: number;
  /** The row that it is folded into; null: none. */
  readonly parent: GroupRow | RunsRow | null;
}

export interface RunsRow extends Placed {
  readonly kind: 'runs';
  /** The runs' id. */
  readonly key: string;
  readonly runs: Runs;
  readonly open: boolean;
}

export interface JobRow extends Placed {
  readonly kind: 'job';
  /** The job's id. */
  readonly key: string;
  readonly job: Job;
}

export type Row = GroupRow | RunsRow | JobRow;

export interface Layout {
  readonly rows: readonly Row[];
  /** Where each row begins, in pixels; one more element: where the last row ends. */
  readonly tops: Float64Array;
}

/** The row that keystrokes go to: its key, and its index in case the row is gone. */
export interface Spot {
  readonly key: string;
  readonly index: number;
}

/** The rows that a list shows: no contents of `closed` groups, and single runs only below `unfolded` ones. */
export function flatten(
  groups: readonly Group[],
  closed: ReadonlySet<GroupName>,
  unfolded: ReadonlySet<string> = new Set()
): Layout {
  const rows: Row[] = [];
  const add = (listed: readonly Listed[], parent: Placed['parent']) =>
    listed.forEach((entry, index) => {
      const placed = { key: entry.id, position: index + 1, size: listed.length, parent };
      if (!isRuns(entry)) {
        rows.push({ kind: 'job', job: entry, ...placed });
        return;
      }
      const row: RunsRow = { kind: 'runs', runs: entry, open: unfolded.has(entry.id), ...placed };
      rows.push(row);
      if (row.open) {
        add(entry.jobs, row);
      }
    });
  for (const { name, listed } of groups) {
    const heading: GroupRow | null = name && {
      kind: 'group',
      key: name,
      count: listed.length,
      open: !closed.has(name)
    };
    if (heading) {
      rows.push(heading);
    }
    if (heading?.open ?? true) {
      add(listed, heading);
    }
  }
  return { rows, tops: topsOf(rows) };
}

/** A row's depth, from 1. */
export function levelOf(row: Row): number {
  const parent = parentOf(row);
  return parent ? levelOf(parent) + 1 : 1;
}

function parentOf(row: Row): Placed['parent'] {
  return row.kind === 'group' ? null : row.parent;
}

function topsOf(rows: readonly Row[]): Float64Array {
  const tops = new Float64Array(rows.length + 1);
  let top = 0;
  rows.forEach((row, index) => {
    top += heightOf(row);
    tops[index + 1] = top;
  });
  return tops;
}

export function heightOf(row: Row): number {
  const uses = row.kind === 'job' ? row.job.uses.length : 0;
  return row.kind === 'group' ? GROUP_HEIGHT : JOB_HEIGHT + USE_HEIGHT * uses;
}

/** The rows that touch the view and `spare` more on each side: the first, and one past the last. */
export function inView(
  { rows, tops }: Layout,
  scrollTop: number,
  height: number,
  spare = 4
): [number, number] {
  if (height <= 0) {
    return [0, 0];
  }
  const first = rowAt(tops, scrollTop);
  const last = rowAt(tops, scrollTop + height - 1);
  return [Math.max(0, first - spare), Math.min(rows.length, last + 1 + spare)];
}

/** The row that covers a pixel, or the nearest. */
function rowAt(tops: Float64Array, y: number): number {
  let low = 0;
  let high = Math.max(0, tops.length - 2);
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if ((tops[middle] ?? 0) <= y) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/** A row's index now, or its previous one if the row is gone; -1 if there are no rows. */
export function indexOf(rows: readonly Row[], spot: Spot): number {
  const index = rows.findIndex(row => row.key === spot.key);
  return index >= 0 ? index : Math.min(spot.index, rows.length - 1);
}

/** The row to which a keystroke moves from a row; null if it moves nowhere. */
export function moved(
  key: string,
  { rows, tops }: Layout,
  index: number,
  height: number
): number | null {
  const last = rows.length - 1;
  const row = rows[index];
  const at = tops[index] ?? 0;
  switch (key) {
    case 'ArrowDown':
      return Math.min(index + 1, last);
    case 'ArrowUp':
      return Math.max(index - 1, 0);
    case 'Home':
      return 0;
    case 'End':
      return last;
    case 'PageDown':
      return Math.max(Math.min(index + 1, last), rowAt(tops, at + height - JOB_HEIGHT));
    case 'PageUp':
      return Math.min(Math.max(index - 1, 0), rowAt(tops, at - height + JOB_HEIGHT));
    case 'ArrowLeft':
      // An open row closes first.
      return row && parentOf(row) && !isOpen(row)
        ? rows.findIndex(other => other === parentOf(row))
        : null;
    case 'ArrowRight':
      return row && isOpen(row) ? Math.min(index + 1, last) : null;
    default:
      return null;
  }
}

function isOpen(row: Row): boolean {
  return row.kind !== 'job' && row.open;
}

/** What a keystroke does: opens or closes a row, selects its job, ends its job or runs, or selects none. */
export function meant(key: string, row: Row): 'open' | 'select' | 'clear' | 'end' | null {
  if (key === 'Escape') {
    return 'clear';
  }
  if (key === 'Delete') {
    return row.kind === 'group' ? null : 'end';
  }
  if (row.kind === 'job') {
    return ({ Enter: 'open', ' ': 'select' } as const)[key] ?? null;
  }
  return key === 'Enter' || key === (row.open ? 'ArrowLeft' : 'ArrowRight') ? 'open' : null;
}

/** Where to scroll a view so that it shows a row; where it is if it does. */
export function shown({ tops }: Layout, index: number, scrollTop: number, height: number): number {
  const top = tops[index] ?? 0;
  const bottom = tops[index + 1] ?? top;
  return Math.min(top, Math.max(scrollTop, bottom - height));
}

/**
 * Where to scroll a view once rows have changed, so that what the user reads stays in place: rows are
 * positioned absolutely, so the browser doesn't anchor them.
 */
export function anchored(before: Layout, after: Layout, scrollTop: number): number {
  if (scrollTop === 0) {
    return 0; // at the top, the user wants to see new rows
  }
  for (let index = rowAt(before.tops, scrollTop); index < before.rows.length; index++) {
    const now = sameRow(before.rows[index], after.rows);
    if (now >= 0) {
      return scrollTop + (after.tops[now] ?? 0) - (before.tops[index] ?? 0);
    }
  }
  return scrollTop;
}

/** A row's index among others; -1 if it is gone or has moved to another group. */
function sameRow(row: Row | undefined, rows: readonly Row[]): number {
  const index = rows.findIndex(other => other.key === row?.key);
  return groupNameOf(rows[index]) === groupNameOf(row) ? index : -1;
}

function groupNameOf(row: Row | undefined): GroupName | undefined {
  if (!row || row.kind === 'group') {
    return row?.key;
  }
  return row.parent ? groupNameOf(row.parent) : groupOf(row.kind === 'job' ? row.job : row.runs);
}
