// @vitest-environment jsdom
import type { Event } from '@jupyterlab/services';
import { PromiseDelegate } from '@lumino/coreutils';
import { Signal } from '@lumino/signaling';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { JOBS_SCHEMA } from '../../src/model/changes';
import { RequestError } from '../../src/model/client';
import { JobsModel } from '../../src/model/model';
import type { Job, Jobs } from '../../src/model/record';

import { aJob } from '../jobs';

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

/** A model, and the server that it asks: its answers are what `answer` gives. */
function watched(answer: () => Jobs | Promise<Jobs>) {
  const events = new Signal<object, Event.Emission>({});
  const jobs = vi.fn<(known: string, signal?: AbortSignal) => Promise<Jobs>>(async () => answer());
  const lost = new Signal<object, Error>({});
  const model = new JobsModel({ client: { jobs }, events, lost });
  /** Says that there is news, and waits until the model knows it. */
  const told = async () => {
    events.emit({ schema_id: JOBS_SCHEMA });
    await vi.advanceTimersByTimeAsync(0);
  };
  const changed = vi.fn();
  const finished = vi.fn((_: JobsModel, job: Job) => job.id);
  model.changed.connect(changed);
  model.finished.connect(finished);
  return { model, jobs, told, changed, finished, events, lost };
}

const listing = (...jobs: Job[]): Jobs => ({
  jobs,
  removed: [],
  whole: true,
  mark: 'born.1',
  notes: [],
  unseen: []
});

