import { describe, expect, it } from 'vitest';

import { grouped, ordered } from '../../src/model/groups';
import { type Runs, counted, elapsedOf, folded, isRuns } from '../../src/model/runs';

import { aJob, english, aRun } from '../jobs';

function one(...jobs: Parameters<typeof aRun>[1][]): Runs {
  const [runs] = folded(
    jobs.map((given, index) => aRun(index + 1, given)),
    () => true
  );
  if (!runs || !isRuns(runs)) {
    throw new Error('not folded');
  }
  return runs;
}

describe('the runs of a group', () => {
  it.each([
    [['SUCCEEDED', 'PENDING'], 'RUNNING', '1 done, 1 waiting'],
    [['PENDING', 'SUBMITTED'], 'PENDING', '1 waiting, 1 submitted'],
    [['FAILED', 'SUCCEEDED', 'SUCCEEDED'], 'FAILED', '2 done, 1 failed'],
    [['CANCELLED', 'SUCCEEDED'], 'CANCELLED', '1 done, 1 cancelled']
  ] as const)('that are %s are %s: %s', (phases, phase, said) => {
    const runs = one(...phases.map(each => ({ phase: each })));

    expect([runs.phase, counted(runs, english)]).toEqual([phase, said]);
  });

  it('that were stopped early spoil nothing', () => {
    const runs = one({ phase: 'SUCCEEDED' }, { phase: 'CANCELLED', status: 'STOPPED' });

    expect([runs.phase, counted(runs, english)]).toEqual(['SUCCEEDED', '1 done, 1 stopped early']);
  });

  it('count by the newest job of each', () => {
    const again = { id: 'local:sweep-r1-2', phase: 'SUCCEEDED', run: 1, created: 50 } as const;
    const runs = one({ phase: 'FAILED', created: 10 }, { phase: 'SUCCEEDED', created: 20 }, again);

    expect(counted(runs, english)).toBe('2 done');
    expect(runs.jobs.map(job => job.name)).toEqual(['sweep-r1', 'sweep-r1-2', 'sweep-r2']);
    expect(elapsedOf(runs, () => 7)).toBe(50 + 7 - 10);
  });

  it('of one name in two places are two', () => {
    const jobs = [aRun(1), aRun(1, { id: 'kubernetes:kind/ml/sweep-r1', where: 'kind' })];

    expect(folded(jobs, () => true).map(each => each.id)).toEqual([
      'runs:local/sweep',
      'runs:kind/sweep'
    ]);
  });
});

describe('a search', () => {
  const jobs = [aRun(1), aRun(2, { phase: 'FAILED' }), aJob({ id: 'local:other' })];

  it.each([
    ['', ['runs:local/sweep', 'local:other']],
    ['sweep', ['runs:local/sweep']],
    ['sweep train.ipynb', ['runs:local/sweep']],
    ['sweep-r2', ['local:sweep-r2']],
    ['lr=0.1', ['local:sweep-r1']],
    ['sweep failed', ['local:sweep-r2']]
  ])('for %j finds %j', (text, ids) => {
    const found = grouped(ordered(jobs, 'name'), { text, notebook: null }, 'name');

    expect(found.flatMap(({ listed }) => listed.map(each => each.id)).sort()).toEqual(ids.sort());
  });
});
