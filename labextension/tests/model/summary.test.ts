import { describe, expect, it } from 'vitest';

import type { Job } from '../../src/model/record';
import { countsOf, outcomeOf } from '../../src/model/summary';

const put = (text: string, rest: unknown[]) =>
  text.replace(/%(\d)/g, (_, n) => String(rest[n - 1]));
const trans = {
  __: (text: string, ...rest: unknown[]) => put(text, rest),
  _n: (one: string, many: string, n: number) => put(n === 1 ? one : many, [n])
} as unknown as Parameters<typeof countsOf>[1];

const of = (phase: string, more: Partial<Job> = {}) =>
  ({
    ...{ phase, name: 'fox', failure: null, terminal: false, created: 1_700_000_000 },
    ...{ started: null, ...more }
  }) as Job;

describe('the jobs under way', () => {
  it.each([
    [[], ''],
    [[of('SUCCEEDED', { terminal: true })], ''],
    [[of('RUNNING')], '1 torch job running'],
    [[of('RUNNING'), of('RUNNING'), of('FAILED', { terminal: true })], '2 torch jobs running'],
    [[of('PENDING')], '1 torch job waiting'],
    [[of('RUNNING', { status: 'STALLED' })], '1 torch job needs you'],
    [[of('PENDING', { status: 'WAITING' })], '1 torch job needs you'],
    [
      [of('RUNNING'), of('RUNNING', { status: 'STALLED' }), of('PENDING')],
      '1 torch job running, 1 needs you, 1 waiting'
    ],
    [[of('PENDING'), of('SUBMITTED'), of('RUNNING')], '1 torch job running, 2 waiting']
  ])('are counted in words', (jobs, words) => {
    expect(countsOf(jobs, trans)).toBe(words);
  });

  it('are said to run only as far as anybody knows', () => {
    expect(countsOf([of('RUNNING')], trans, true)).toBe(
      '1 torch job running as of the last update'
    );
    expect(countsOf([of('FAILED', { terminal: true })], trans, true)).toBe('');
  });
});

describe('what came of a job', () => {
  it.each([
    [of('SUCCEEDED'), 'fox succeeded after 42 s'],
    [of('CANCELLED'), 'fox was cancelled after 42 s'],
    [of('CANCELLED', { status: 'STOPPED' }), 'fox was stopped early after 42 s'],
    [of('CANCELLED', { status: 'DELETED' }), 'fox was deleted after 42 s'],
    [of('SUCCEEDED', { started: 1_700_000_030 }), 'fox succeeded after 12 s'],
    [of('SUCCEEDED', { started: 1_700_000_009 }), 'fox succeeded after 42 s'],
    [of('FAILED'), 'fox failed after 42 s'],
    [of('FAILED', { failure: 'ValueError: x' }), 'fox failed after 42 s: ValueError: x']
  ])('is told in a line', (job, line) => {
    expect(outcomeOf(job, 42, trans)).toBe(line);
  });
});
