import { describe, expect, it } from 'vitest';

import type { Phase } from '../src/record';
import { ending, quick } from '../src/sidebar/actions';
import { type GroupName, groupOf, grouped, matches, wordsOf } from '../src/sidebar/groups';
import {
  GROUP_HEIGHT,
  JOB_HEIGHT,
  anchored,
  flatten,
  inView,
  indexOf,
  meant,
  moved,
  shown
} from '../src/sidebar/rows';
import { budgets, details, gist, origin, progress } from '../src/sidebar/words';
import { duration, shape, status } from '../src/words';

import { aJob, english } from './jobs';

const ANY = { text: '', notebook: null };
const NONE_CLOSED: ReadonlySet<GroupName> = new Set();

/** As many jobs that run, the newest with the highest number. */
function running(count: number) {
  return Array.from({ length: count }, (_, n) => aJob({ id: `local:job-${n}`, created: n }));
}

describe('groups', () => {
  it('are in order, newest first, and only those that have jobs', () => {
    const jobs = [
      aJob({ id: 'a', phase: 'FAILED' }),
      aJob({ id: 'b', created: 1 }),
      aJob({ id: 'c', created: 2 }),
      aJob({ id: 'd', phase: 'SUBMITTED' })
    ];

    const found = grouped(jobs, ANY).map(({ name, jobs }) => [name, jobs.map(job => job.id)]);

    expect(found).toEqual([
      ['running', ['c', 'b']],
      ['waiting', ['d']],
      ['failed', ['a']]
    ]);
  });

  it.each([
    ['SUBMITTED', 'SUBMITTED', 'waiting'],
    ['PENDING', 'PENDING', 'waiting'],
    ['RUNNING', 'SUSPENDED', 'waiting'],
    ['RUNNING', 'CANCELLING', 'running'],
    ['CANCELLED', 'CANCELLED', 'cancelled']
  ] as [Phase, string, GroupName][])('%s that is %s is %s', (phase, word, group) => {
    expect(groupOf(aJob({ phase, status: word }))).toBe(group);
  });

  it('hold the jobs of one notebook where only those are wanted', () => {
    const jobs = [aJob({ id: 'a', notebook: 'x.ipynb' }), aJob({ id: 'b', notebook: '' })];

    expect(grouped(jobs, { text: '', notebook: 'x.ipynb' })[0]?.jobs).toEqual([jobs[0]]);
    expect(grouped(jobs, { text: '', notebook: 'y.ipynb' })).toEqual([]);
  });
});

describe('a search', () => {
  const job = aJob({
    id: 'local:bert-3',
    label: 'train(lr=0.1)',
    where: 'kubernetes: pytorchjob in ml'
  });

  it.each([
    ['', true],
    ['BERT', true],
    ['lr=0.1', true],
    ['train.ipynb', true],
    ['ml pytorchjob', true],
    ['running bert', true],
    ['bert gpt', false]
  ])('for %j finds it: %s', (text, found) => {
    expect(matches(job, wordsOf(text))).toBe(found);
  });
});

