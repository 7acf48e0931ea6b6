// @vitest-environment jsdom
import { CommandRegistry } from '@lumino/commands';
import { Signal } from '@lumino/signaling';
import { beforeEach, describe, expect, it, vi } from 'vitest';

import { CommandIDs } from '../../src/ids';
import { type NoticesOptions, announceEnds, announceStalls } from '../../src/shell/notices';
import type { Job } from '../../src/model/record';

const { dismiss, emit } = vi.hoisted(() => ({ dismiss: vi.fn(), emit: vi.fn() }));
// The real one draws into a page.
vi.mock('@jupyterlab/apputils', () => ({ Notification: { dismiss, emit } }));

const trans = {
  __: (text: string, ...rest: unknown[]) => text.replace(/%(\d)/g, (_, n) => String(rest[n - 1]))
};
const run = vi.fn();

/** Lets a job end on a page with this setting; gives what is told of it. */
function endOf(phase: string, notifications: string, more: Partial<NoticesOptions> = {}) {
  const commands = new CommandRegistry();
  for (const id of Object.values(CommandIDs)) {
    commands.addCommand(id, { label: id, execute: args => run(id, args) });
  }
  const model = { elapsed: () => 5, finished: new Signal<object, Job>({}) };
  announceEnds({
    commands,
    model,
    cancelled: new Set(),
    inView: () => false,
    settings: { notifications },
    trans,
    ...more
  } as unknown as NoticesOptions);
  model.finished.emit({ id: 'local:fox', name: 'fox', phase, failure: null } as Job);
  const [message, type, options] = emit.mock.calls[0] ?? [];
  return { message, type, ...options };
}

/** Has a job stall twice on a page with this setting; gives what ends a job, and what has one of its name stall. */
function stall(notifications: string) {
  const source = {};
  const model = {
    elapsed: () => 50,
    finished: new Signal<object, Job>(source),
    stalled: new Signal<object, Job>(source)
  };
  announceStalls({
    commands: new CommandRegistry(),
    model,
    inView: () => false,
    settings: { notifications },
    trans
  } as unknown as NoticesOptions);
  const still = { since: 110, unit: 'step', usual: 2 };
  const job = { id: 'local:fox', name: 'fox', created: 100, status: 'STALLED', still } as Job;
  model.stalled.emit(job);
  model.stalled.emit({ ...job });
  return {
    end: (id: string) => model.finished.emit({ ...job, id }),
    again: () => model.stalled.emit({ ...job, created: 105 })
  };
}

beforeEach(() => {
  vi.resetAllMocks();
});

describe('a job that stalls', () => {
  it('is told once', () => {
    stall('failures');

    expect(emit.mock.calls.map(([text, type]) => [text, type])).toEqual([
      ['fox has stalled: no step for 40 s; a step took 2.0 s', 'warning']
    ]);
  });

  it('is told of until it ends', () => {
    emit.mockReturnValue('notice-7');
    const { end } = stall('failures');

    end('local:hare');
    expect(dismiss).not.toHaveBeenCalled();

    end('local:fox');
    expect(dismiss.mock.calls).toEqual([['notice-7']]);
  });

  it.each([true, false])('is told though one of its name was (ended: %s)', ended => {
    emit.mockReturnValueOnce('notice-7');
    const { end, again } = stall('failures');
    if (ended) {
      end('local:fox');
    }

    again();

    expect(emit).toHaveBeenCalledTimes(2);
    expect(dismiss).toHaveBeenCalledWith('notice-7');
  });

  it('is not told to who wants no notices', () => {
    stall('none');

    expect(emit).not.toHaveBeenCalled();
  });
});

describe('the end of a job', () => {
  it.each([
    ['SUCCEEDED', 'success', 5000],
    ['CANCELLED', 'warning', 5000],
    ['FAILED', 'error', 10_000]
  ])('%s is told as %s', (phase, type, autoClose) => {
    expect(endOf(phase, 'all')).toMatchObject({ type, autoClose });
  });

  it.each([
    ['FAILED', 'failures', 1],
    ['SUCCEEDED', 'failures', 0],
    ['CANCELLED', 'failures', 0],
    ['FAILED', 'none', 0]
  ])('%s is told as far as the setting wants it: %s', (phase, setting, times) => {
    endOf(phase, setting);

    expect(emit).toHaveBeenCalledTimes(times);
  });

  it.each([
    ['that this page has cancelled', 'CANCELLED', { cancelled: new Set(['local:fox']) }],
    ['whose notebook is in view', 'FAILED', { inView: () => true }]
  ])('%s needs no telling', (_, phase, more) => {
    endOf(phase, 'all', more);

    expect(emit).not.toHaveBeenCalled();
  });

  it('is told though a cancel came too late', () => {
    endOf('FAILED', 'all', { cancelled: new Set(['local:fox']) });

    expect(emit).toHaveBeenCalledOnce();
  });

  it('is told of the next one of its name that somebody cancels', () => {
    const cancelled = new Set(['local:fox']);
    endOf('CANCELLED', 'all', { cancelled });
    endOf('CANCELLED', 'all', { cancelled });

    expect(emit).toHaveBeenCalledOnce();
  });

  it('offers what comes next', () => {
    const { actions } = endOf('FAILED', 'all');
    actions[1].callback();

    expect(actions.map((action: { label: string }) => action.label)).toEqual([
      CommandIDs.logs,
      CommandIDs.retry
    ]);
    expect(run).toHaveBeenCalledWith(CommandIDs.retry, { id: 'local:fox' });
  });
});