describe('the model', () => {
  it('starts with the list', async () => {
    const { model } = watched(() => ({
      ...listing(aJob({ id: 'a' })),
      notes: ['kind: no answer']
    }));
    expect(model.loaded).toBe(false);

    await model.ready;

    expect([...model.jobs.keys()]).toEqual(['a']);
    expect(model.notes).toEqual(['kind: no answer']);
    expect([model.loaded, model.error]).toEqual([true, null]);
  });

  it('tells of an end that came while the server was away, though it sees it later', async () => {
    const id = 'kubernetes:eks/ml/train';
    const backend = 'kubernetes';
    let now = listing(aJob({ id, backend }), aJob({ id: 'kubernetes:eks/ml/gone' }));
    const { model, jobs, told, finished } = watched(() => now);
    await model.ready;

    const unseen = { notes: ['jobs in eks/ml aren’t listed yet'], unseen: ['kubernetes:eks/ml/'] };
    now = { ...listing(), mark: 'anew.0', ...unseen };
    await told();
    expect([...model.jobs.keys()]).toEqual([id, 'kubernetes:eks/ml/gone']);
    expect(model.doubtful).toBe(true);

    now = { ...listing(aJob({ id, phase: 'FAILED' })), mark: 'anew.1' };
    await told();
    await told();
    expect([...model.jobs.keys()]).toEqual([id]); // the other one was deleted meanwhile
    expect(finished.mock.results.map(({ value }) => value as string)).toEqual([id]);
    expect(jobs.mock.calls.map(([known]) => known)).toEqual(['', 'born.1', '', 'anew.1']);
  });

  it('asks for what is new when it hears that there is something', async () => {
    let now = listing(aJob({ id: 'a' }), aJob({ id: 'b' }));
    const { model, jobs, told } = watched(() => now);
    await model.ready;

    now = { ...listing(aJob({ id: 'c' })), removed: ['a'], whole: false, mark: 'born.2' };
    await told();
    await told();

    expect([...model.jobs.keys()]).toEqual(['b', 'c']);
    expect(jobs.mock.calls.map(([known]) => known)).toEqual(['', 'born.1', 'born.2']);
  });

  it('knows what it hears of while it is asking', async () => {
    const late = new PromiseDelegate<Jobs>();
    let now: Jobs | Promise<Jobs> = late.promise;
    const { model, told } = watched(() => now);
    await vi.advanceTimersByTimeAsync(0);

    await told();
    now = { ...listing(aJob({ id: 'a', phase: 'FAILED' })), whole: false };
    late.resolve(listing(aJob({ id: 'a' })));
    await vi.advanceTimersByTimeAsync(0);

    expect(model.jobs.get('a')?.phase).toBe('FAILED');
  });

  it('has one request under way and one waiting, however often it is asked', async () => {
    const { model, jobs } = watched(() => listing());
    const asked = [model.refresh(), model.refresh(), model.refresh()];

    await Promise.all(asked);
    await Promise.all([model.refresh(), model.refresh()]);

    expect(jobs).toHaveBeenCalledTimes(2);
  });

  it('gathers changes and tells of them a few times a second', async () => {
    const { model, changed, told } = watched(() => listing(aJob()));
    await model.ready;
    await vi.advanceTimersByTimeAsync(1000);
    changed.mockClear();

    for (let step = 0; step < 100; step++) {
      await told();
      await vi.advanceTimersByTimeAsync(10);
    }

    expect(changed.mock.calls.length).toBeLessThanOrEqual(4);
    expect(changed.mock.calls.length).toBeGreaterThan(0);
  });

  it('tells once of a job that was seen before its end', async () => {
    const done = aJob({ id: 'a', phase: 'SUCCEEDED' });
    let now = listing(aJob({ id: 'a' }), aJob({ id: 'old', phase: 'FAILED' }));
    const { model, finished, told } = watched(() => now);
    await model.ready;

    now = { ...listing(done), whole: false };
    await told();
    await told();
    now = listing(done);
    await model.refresh();

    expect(finished.mock.results.map(result => result.value)).toEqual(['a']);
  });

  it('tells of an end that only the list tells of', async () => {
    let now = listing(aJob({ id: 'a' }));
    const { model, finished } = watched(() => now);
    await model.ready;

    now = listing(aJob({ id: 'a', phase: 'CANCELLED' }));
    await model.refresh();

    expect(finished).toHaveBeenCalledTimes(1);
  });

  it('counts on from what the server said, up to the end', async () => {
    const { model } = watched(() =>
      listing(aJob({ id: 'a', elapsed: 100 }), aJob({ id: 'b', elapsed: 7, phase: 'FAILED' }))
    );
    await model.ready;
    const [a, b] = [...model.jobs.values()] as [Job, Job];

    await vi.advanceTimersByTimeAsync(5000);

    expect([model.elapsed(a), model.elapsed(b)]).toEqual([105, 7]);
  });

  it('looks again after a minute without being told to', async () => {
    const { model, jobs } = watched(() => listing());
    await model.ready;

    await vi.advanceTimersByTimeAsync(59_000);
    expect(jobs).toHaveBeenCalledTimes(1);
    await vi.advanceTimersByTimeAsync(2_000);
    expect(jobs).toHaveBeenCalledTimes(2);
  });

  it('looks again after ten seconds without an event while a job runs', async () => {
    const { model, jobs, told } = watched(() => listing(aJob()));
    await model.ready;

    await vi.advanceTimersByTimeAsync(9_000);
    await told();
    await vi.advanceTimersByTimeAsync(9_000);
    expect(jobs).toHaveBeenCalledTimes(2);
    await vi.advanceTimersByTimeAsync(2_000);
    expect(jobs).toHaveBeenCalledTimes(3);
  });

  it('keeps its jobs while the server is down, asks less and less often, and recovers', async () => {
    let down = false;
    const { model, jobs } = watched(() => {
      if (down) {
        throw new RequestError(0, 'Failed to fetch');
      }
      return listing(aJob({ id: 'a' }));
    });
    await model.ready;

    down = true;
    await model.refresh();
    expect([model.error, model.failure?.status, model.jobs.size]).toEqual([
      'Failed to fetch',
      0,
      1
    ]);
    jobs.mockClear();
    await vi.advanceTimersByTimeAsync(5_100 + 10_100 + 20_100);
    expect(jobs).toHaveBeenCalledTimes(3);

    down = false;
    await vi.advanceTimersByTimeAsync(30_100);
    expect(model.error).toBeNull();
    jobs.mockClear();
    await vi.advanceTimersByTimeAsync(9_000);
    expect(jobs).not.toHaveBeenCalled();
  });

  it('recovers as soon as any event gets through, and counts no time until then', async () => {
    let down = false;
    const { model, events, lost } = watched(() => {
      if (down) {
        throw new RequestError(0, 'Failed to fetch');
      }
      return listing(aJob({ id: 'a', elapsed: 100 }));
    });
    await model.ready;
    const [job] = [...model.jobs.values()] as [Job];

    down = true;
    lost.emit(new Error('no kernels'));
    await vi.advanceTimersByTimeAsync(20_000);
    expect([model.error, model.elapsed(job)]).toEqual(['Failed to fetch', 100]);

    down = false;
    events.emit({ schema_id: 'https://events.jupyter.org/of-others' });
    await vi.advanceTimersByTimeAsync(0);
    expect(model.error).toBeNull();
  });

  it('gives up a request that is never answered, and knows at the next what ended meanwhile', async () => {
    const { model, jobs, told } = watched(() => listing(aJob({ id: 'a' })));
    await model.ready;
    jobs.mockImplementationOnce(
      (_, signal) =>
        new Promise((_, fail) =>
          signal?.addEventListener('abort', () => fail(new Error('no answer')))
        )
    );
    await told();
    jobs.mockImplementation(async () => listing(aJob({ id: 'a', phase: 'SUCCEEDED' })));
    expect([model.jobs.get('a')?.phase, model.doubtful]).toEqual(['RUNNING', false]);

    await vi.advanceTimersByTimeAsync(65_100);

    expect([model.jobs.get('a')?.phase, model.doubtful]).toEqual(['SUCCEEDED', false]);
  });

  it("doubts what is said of a cluster's jobs while a place could not be listed", async () => {
    let now = listing(aJob(), aJob({ id: 'kubernetes:kind/ml/b', backend: 'kubernetes' }));
    const { model } = watched(() => ({ ...now, notes: ['kind: no answer'] }));
    await model.ready;
    expect(model.doubtful).toBe(true);

    now = listing(aJob());
    await model.refresh();

    expect(model.doubtful).toBe(false);
  });

  it('looks again sooner while a place could not be listed', async () => {
    let notes = ['jobs in kind are not known yet'];
    const { model, jobs } = watched(() => ({ ...listing(), notes }));
    await model.ready;

    notes = [];
    await vi.advanceTimersByTimeAsync(5_100);
    expect([jobs.mock.calls.length, model.notes]).toEqual([2, []]);
    await vi.advanceTimersByTimeAsync(50_000);
    expect(jobs).toHaveBeenCalledTimes(2);
  });

  it('looks again when its page is seen again', async () => {
    const { model, jobs } = watched(() => listing());
    await model.ready;

    document.dispatchEvent(new window.Event('visibilitychange'));
    await vi.advanceTimersByTimeAsync(0);

    expect(jobs).toHaveBeenCalledTimes(2);
  });

  it('is silent once it is disposed', async () => {
    const { model, jobs, changed, told } = watched(() => listing());
    await model.ready;
    await vi.advanceTimersByTimeAsync(1000);
    changed.mockClear();

    model.dispose();
    model.dispose();
    await told();
    document.dispatchEvent(new window.Event('visibilitychange'));
    await vi.advanceTimersByTimeAsync(600_000);

    expect(model.isDisposed).toBe(true);
    expect([jobs.mock.calls.length, changed.mock.calls.length]).toEqual([1, 0]);
  });
});
