/** A job that the list is to go to. */

import { useEffect } from 'react';

import type { Row } from './layout';

/** Not `met` until the list has gone to the job's row, or the user went elsewhere. */
export interface Wanted {
  readonly id: string;
  met: boolean;
}

/** Goes to the row of a wanted job, once, as soon as it is there. */
export function useWanted(
  wanted: Wanted | null,
  rows: readonly Row[],
  go: (index: number) => void
): void {
  useEffect(() => {
    const index = wanted && !wanted.met ? rows.findIndex(row => row.key === wanted.id) : -1;
    if (wanted && index >= 0) {
      wanted.met = true;
      go(index);
    }
  });
}
