import { describe, expect, it } from 'vitest';

import { JOBS_SCHEMA, applyChange, asChange, endedBetween } from '../src/changes';

import { aJob } from './jobs';

const [a, b, c] = ['a', 'b', 'c'].map(id => aJob({ id }));
const known = new Map([a!, b!].map(job => [job.id, job]));

describe('a change', () => {
  it('keeps the place of jobs that are known and puts new ones last', () => {
    const after = applyChange(known, {
      changed: [c!, aJob({ id: 'a', elapsed: 200 })],
      removed: []
    });

    expect([...after.keys()]).toEqual(['a', 'b', 'c']);
    expect(after.get('a')?.elapsed).toBe(200);
    expect(known.get('a')?.elapsed).toBe(100);
  });

  it('takes away what was removed, and more than once', () => {
    const gone = { changed: [], removed: ['a', 'nobody'] };

    expect([...applyChange(applyChange(known, gone), gone).keys()]).toEqual(['b']);
  });

  it('is read from events of our schema only', () => {
    const change = { schema_id: JOBS_SCHEMA, changed: [], removed: ['a'] };

    expect(asChange(change)).toMatchObject({ changed: [], removed: ['a'] });
    expect(asChange({ ...change, many: true })).toBe('many');
    expect(asChange({ ...change, schema_id: 'https://events.jupyter.org/other' })).toBeNull();
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
});
