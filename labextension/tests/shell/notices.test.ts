// @vitest-environment jsdom
import { CommandRegistry } from '@lumino/commands';
import { Signal } from '@lumino/signaling';
import { beforeEach, describe, expect, it, vi } from 'vitest';

import { CommandIDs } from '../../src/ids';
import { type NoticesOptions, announceEnds, announceStalls } from '../../src/shell/notices';
import { stalledBetween } from '../../src/model/changes';
import type { Job } from '../../src/model/record';

const { dismiss, emit } = vi.hoisted(() => ({ dismiss: vi.fn(), emit: vi.fn() }));
// The real one draws into a page.
vi.mock('@jupyterlab/apputils', () => ({ Notification: { dismiss, emit } }));

const trans = {
  __: (text: string, ...rest: unknown[]) => text.replace(/%(\d)/g, (_, n) => String(rest[n - 1]))
};
const run = vi.fn();

/** Lets a job end on a page with this setting; gives what is told of it. */
function endOf(
  phase: string,
  notifications: string,
  more: Partial<NoticesOptions> = {},
  created = 100
) {
  const commands = new CommandRegistry();
  for (const id of Object.values(CommandIDs)) {
    commands.addCommand(id, { label: id, execute: args => run(id, args) });
  }
  const model = { elapsed: () => 5, finished: new Signal<object, Job>({}) };
  announceEnds({
    commands,
    model,
    cancelled: () => false,
    inView: () => false,
    settings: { notifications },
    trans,
    ...more
  } as unknown as NoticesOptions);
  model.finished.emit({ id: 'local:fox', name: 'fox', created, phase, failure: null } as Job);
  const [message, type, options] = emit.mock.calls[0] ?? [];
  return { message, type, ...options };
}

/** A page with this setting and a job, and what gives the job another record there. */
function page(notifications: string) {
  const source = {};
  const model = {
    elapsed: () => 50,
    jobs: new Map<string, Job>(),
    changed: new Signal<object, void>(source),
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
  const job = { id: 'local:fox', name: 'fox', created: 100, status: 'RUNNING', still } as Job;
  /** As the model tells it. */
  const become = (given: Partial<Job> | null) => {
    const before = model.jobs;
    model.jobs = new Map(given && [[job.id, { ...job, ...given }]]);
    stalledBetween(before, model.jobs).forEach(each => model.stalled.emit(each));
    model.changed.emit();
  };
  become({});
  return become;
}

beforeEach(() => {
  vi.resetAllMocks();
});

describe('a job that stalls', () => {
  const told = () => emit.mock.calls.map(([text]) => text as string);
  const STALLED = 'fox has stalled: no step for 40 s; a step took 2.0 s';

  beforeEach(() => {
    emit.mockImplementation((text: string) => `notice: ${text}`);
  });

  it('is told once, as at each checkpoint', () => {
    const become = page('failures');
    become({ status: 'STALLED' });
    become({ status: 'RUNNING' });
    become({ status: 'STALLED' });

    expect(emit.mock.calls.map(([text, type]) => [text, type])).toEqual([[STALLED, 'warning']]);
  });

  it.each([
    ['ends', { status: 'FAILED', terminal: true }],
    ['goes on', { status: 'RUNNING' }],
    ['is gone', null]
  ])('is told of until it %s', (_, now) => {
    const become = page('failures');
    become({ status: 'STALLED' });
    become({ status: 'STALLED', elapsed: 60 });
    expect(dismiss).not.toHaveBeenCalled();

    become(now);
    expect(dismiss.mock.calls).toEqual([[`notice: ${STALLED}`]]);
  });

  it('is told when it hangs, each time', () => {
    const become = page('failures');
    become({ status: 'STALLED' });
    become({ status: 'HUNG' });
    become({ status: 'RUNNING' });
    become({ status: 'HUNG' });

    expect(told()).toEqual([STALLED, 'fox hangs', 'fox hangs']);
    expect(dismiss).toHaveBeenCalledWith(`notice: ${STALLED}`);
  });

  it('is told though one of its name was', () => {
    const become = page('failures');
    become({ status: 'STALLED' });
    become({ created: 105 });
    become({ created: 105, status: 'STALLED' });

    expect(emit).toHaveBeenCalledTimes(2);
    expect(dismiss).toHaveBeenCalledWith(`notice: ${STALLED}`);
  });

  it('is not told to who wants no notices', () => {
    page('none')({ status: 'STALLED' });

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
    ['that this page has cancelled', 'CANCELLED', { cancelled: () => true }],
    ['whose notebook is in view', 'FAILED', { inView: () => true }]
  ])('%s needs no telling', (_, phase, more) => {
    endOf(phase, 'all', more);

    expect(emit).not.toHaveBeenCalled();
  });

  it('is told of the next one of its name that somebody cancels', () => {
    const cancelled = ({ created }: Job) => created === 100;
    endOf('CANCELLED', 'all', { cancelled });
    endOf('CANCELLED', 'all', { cancelled }, 200);

    expect(emit).toHaveBeenCalledOnce();
  });

  it('is told though a cancel came too late', () => {
    endOf('FAILED', 'all', { cancelled: () => true });

    expect(emit).toHaveBeenCalledOnce();
  });

  it('offers what comes next', () => {
    const { actions } = endOf('FAILED', 'all');
    actions[1].callback();

    expect(actions.map((action: { label: string }) => action.label)).toEqual([
      CommandIDs.logs,
      CommandIDs.retry
    ]);
    expect(run).toHaveBeenCalledWith(CommandIDs.retry, { id: 'local:fox', created: 100 });
  });
});