describe('rows', () => {
  const jobs = [...running(3), aJob({ id: 'local:bad', phase: 'FAILED' })];
  const layout = flatten(grouped(jobs, ANY), NONE_CLOSED);

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

  it('leave out the jobs of a closed group', () => {
    const { rows } = flatten(grouped(jobs, ANY), new Set(['running'] as const));

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

describe('the view', () => {
  const layout = flatten(grouped(running(5000), ANY), NONE_CLOSED);

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
    const more = flatten(grouped(running(5002), ANY), NONE_CLOSED);

    expect(anchored(layout, more, 1000)).toBe(1000 + 2 * JOB_HEIGHT);
    expect(anchored(layout, more, 0)).toBe(0);
    expect(anchored(layout, flatten([], NONE_CLOSED), 1000)).toBe(1000);
  });

  it('follows no job to another group', () => {
    const [first, ...others] = running(10).reverse();
    const before = flatten(grouped([first!, ...others], ANY), NONE_CLOSED);
    const failed = aJob({ ...first!, phase: 'FAILED', status: 'FAILED' });
    const after = flatten(grouped([failed, ...others], ANY), NONE_CLOSED);

    expect(anchored(before, after, GROUP_HEIGHT + 10)).toBe(GROUP_HEIGHT + 10 - JOB_HEIGHT);
  });
});

describe('keys', () => {
  const layout = flatten(grouped(running(50), ANY), NONE_CLOSED);
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

describe('actions', () => {
  it('cancel what runs and delete what has ended', () => {
    const done = aJob({ phase: 'SUCCEEDED' });

    expect([ending(aJob()), ending(done)]).toEqual(['cancel', 'delete']);
    expect(quick(aJob())).toContain('cancel');
    expect(quick(done)).not.toContain('cancel');
  });
});

describe('words', () => {
  it.each([
    [-1, '0.0 s'],
    [4.24, '4.2 s'],
    [9.96, '10 s'],
    [59.4, '59 s'],
    [59.9, '1 min 00 s'],
    [200, '3 min 20 s'],
    [7500, '2 h 05 min'],
    [273_600, '3 d 4 h']
  ])('tell %d seconds as %s', (seconds, words) => {
    expect(duration(seconds, english)).toBe(words);
  });

  it.each([
    [{}, '2 nodes × 4 ranks'],
    [{ nodes: { asked: [1, 1], now: 1 }, nproc_per_node: 1 }, '1 node × 1 rank'],
    [{ nodes: { asked: [2, 2], now: 1 } }, '1 of 2 nodes × 4 ranks'],
    [{ nodes: { asked: [1, 4], now: 2 } }, '2 of 1–4 nodes × 4 ranks'],
    [{ nodes: { asked: [1, 4], now: 0 }, phase: 'FAILED' }, '1–4 nodes × 4 ranks']
  ] as [Parameters<typeof aJob>[0], string][])('tell the shape of %j', (given, words) => {
    expect(shape(aJob(given), english)).toBe(words);
  });

  it('tell budgets, also without an end', () => {
    const entries = [
      ['failures', { used: 1, limit: 2 }],
      ['preemptions', { used: 4, limit: null }]
    ] as const;

    expect(budgets(entries, english)).toBe('failures 1/2 · preemptions 4/∞');
  });

  it('tell progress as far as it is known', () => {
    const epoch = { unit: 'epoch', done: 3, total: 20, left: 130 };

    expect(progress(epoch, english)).toBe('epoch 3 of 20 · 2 min 10 s left');
    expect(progress({ ...epoch, total: null, left: null }, english)).toBe('epoch 3');
  });

  it('tell an unknown status as the server does', () => {
    expect(status(aJob({ status: 'CANCELLING' }), english)).toBe('Cancelling');
    expect(status(aJob({ status: 'NEW' }), english)).toBe('NEW');
  });

  it('put first what matters most', () => {
    const failed = aJob({
      phase: 'FAILED',
      failure: 'rank 1: ValueError: no',
      pending: ['no room']
    });
    const waiting = aJob({ phase: 'PENDING', pending: ['no GPU is free', 'and more'] });

    expect(gist(failed, english)).toMatch(/^rank 1: ValueError: no · 2 nodes/);
    expect(gist(failed, english)).not.toContain('no room');
    expect(gist(waiting, english)).toMatch(/^no GPU is free · 2 nodes/);
    expect(gist(aJob(), english)).toBe('2 nodes × 4 ranks · local');
  });

  it.each([
    ['train.ipynb', {}],
    ['cell', { notebook: '' }],
    ['train(lr=0.1)', { label: 'train(lr=0.1)' }]
  ])('say once what was run or where: %s', (words, given) => {
    const job = aJob(given);

    expect(origin(job)).toBe(words);
    expect(gist(job, english).includes('train.ipynb')).toBe(words === 'train(lr=0.1)');
  });

  it('leave out budgets that nothing was drawn from, but in the tooltip', () => {
    const job = aJob({ budgets: { failures: { used: 0, limit: 3 } } });

    expect(gist(job, english)).not.toContain('failures');
    expect(details(job, english)).toContain('\nfailures 0/3\n');
    expect(details(job, english)).toContain('\ncell c0ffee\n');
  });
});
