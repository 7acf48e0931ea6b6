import type { Columns } from '../view/columns';
import type { Pane } from '../view/pane';

import type { Finder } from './finder';

type Move = (pane: Pane) => void;

// What a key does with the lines that have the focus.
const MOVES: Readonly<Record<string, Move>> = {
  ArrowUp: pane => pane.move(-1),
  ArrowDown: pane => pane.move(1),
  PageUp: pane => pane.move(-pane.page),
  PageDown: pane => pane.move(pane.page),
  ' ': pane => pane.move(pane.page),
  Home: pane => pane.move(-Infinity),
  End: pane => pane.move(Infinity),
  f: pane => pane.follow(!pane.following)
};

/** Does what a key is for, and keeps it from the page. */
export function keys(event: KeyboardEvent, columns: Columns, finder: Finder): void {
  const action = bound(event, columns, finder);
  if (action) {
    event.preventDefault();
    event.stopPropagation();
    action();
  }
}

function bound(event: KeyboardEvent, columns: Columns, finder: Finder): (() => void) | null {
  const { key, shiftKey } = event;
  if (key === 'F3') {
    return () => finder.step(shiftKey ? -1 : 1);
  }
  if ((event.ctrlKey || event.metaKey) && key === 'f') {
    return () => finder.open();
  }
  const pane = columns.active;
  if (!pane || event.target !== pane.scroller || event.ctrlKey || event.metaKey || event.altKey) {
    return null;
  }
  if (key === '/') {
    return () => finder.open();
  }
  const move = shiftKey ? undefined : MOVES[key];
  return move ? () => move(pane) : null;
}
