import { describe, expect, it } from 'vitest';

import { type GroupName, grouped, ordered } from '../../../src/model/groups';
import {
  GROUP_HEIGHT,
  JOB_HEIGHT,
  USE_HEIGHT,
  anchored,
  flatten,
  inView,
  indexOf,
  levelOf,
  meant,
  moved,
  shown
} from '../../../src/sidebar/list/layout';

import { aJob, aRun } from '../../jobs';

const ANY = { text: '', notebook: null };
const NONE_CLOSED: ReadonlySet<GroupName> = new Set();

/** As many jobs that run, the newest with the highest number. */
function running(count: number) {
  return Array.from({ length: count }, (_, n) => aJob({ id: `local:job-${n}`, created: n }));
}

describe('rows', () => {
  const jobs = [...running(3), aJob({ id: 'local:bad', phase: 'FAILED' })];
  const layout = flatten(grouped(ordered(jobs), ANY), NONE_CLOSED);

  it('are a heading a group and its jobs, one below the other', () => {
    expect(layout.rows.map(row => row.key)).toEqual([
      'running',
      'local:job-2',
      'local:job-1',
      'local:job-0',
      'failed',
      'local:bad'
    ]);
    expect(layout.tops[2]).toBe(GROUP_HEIGHT + JOB_HEIGHT);
    expect(layout.tops[6]).toBe(2 * GROUP_HEIGHT + 4 * JOB_HEIGHT);
  });

  it('are higher where there are strips of what nodes use', () => {
    const uses = [0, 1].map(node => ({ node, strips: [] }));
    const { tops } = flatten(grouped([aJob({ uses })], ANY), NONE_CLOSED);

    expect(tops[2]).toBe(GROUP_HEIGHT + JOB_HEIGHT + 2 * USE_HEIGHT);
  });

  it('are jobs alone in an order that has no groups', () => {
    const flat = flatten(grouped(ordered(jobs), ANY, 'start'), new Set(['running'] as const));

    expect(flat.rows.map(row => row.kind)).toEqual(['job', 'job', 'job', 'job']);
    expect(moved('ArrowLeft', flat, 2, 500)).toBeNull();
  });

  it('leave out the jobs of a closed group', () => {
    const { rows } = flatten(grouped(ordered(jobs), ANY), new Set(['running'] as const));

    expect(rows.map(row => row.key)).toEqual(['running', 'failed', 'local:bad']);
    expect(rows[0]).toMatchObject({ count: 3, open: false });
  });

  it('say where a job is in its group', () => {
    expect(layout.rows[2]).toMatchObject({ position: 2, size: 3 });
  });

  it('are found again where they went, or where they were', () => {
    expect(indexOf(layout.rows, { key: 'failed', index: 0 })).toBe(4);
    expect(indexOf(layout.rows, { key: 'gone', index: 2 })).toBe(2);
    expect(indexOf(layout.rows, { key: 'gone', index: 99 })).toBe(5);
    expect(indexOf([], { key: '', index: 0 })).toBe(-1);
  });
});

describe('runs of a group', () => {
  const groups = grouped(ordered([aRun(1), aRun(2), ...running(1)]), ANY);
  const id = 'runs:local/sweep';
  const fold = flatten(groups, NONE_CLOSED);
  const open = flatten(groups, NONE_CLOSED, new Set([id]));

  it('are one row, and when it is unfolded one each below it', () => {
    expect(fold.rows.map(row => row.key)).toEqual(['running', id, 'local:job-0']);
    expect(open.rows.map(row => [row.key, levelOf(row)])).toEqual([
      ['running', 1],
      [id, 2],
      ['local:sweep-r1', 3],
      ['local:sweep-r2', 3],
      ['local:job-0', 2]
    ]);
    expect(open.rows[3]).toMatchObject({ position: 2, size: 2 });
    expect(fold.rows[0]).toMatchObject({ count: 2 });
  });

  it('are led to and from by keys', () => {
    const [row, run] = [open.rows[1]!, open.rows[3]!];

    expect(moved('ArrowLeft', open, 3, 500)).toBe(1);
    expect([moved('ArrowLeft', open, 1, 500), meant('ArrowLeft', row)]).toEqual([null, 'open']);
    expect(moved('ArrowLeft', fold, 1, 500)).toBe(0);
    expect(meant('ArrowRight', fold.rows[1]!)).toBe('open');
    expect([meant('Delete', row), meant(' ', row), meant(' ', run)]).toEqual([
      'end',
      null,
      'select'
    ]);
  });
});

