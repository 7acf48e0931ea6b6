// @vitest-environment jsdom
import { CommandRegistry } from '@lumino/commands';
import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import { expect, it, vi } from 'vitest';

import { Viewers, type ViewersOptions } from '../../src/shell/viewers';

import { aJob, english } from '../jobs';

// The real ones need a browser.
vi.hoisted(() => vi.stubGlobal('DragEvent', class extends MouseEvent {}));
vi.mock('../../src/icons', () => ({ jobIcon: undefined }));
vi.mock('../../src/logs', () => ({ LogViewer: class extends Widget {} }));
vi.mock('../../src/files/view', () => ({ FileView: class extends Widget {} }));
vi.mock('@jupyterlab/ui-components', () => import('../widget'));
vi.mock('@jupyterlab/apputils', () => ({
  Clipboard: {},
  Notification: {},
  MainAreaWidget: class extends Widget {
    readonly toolbar = new Widget();
    constructor({ content }: { content: Widget }) {
      super();
      this.content = content;
    }
    readonly content: Widget;
  },
  WidgetTracker: class {
    constructor({ namespace }: { namespace: string }) {
      this.namespace = namespace;
    }
    readonly namespace: string;
    private readonly tabs: Widget[] = [];
    async add(tab: Widget): Promise<void> {
      this.tabs.push(tab);
    }
    find(is: (tab: Widget) => boolean): Widget | undefined {
      return this.tabs.find(is);
    }
  }
}));

it('saves tabs so that they are restored for their job, not for a later one of its name', () => {
  const saved: unknown[] = [];
  let args: (tab: Widget) => unknown = () => null;
  const restorer = {
    restore: async (tracker: { namespace: string }, how: { args: typeof args }) => {
      args = tracker.namespace === opened ? how.args : args;
    }
  };
  const shell = { add: (tab: Widget) => saved.push(args(tab)), activateById: () => undefined };
  const job = aJob({ id: 'local:fox', created: 100.25 });
  const options = {
    app: { commands: new CommandRegistry(), shell },
    labShell: {},
    restorer,
    client: {},
    model: { jobs: new Map(), changed: new Signal({}) },
    trans: english
  } as unknown as ViewersOptions;
  let opened = 'nbtorchjob-logs';
  new Viewers(options).openLogs(job);
  opened = 'nbtorchjob-describe';
  new Viewers(options).openDescription(job);
  opened = 'nbtorchjob-file';
  new Viewers(options).openFile(job, { path: 'artifacts/a', node: 1 });

  const common = { id: 'local:fox', created: 100.25, restored: true };
  expect(saved).toEqual([
    { ...common, ids: ['local:fox'] },
    { ...common, ids: ['local:fox'] },
    { ...common, ids: ['local:fox', 'artifacts/a', '1'] }
  ]);
});
