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
  destination: Wanted | null,
  rows: readonly Row[],
  go: (index: number) => void
): void {
  useEffect(() => {
    const index =
      destination && !destination.met ? rows.findIndex(row => row.key === destination.id) : -1;
    if (destination && index >= 0) {
      destination.met = true;
      go(index);
    }
  });
}