describe('the view', () => {
  const layout = flatten(grouped(ordered(running(5000)), ANY), NONE_CLOSED);

  it('touches the rows that it shows, and some more', () => {
    expect(inView(layout, 0, 100, 0)).toEqual([0, 3]);
    expect(inView(layout, GROUP_HEIGHT, JOB_HEIGHT, 0)).toEqual([1, 2]);
    expect(inView(layout, GROUP_HEIGHT + 1, JOB_HEIGHT, 0)).toEqual([1, 3]);
    expect(inView(layout, GROUP_HEIGHT + 100 * JOB_HEIGHT, 2 * JOB_HEIGHT, 4)).toEqual([97, 107]);
  });

  it('ends with the last row', () => {
    expect(inView(layout, 1e9, 500, 2)).toEqual([4998, 5001]);
  });

  it('has none while it is hidden, or empty', () => {
    expect(inView(layout, 0, 0)).toEqual([0, 0]);
    expect(inView(flatten([], NONE_CLOSED), 0, 500)).toEqual([0, 0]);
  });

  it('is scrolled as little as it takes to show a row', () => {
    const top = GROUP_HEIGHT + 9 * JOB_HEIGHT;

    expect(shown(layout, 10, top - 100, 500)).toBe(top - 100);
    expect(shown(layout, 10, top + 20, 500)).toBe(top);
    expect(shown(layout, 10, 0, 100)).toBe(top + JOB_HEIGHT - 100);
  });

  it('stays on what it shows when jobs come above', () => {
    const more = flatten(grouped(ordered(running(5002)), ANY), NONE_CLOSED);

    expect(anchored(layout, more, 1000)).toBe(1000 + 2 * JOB_HEIGHT);
    expect(anchored(layout, more, 0)).toBe(0);
    expect(anchored(layout, flatten([], NONE_CLOSED), 1000)).toBe(1000);
  });

  it('follows no job to another group', () => {
    const [first, ...others] = running(10).reverse();
    const before = flatten(grouped(ordered([first!, ...others]), ANY), NONE_CLOSED);
    const failed = aJob({ ...first!, phase: 'FAILED', status: 'FAILED' });
    const after = flatten(grouped(ordered([failed, ...others]), ANY), NONE_CLOSED);

    expect(anchored(before, after, GROUP_HEIGHT + 10)).toBe(GROUP_HEIGHT + 10 - JOB_HEIGHT);
  });
});

describe('keys', () => {
  const layout = flatten(grouped(ordered(running(50)), ANY), NONE_CLOSED);
  const [group, job] = layout.rows;

  it.each([
    ['ArrowDown', 0, 1],
    ['ArrowDown', 50, 50],
    ['ArrowUp', 1, 0],
    ['ArrowUp', 0, 0],
    ['Home', 20, 0],
    ['End', 20, 50],
    ['PageDown', 1, 10],
    ['PageDown', 50, 50],
    ['PageUp', 50, 41],
    ['PageUp', 1, 0],
    ['ArrowLeft', 30, 0],
    ['ArrowLeft', 0, null],
    ['ArrowRight', 0, 1],
    ['ArrowRight', 1, null],
    ['a', 1, null]
  ])('%s leads from row %i to %j', (key, from, to) => {
    expect(moved(key, layout, from, 10 * JOB_HEIGHT)).toBe(to);
  });

  it('open and end what they are pressed on', () => {
    expect(['Enter', 'Delete', 'x'].map(key => meant(key, job!))).toEqual(['open', 'end', null]);
    expect(['Enter', 'ArrowLeft', 'ArrowRight'].map(key => meant(key, group!))).toEqual([
      'open',
      'open',
      null
    ]);
  });
});
