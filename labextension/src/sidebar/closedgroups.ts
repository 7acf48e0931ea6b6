/** Which groups are closed: kept in the browser, as how wide the sidebar is. */

import { useState } from 'react';

import { GROUPS, type GroupName } from '../model/groups';

const KEY = 'nbtorchjob:closed-groups';

/** The groups that are closed, and what closes or opens one. */
export function useClosedGroups(): [ReadonlySet<GroupName>, (group: GroupName) => void] {
  const [closed, setClosed] = useState(recall);
  const toggle = (group: GroupName) => {
    const now = new Set(closed);
    if (!now.delete(group)) {
      now.add(group);
    }
    setClosed(now);
    keep(now);
  };
  return [closed, toggle];
}

// Some browsers refuse storage in private windows and embedded pages: nothing is remembered there.

function recall(): ReadonlySet<GroupName> {
  try {
    const names = (localStorage.getItem(KEY) ?? '').split(' ');
    return new Set(GROUPS.filter(name => names.includes(name)));
  } catch {
    return new Set();
  }
}

function keep(closed: ReadonlySet<GroupName>): void {
  try {
    localStorage.setItem(KEY, [...closed].join(' '));
  } catch {
    // as above
  }
}
