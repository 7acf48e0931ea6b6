import type { Columns } from '../view/columns';
import type { Pane } from '../view/pane';

import type { Finder } from './finder';

type Move = (pane: Pane) => void;

// What keys do while the lines have the focus.
const MOVES: Readonly<Record<string, Move>> = {
  ArrowUp: pane => pane.move(-1),
  ArrowDown: pane => pane.move(1),
  PageUp: pane => pane.move(-pane.page),
  PageDown: pane => pane.move(pane.page),
  ' ': pane => pane.move(pane.page),
  Home: pane => pane.move(-Infinity),
  End: pane => pane.move(Infinity),
  f: pane => pane.follow(!pane.following),
  Escape: pane => pane.unmark()
};

const SHIFTED: Readonly<Record<string, Move>> = {
  ArrowUp: pane => pane.extend(-1),
  ArrowDown: pane => pane.extend(1)
};

export interface KeyOptions {
  readonly columns: Columns;
  readonly finder: Finder;
  readonly copy: () => void;
  readonly copyLink: () => void;
}

/** Performs the action of a key, and keeps the event from the rest of the page. */
export function keys(event: KeyboardEvent, options: KeyOptions): void {
  const action = bound(event, options);
  if (action) {
    event.preventDefault();
    event.stopPropagation();
    action();
  }
}

function bound(event: KeyboardEvent, options: KeyOptions): (() => void) | null {
  const { columns, finder, copy, copyLink } = options;
  const { key, shiftKey } = event;
  if (key === 'F3') {
    return () => finder.step(shiftKey ? -1 : 1);
  }
  if ((event.ctrlKey || event.metaKey) && key === 'f') {
    return () => finder.open();
  }
  const pane = columns.active;
  if (!pane || event.target !== pane.scroller || event.altKey) {
    return null;
  }
  if (event.ctrlKey || event.metaKey) {
    const text = document.getSelection()?.isCollapsed === false; // the browser copies that
    return key === 'c' && !text && columns.picked ? copy : null;
  }
  const own = { '/': () => finder.open(), c: copy, l: copyLink }[key];
  if (own) {
    return own;
  }
  const move = (shiftKey ? SHIFTED : MOVES)[key];
  return move ? () => move(pane) : null;
}
