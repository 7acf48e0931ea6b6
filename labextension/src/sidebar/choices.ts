/** The user's choices for the list: its order, and which groups are closed. */

import { useMemo } from 'react';

import { GROUPS, type GroupName, SORTS, type Sort } from '../model/groups';

import { useKept } from './kept';

/** The groups that are closed, and a function that closes or opens one. */
export function useClosedGroups(): [ReadonlySet<GroupName>, (group: GroupName) => void] {
  const [text, choose] = useKept('closed-groups', '');
  const closed = useMemo(() => {
    const names = text.split(' ');
    return new Set(GROUPS.filter(name => names.includes(name)));
  }, [text]);
  const toggle = (group: GroupName) => {
    const now = new Set(closed);
    if (!now.delete(group)) {
      now.add(group);
    }
    choose([...now].join(' '));
  };
  return [closed, toggle];
}

/** The order of the list, and a function that chooses another. */
export function useSort(): [Sort, (sort: Sort) => void] {
  const [text, choose] = useKept('sort', 'state');
  return [SORTS.find(sort => sort === text) ?? 'state', choose];
}
