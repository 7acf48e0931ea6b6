/** The list as rows of known heights, and which of them are in view (pure). */

import { type Group, type GroupName, groupOf } from '../../model/groups';
import type { Job } from '../../model/record';
import { type Listed, type Runs, isRuns } from '../../model/runs';

/** As `style/sidebar.css` has them, in pixels. */
export const GROUP_HEIGHT = 28;
export const JOB_HEIGHT = 46;
/** Of each node whose use is told, below that. */
export const USE_HEIGHT = 16;

export interface GroupRow {
  readonly kind: 'group';
  readonly key: GroupName;
  readonly count: number;
  readonly open: boolean;
}

/** A row below another one, or at the top. */
interface Placed {
  /** Its place among those beside it, from 1. */
  readonly position: number;
  readonly size: number;
  /** What it is folded into; null: nothing. */
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
  /** Where each row begins, in pixels; one more: where the last ends. */
  readonly tops: Float64Array;
}

/** The row that keys go to: its key, and its place for the time when it is gone. */
export interface Spot {
  readonly key: string;
  readonly index: number;
}

/** What of a list is seen: all but what is in `closed` groups, of runs those in `unfolded` ones. */
export function flatten(
  groups: readonly Group[],
  closed: ReadonlySet<GroupName>,
  unfolded: ReadonlySet<string> = new Set()
): Layout {
  const rows: Row[] = [];
  const add = (listed: readonly Listed[], parent: Placed['parent']) =>
    listed.forEach((each, index) => {
      const placed = { key: each.id, position: index + 1, size: listed.length, parent };
      if (!isRuns(each)) {
        rows.push({ kind: 'job', job: each, ...placed });
        return;
      }
      const row: RunsRow = { kind: 'runs', runs: each, open: unfolded.has(each.id), ...placed };
      rows.push(row);
      if (row.open) {
        add(each.jobs, row);
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

/** How deep a row lies, from 1. */
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

/** The rows that touch the view and `spare` more on each side: first, and one past the last. */
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

/** Where a row is now: at its place of before once it is gone; -1 without rows. */
export function indexOf(rows: readonly Row[], spot: Spot): number {
  const found = rows.findIndex(row => row.key === spot.key);
  return found >= 0 ? found : Math.min(spot.index, rows.length - 1);
}

/** Where a key of the keyboard leads from a row; null where it leads nowhere. */
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
      // What is open closes first.
      return row && parentOf(row) && !isOpen(row)
        ? rows.findIndex(each => each === parentOf(row))
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

/** What a key does to a row: opens it (where others are folded into it: closes it, too), selects its job, ends what it stands for, or selects none. */
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

/** What a view must be scrolled to, so that it shows a row; the same where it does. */
export function shown({ tops }: Layout, index: number, scrollTop: number, height: number): number {
  const top = tops[index] ?? 0;
  const bottom = tops[index + 1] ?? top;
  return Math.min(top, Math.max(scrollTop, bottom - height));
}

/**
 * What a view must be scrolled to once rows have changed, so that what is read stays where it is:
 * rows lie at fixed places, so that the browser anchors nothing.
 */
export function anchored(before: Layout, after: Layout, scrollTop: number): number {
  if (scrollTop === 0) {
    return 0; // who is at the top wants to see what comes
  }
  for (let index = rowAt(before.tops, scrollTop); index < before.rows.length; index++) {
    const now = sameRow(before.rows[index], after.rows);
    if (now >= 0) {
      return scrollTop + (after.tops[now] ?? 0) - (before.tops[index] ?? 0);
    }
  }
  return scrollTop;
}

/** Where a row is among others; what went to another group is followed by nobody. */
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
