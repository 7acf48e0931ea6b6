import { describe, expect, it } from 'vitest';

import {
  type GroupName,
  groupOf,
  grouped,
  ordered,
  matches,
  wordsOf
} from '../../src/model/groups';
import type { Phase } from '../../src/model/record';

import { aJob, aRun } from '../jobs';

const ANY = { text: '', notebook: null };

describe('groups', () => {
  it('are in order, newest first, and only those that have jobs', () => {
    const jobs = [
      aJob({ id: 'a', phase: 'FAILED' }),
      aJob({ id: 'b', created: 1 }),
      aJob({ id: 'c', created: 2 }),
      aJob({ id: 'd', phase: 'SUBMITTED' })
    ];

    const found = grouped(ordered(jobs), ANY).map(({ name, listed }) => [
      name,
      listed.map(each => each.id)
    ]);

    expect(found).toEqual([
      ['running', ['c', 'b']],
      ['waiting', ['d']],
      ['failed', ['a']]
    ]);
  });

  it('are by duration as their rows say it: the time in which one waited for its turn doesn’t count', () => {
    const created = 1000;
    const jobs = [
      aJob({ id: 'waited', created, started: created + 3600, elapsed: 3660 }),
      aJob({ id: 'longest', created, started: created + 1, elapsed: 600 }),
      aJob({ id: 'waits', created, started: null, elapsed: 300 })
    ];

    const found = ordered(jobs, 'duration').map(({ id }) => id);

    expect(found).toEqual(['longest', 'waits', 'waited']);
  });

  it('have first what somebody should act on', () => {
    const jobs = [
      aJob({ id: 'new', created: 3 }),
      aJob({ id: 'hung', created: 2, status: 'HUNG' }),
      aJob({ id: 'stopped', created: 1, status: 'DEBUGGING' })
    ];

    const [attention, running] = grouped(ordered(jobs), ANY);

    expect(attention?.name).toBe('attention');
    expect(attention?.listed.map(each => each.id)).toEqual(['hung', 'stopped']);
    expect(running?.listed.map(each => each.id)).toEqual(['new']);
  });

  it('have runs first of which one needs somebody', () => {
    const jobs = [aRun(1, { status: 'HUNG' }), aRun(2, { phase: 'SUCCEEDED' }), aJob()];

    const [attention] = grouped(ordered(jobs), ANY);

    expect(attention?.name).toBe('attention');
    expect(attention?.listed.map(each => each.id)).toEqual(['runs:local/sweep']);
  });

  it.each([
    ['start', ['train-10', 'train-9', 'old']],
    ['name', ['old', 'train-9', 'train-10']],
    ['duration', ['train-9', 'old', 'train-10']]
  ] as const)('are none in an order by %s', (sort, order) => {
    const jobs = [
      aJob({ id: 'old', phase: 'FAILED', created: 1, elapsed: 50 }),
      aJob({ id: 'train-9', created: 2, elapsed: 20 }),
      aJob({ id: 'train-10', created: 3, elapsed: 10 })
    ];
    const now: Record<string, number> = { 'train-9': 70 }; // it ran on since the server said so

    const found = grouped(
      ordered(jobs, sort, ({ id, elapsed }) => now[id] ?? elapsed),
      ANY,
      sort
    );

    expect(found.map(({ name, listed }) => [name, listed.map(each => each.id)])).toEqual([
      [null, order]
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

    expect(grouped(ordered(jobs), { text: '', notebook: 'x.ipynb' })[0]?.listed).toEqual([jobs[0]]);
    expect(grouped(ordered(jobs), { text: '', notebook: 'y.ipynb' })).toEqual([]);
  });
});

describe('a search', () => {
  const job = aJob({
    id: 'local:bert-3',
    label: 'train(lr=0.1)',
    where: 'kubernetes: pytorchjob in ml',
    note: 'The one to beat',
    tags: ['v2']
  });

  it.each([
    ['', true],
    ['BERT', true],
    ['lr=0.1', true],
    ['train.ipynb', true],
    ['ml pytorchjob', true],
    ['running bert', true],
    ['to beat #v2', true],
    ['#v1', false],
    ['bert gpt', false]
  ])('for %j finds it: %s', (text, found) => {
    expect(matches(job, wordsOf(text))).toBe(found);
  });
});
