/** A choice that is kept in the browser, like the sidebar's width. */

import { useState } from 'react';

/** The last choice, or else `fallback`, and a function that changes it. */
export function useKept(name: string, fallback: string): [string, (chosen: string) => void] {
  const key = `nbtorchjob:${name}`;
  const [value, setValue] = useState(() => recall(key) ?? fallback);
  const choose = (chosen: string) => {
    setValue(chosen);
    keep(key, chosen);
  };
  return [value, choose];
}

// Some browsers refuse storage in private windows and embedded pages: nothing is remembered there.

function recall(key: string): string | null {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

function keep(key: string, value: string): void {
  try {
    localStorage.setItem(key, value);
  } catch {
    // as above
  }
}
