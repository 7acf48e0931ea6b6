/** The jobs as a list that renders only what is in view, for mouse and keyboard. */

import { type KeyboardEvent, type MouseEvent, useId, useRef, useState } from 'react';

import { type Verb, ending } from '../../commands/verbs';
import type { Listed } from '../../model/runs';
import { usePage } from '../context';

import {
  type GroupRow,
  type Layout,
  type Row,
  type RunsRow,
  type Spot,
  heightOf,
  inView,
  indexOf,
  levelOf,
  meant,
  moved,
  shown
} from './layout';
import { GroupCells, JobCells, RunsCells, isHeaded } from './row';
import { type Selected, ranged, selects, toggled } from './selecting';
import { useAnchor, useViewport } from './viewport';
import { type Wanted, useWanted } from './wanted';

interface ListProps {
  readonly layout: Layout;
  readonly destination: Wanted | null;
  readonly onToggle: Toggle;
  readonly selected: Selected;
  readonly onSelect: Select;
}

type Toggle = (row: GroupRow | RunsRow) => void;

type Select = (change: (selected: Selected) => Selected) => void;

export function JobList({ layout, destination, onToggle, selected, onSelect }: ListProps) {
  const { trans } = usePage();
  const actions = useRowActions(onToggle, onSelect);
  const { rows, tops } = layout;
  const view = useRef<HTMLDivElement>(null);
  const { scrollTop, height } = useViewport(view);
  const [spot, setSpot] = useState<Spot>({ key: '', index: 0 });
  const prefix = useId();
  useAnchor(view, layout);

  const active = indexOf(rows, spot);
  const row = rows[active];
  const [first, end] = inView(layout, scrollTop, height);
  const point = (index: number) => setSpot({ key: rows[index]?.key ?? '', index });
  const reveal = (index: number) =>
    view.current?.scrollTo({ top: shown(layout, index, view.current.scrollTop, height) });
  useWanted(destination, rows, index => {
    point(index);
    reveal(index);
  });
  const pick = (index: number) => {
    if (destination) {
      destination.met = true; // a user who went elsewhere isn't taken back
    }
    view.current?.focus({ preventScroll: true });
    point(index);
  };
  const go = (index: number) => {
    pick(index);
    reveal(index);
  };
  /** Selects all jobs from the active row to this one if `range`, else toggles this row's job. */
  const selectTo = (index: number, range: boolean) => {
    if (range) {
      onSelect(now => ranged(now, rows, active, index));
    } else {
      actions.select(rows[index]);
      pick(index);
    }
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const target = moved(event.key, layout, active, height);
    const action = row && meant(event.key, row);
    if (event.shiftKey && target !== null) {
      onSelect(now => ranged(now, rows, active, target));
    }
    if (event.ctrlKey || event.metaKey || event.altKey || (target === null && !action)) {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
    if (target !== null) {
      go(target);
    } else if (row && action) {
      actions[action](row);
    }
  };
  const onContextMenu = (event: MouseEvent) => {
    const { left, top } = event.currentTarget.getBoundingClientRect();
    actions.menu(event, row, left, top + (tops[active + 1] ?? 0) - scrollTop);
  };
  return (
    <div
      ref={view}
      className="jp-nbtorchjob-jobs-list"
      role="treegrid"
      aria-label={trans.__('Torch jobs')}
      aria-rowcount={rows.length}
      aria-multiselectable
      data-selecting={selected.size > 0 || undefined}
      // It can refer only to a row that is rendered.
      aria-activedescendant={row && first <= active && active < end ? prefix + row.key : undefined}
      tabIndex={0}
      onKeyDown={onKeyDown}
      onContextMenu={onContextMenu}
    >
      <div role="presentation" style={{ height: tops[rows.length] }}>
        {rows.slice(first, end).map((row, offset) => (
          <RowBox
            key={row.key}
            id={prefix + row.key}
            row={row}
            index={first + offset}
            top={tops[first + offset] ?? 0}
            active={first + offset === active}
            selected={selected.has(row.key)}
            actions={actions}
            onPick={pick}
            onSelect={selectTo}
            onCheck={onSelect}
          />
        ))}
      </div>
    </div>
  );
}

type RowActions = ReturnType<typeof useRowActions>;

/** The actions on a row, for mouse and keyboard alike. */
function useRowActions(onToggle: Toggle, onSelect: Select) {
  const { can, menu, run } = usePage();
  const act = (verb: Verb, listed: Listed) => {
    if (can(verb, listed)) {
      run(verb, listed);
    }
  };
  return {
    open: (row: Row) => (row.kind === 'job' ? act('logs', row.job) : onToggle(row)),
    select: (row: Row | undefined) => row?.kind === 'job' && onSelect(now => toggled(now, row.key)),
    clear: () => onSelect(() => new Set()),
    end: (row: Row) => {
      const listed = listedBy(row);
      if (listed) {
        act(ending(listed), listed);
      }
    },
    menu: (event: MouseEvent, row: Row | undefined, x: number, y: number) => {
      event.stopPropagation();
      event.preventDefault();
      const listed = row && listedBy(row);
      if (listed) {
        menu(listed, x, y);
      }
    }
  };
}

function listedBy(row: Row): Listed | null {
  return row.kind === 'group' ? null : row.kind === 'job' ? row.job : row.runs;
}

interface RowProps {
  readonly id: string;
  readonly row: Row;
  readonly index: number;
  readonly top: number;
  readonly active: boolean;
  readonly actions: RowActions;
  readonly selected: boolean;
  readonly onPick: (index: number) => void;
  readonly onSelect: (index: number, range: boolean) => void;
  readonly onCheck: Select;
}

function RowBox(props: RowProps) {
  const { id, row, index, top, active, selected, actions, onPick, onSelect, onCheck } = props;
  const onMouseDown = (event: MouseEvent) => {
    event.preventDefault(); // pressing a button must not take the focus from the list
    if (!selects(event)) {
      onPick(index);
    }
  };
  const onClick = (event: MouseEvent) => {
    if (selects(event)) {
      onSelect(index, event.shiftKey);
    } else {
      actions.open(row);
    }
  };
  const [hovered, setHovered] = useState(false);
  return (
    <div
      id={id}
      className={`jp-nbtorchjob-jobs-row jp-nbtorchjob-jobs-${row.kind}`}
      style={{ top, height: heightOf(row) }}
      role="row"
      aria-rowindex={index + 1}
      data-active={active || undefined}
      data-folded={(row.kind === 'job' && row.parent?.kind === 'runs') || undefined}
      onMouseEnter={() => setHovered(true)}
      onMouseLeave={() => setHovered(false)}
      onMouseDown={onMouseDown}
      onContextMenu={event => actions.menu(event, row, event.clientX, event.clientY)}
      onClick={onClick}
      aria-selected={row.kind === 'job' ? selected : undefined}
      {...placeOf(row)}
    >
      {row.kind === 'group' ? (
        <GroupCells row={row} />
      ) : row.kind === 'runs' ? (
        <RunsCells
          runs={row.runs}
          open={row.open}
          pointed={hovered || active}
          headed={isHeaded(row)}
        />
      ) : (
        <JobCells
          job={row.job}
          pointed={hovered || active}
          selected={selected}
          headed={isHeaded(row)}
          onCheck={onCheck}
        />
      )}
    </div>
  );
}

/** A row's place in the tree, for screen readers: only part of the tree is rendered. */
function placeOf(row: Row): object {
  return {
    'aria-level': levelOf(row),
    ...(row.kind !== 'job' && { 'aria-expanded': row.open }),
    ...(row.kind !== 'group' && { 'aria-posinset': row.position, 'aria-setsize': row.size })
  };
}
