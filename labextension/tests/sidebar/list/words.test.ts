import { describe, expect, it } from 'vitest';

import { folded, isRuns } from '../../../src/model/runs';
import { duration, shape, status } from '../../../src/model/words';
import {
  budgets,
  details,
  gist,
  origin,
  progress,
  runsGist,
  runsOrigin
} from '../../../src/sidebar/list/words';

import { aJob, aRun, english } from '../../jobs';

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
    [{ nodes: { asked: [1, 4], now: 2 } }, '2 of up to 4 nodes × 4 ranks'],
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

    expect(progress(epoch, english)).toBe('3 of 20 epochs · 2 min 10 s left');
    expect(progress({ ...epoch, total: null, left: null }, english)).toBe('3 epochs');
    const percent = { unit: 'percent', done: 40, total: 100, left: null };
    expect(progress(percent, english)).toBe('40 %');
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

  it('put the newest figures before the size', () => {
    const progress = { unit: 'epoch', done: 26, total: 40, left: 39 };
    const metrics = ['loss 0.0237', 'accuracy 0.9'];

    expect(gist(aJob({ progress, metrics }), english)).toMatch(
      /^loss 0.0237 · 39 s left · accuracy 0.9 · 26 of 40 epochs · 2 nodes/
    );
    expect(gist(aJob({ phase: 'SUCCEEDED', metrics }), english)).toMatch(/^loss 0.0237 · accuracy/);
    expect(gist(aJob({ phase: 'FAILED', failure: 'no', metrics }), english)).toMatch(
      /^no · 2 nodes/
    );
  });

  it('tell of runs where they are from, and which one needs somebody', () => {
    const [runs] = folded(
      [aRun(1, { label: 'cell' }), aRun(2, { label: 'cell', status: 'HUNG' })],
      () => true
    );
    if (!runs || !isRuns(runs)) {
      throw new Error('not folded');
    }

    expect(runsOrigin(runs)).toBe('train.ipynb');
    expect(runsGist(runs, english)).toBe('sweep-r2: Hung · 2 running · 2 runs · local');
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

  it('tell in the tooltip what nodes use', () => {
    const strips = [
      { of: 'CPU', newest: '1.9 of 2 cores', parts: [0.5, 0.9] },
      { of: 'memory', newest: '7.2 of 8 GB', parts: [0.1, 0.9] }
    ] as const;
    const uses = [{ node: 1, strips }];
    const alone = aJob({ uses, nodes: { asked: [1, 1], now: 1 } });

    expect(details(aJob({ uses }), english)).toContain(
      '\nnode 1: CPU 1.9 of 2 cores · memory 7.2 of 8 GB\n'
    );
    expect(details(alone, english)).toContain('\nCPU 1.9 of 2 cores · memory 7.2 of 8 GB\n');
  });

  it('leave out budgets that nothing was drawn from, but in the tooltip', () => {
    const job = aJob({ budgets: { failures: { used: 0, limit: 3 } } });

    expect(gist(job, english)).not.toContain('failures');
    expect(details(job, english)).toContain('\nfailures 0/3\n');
    expect(details(job, english)).toContain('\ncell c0ffee\n');
  });
});
