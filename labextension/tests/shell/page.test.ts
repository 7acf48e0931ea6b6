// @vitest-environment jsdom
import { CommandRegistry } from '@lumino/commands';
import { MessageLoop } from '@lumino/messaging';
import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import { afterEach, expect, it, vi } from 'vitest';

import { CommandIDs } from '../../src/ids';
import type { Job, Page } from '../../src/model/record';
import { JobsPage, type JobsPageOptions } from '../../src/shell/page';

import { aJob, english } from '../jobs';

// The real ones need a browser.
vi.mock('@jupyterlab/apputils', () => ({ Clipboard: {} }));
vi.mock('@jupyterlab/ui-components', () => import('../widget'));
vi.hoisted(() => vi.stubGlobal('DragEvent', class extends MouseEvent {}));

let shown: JobsPage;

afterEach(() => {
  shown.dispose();
  vi.useRealTimers();
});

it('offers at once what can be done to a job since it runs', async () => {
  const jobs = new Map([['local:fox', aJob({ id: 'local:fox', phase: 'PENDING' })]]);
  const changed = new Signal<object, void>({});
  const ask = vi.fn(async () => ({ heading: 'fox', parts: [] }) as unknown as Page);
  const commands = new CommandRegistry();
  commands.addCommand(CommandIDs.stacks, {
    label: 'Stacks',
    isEnabled: ({ id }) => jobs.get(String(id))?.phase === 'RUNNING',
    execute: () => undefined
  });
  const model = { jobs, changed } as unknown as JobsPageOptions['model'];
  shown = new JobsPage({ jobs: [{ id: 'local:fox' }], ask, commands, model, trans: english });
  Widget.attach(shown, document.body);
  await vi.waitFor(() => expect(shown.node.textContent).toBe('fox'));

  jobs.set('local:fox', aJob({ id: 'local:fox' }) as Job);
  changed.emit();

  await vi.waitFor(() => expect(shown.node.textContent).toBe('foxStacks'));
  expect(ask).toHaveBeenCalledOnce(); // the rest is asked for in its own time
});

it('acts on the job that it is about, not on a later one of its name', async () => {
  const job = aJob({ id: 'local:fox' });
  const ask = vi.fn(async () => ({ heading: 'fox', parts: [] }) as unknown as Page);
  const commands = new CommandRegistry();
  const execute = vi.fn();
  commands.addCommand(CommandIDs.delete, { label: 'Delete', execute });
  const model = {
    jobs: new Map(),
    changed: new Signal<object, void>({})
  } as unknown as JobsPageOptions['model'];
  shown = new JobsPage({ jobs: [job], ask, commands, model, trans: english });
  Widget.attach(shown, document.body);
  const button = () => shown.node.querySelector('button');
  await vi.waitFor(() => expect(button()).not.toBeNull());
  button()?.click();

  expect(execute).toHaveBeenCalledExactlyOnceWith({ id: job.id, created: job.created });
  expect([job.created, job.created + 1].map(created => shown.shows({ ...job, created }))).toEqual([
    true,
    false
  ]);
});

it('keeps a newer answer when an older one comes later', async () => {
  const answers: ((page: Page) => void)[] = [];
  const ask = vi.fn(() => new Promise<Page>(resolve => answers.push(resolve)));
  const model = {
    jobs: new Map(),
    changed: new Signal<object, void>({})
  } as unknown as JobsPageOptions['model'];
  const commands = new CommandRegistry();
  shown = new JobsPage({ jobs: [{ id: 'local:fox' }], ask, commands, model, trans: english });
  Widget.attach(shown, document.body);
  MessageLoop.sendMessage(shown, Widget.Msg.AfterShow);
  expect(answers).toHaveLength(2);

  answers[1]?.({ heading: 'ended', parts: [] } as unknown as Page);
  await vi.waitFor(() => expect(shown.node.textContent).toBe('ended'));
  answers[0]?.({ heading: 'runs', parts: [] } as unknown as Page);
  await new Promise(resolve => setTimeout(resolve));
  shown.update();
  MessageLoop.flush();

  await vi.waitFor(() => expect(shown.node.textContent).toBe('ended'));
});
