import { describe, expect, it } from 'vitest';

import {
  JOBS_SCHEMA,
  applied,
  endedBetween,
  stalledBetween,
  isChange
} from '../../src/model/changes';

import { aJob } from '../jobs';

const [a, b, c] = ['a', 'b', 'c'].map(id => aJob({ id }));
const known = new Map([a!, b!].map(job => [job.id, job]));

describe('an answer', () => {
  const told = { jobs: [], removed: [], unseen: [], whole: false };

  it('keeps the place of jobs that are known and puts new ones last', () => {
    const after = applied(known, { ...told, jobs: [c!, aJob({ id: 'a', elapsed: 200 })] });

    expect([...after.keys()]).toEqual(['a', 'b', 'c']);
    expect(after.get('a')?.elapsed).toBe(200);
    expect(known.get('a')?.elapsed).toBe(100);
  });

  it('puts a job last that has the name of a deleted one', () => {
    const namesake = aJob({ id: 'a', created: a!.created + 1 });

    expect([...applied(known, { ...told, jobs: [namesake] }).keys()]).toEqual(['b', 'a']);
  });

  it('takes away what was removed, and more than once', () => {
    const gone = { ...told, removed: ['a', 'nobody'] };

    expect([...applied(applied(known, gone), gone).keys()]).toEqual(['b']);
  });

  it('leaves nothing else where it is whole', () => {
    expect([...applied(known, { ...told, jobs: [c!], whole: true }).keys()]).toEqual(['c']);
  });
});

describe('a whole answer of a server that has just started', () => {
  it('leaves the jobs where it has seen none', () => {
    const jobs = ['local:a', 'kubernetes:eks/ml/b', 'kubernetes:eks/ml-2/c'].map(id =>
      aJob({ id })
    );
    const before = new Map(jobs.map(job => [job.id, job]));
    const told = { jobs: [], removed: [], whole: true };
    const left = (...unseen: string[]) => [...applied(before, { ...told, unseen }).keys()];

    expect(left('kubernetes:eks/ml/')).toEqual(['kubernetes:eks/ml/b']);
    expect(left('kubernetes:')).toEqual(['kubernetes:eks/ml/b', 'kubernetes:eks/ml-2/c']);
    expect(left()).toEqual([]);
  });
});

describe('an event', () => {
  it('is one of our schema only', () => {
    expect(isChange({ schema_id: JOBS_SCHEMA })).toBe(true);
    expect(isChange({ schema_id: 'https://events.jupyter.org/other' })).toBe(false);
  });
});

describe('jobs that ended', () => {
  it('are those that had not ended before', () => {
    const done = aJob({ id: 'a', phase: 'SUCCEEDED' });
    const after = new Map(
      [done, b!, aJob({ id: 'new', phase: 'FAILED' })].map(job => [job.id, job])
    );

    expect(endedBetween(known, after)).toEqual([done]);
    expect(endedBetween(after, after)).toEqual([]);
    expect(endedBetween(known, new Map())).toEqual([]);
  });

  it('are none that were not seen before, whoever had their name', () => {
    const namesake = aJob({ id: 'a', phase: 'FAILED', created: a!.created + 1 });

    expect(endedBetween(known, new Map([['a', namesake]]))).toEqual([]);
  });
});

describe('jobs that stalled', () => {
  it('are those that were known and had not stalled before', () => {
    const stalled = aJob({ id: 'a', status: 'STALLED' });
    const after = new Map(
      [stalled, aJob({ id: 'new', status: 'STALLED' })].map(job => [job.id, job])
    );

    expect(stalledBetween(known, after)).toEqual([stalled]);
    expect(stalledBetween(after, after)).toEqual([]);
    const hung = aJob({ id: 'a', status: 'HUNG' });
    expect(stalledBetween(after, new Map([['a', hung]]))).toEqual([hung]);
    expect(stalledBetween(new Map([['a', hung]]), after)).toEqual([]);
    const namesake = aJob({ id: 'a', status: 'STALLED', created: a!.created + 1 });
    expect(stalledBetween(known, new Map([['a', namesake]]))).toEqual([]);
  });
});
