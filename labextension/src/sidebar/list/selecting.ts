/** Which jobs are selected (pure). */

import type { MouseEvent } from 'react';

import type { Row } from './layout';

/** The ids of jobs. */
export type Selected = ReadonlySet<string>;

/** Whether a click selects and opens nothing, as in JupyterLab's file browser. */
export function selects({ ctrlKey, metaKey, shiftKey }: MouseEvent): boolean {
  return ctrlKey || metaKey || shiftKey;
}

/** The selection without a job that was selected, or with one that wasn't. */
export function toggled(selected: Selected, id: string): Selected {
  const after = new Set(selected);
  if (!after.delete(id)) {
    after.add(id);
  }
  return after;
}

/** The selection with all jobs from one row to another added. */
export function ranged(
  selected: Selected,
  rows: readonly Row[],
  from: number,
  to: number
): Selected {
  const between = rows.slice(Math.max(0, Math.min(from, to)), Math.max(from, to) + 1);
  return new Set([...selected, ...between.filter(row => row.kind === 'job').map(row => row.key)]);
}
