/** Logs and descriptions as tabs: one of each a job, and there again after a reload. */

import type { ILabShell, ILayoutRestorer, JupyterFrontEnd } from '@jupyterlab/application';
import { Clipboard, MainAreaWidget, Notification, WidgetTracker } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Widget } from '@lumino/widgets';

import { jobIcon } from '../icons';
import { CommandIDs } from '../ids';
import { LogViewer } from '../logs';
import type { Client } from '../model/client';
import type { JobsModel } from '../model/model';
import type { Job } from '../model/record';

import { Description } from './description';
import { linkTo, type Place } from './links';

export interface ViewersOptions {
  readonly app: JupyterFrontEnd;
  /** null: an application that shows one document a page, as Notebook does. */
  readonly labShell: ILabShell | null;
  readonly restorer: ILayoutRestorer | null;
  readonly client: Client;
  readonly model: JobsModel;
  readonly trans: TranslationBundle;
}

/** Opens tabs. */
export class Viewers {
  constructor(private readonly options: ViewersOptions) {
    this.logs = this.tracker('nbtorchjob-logs', CommandIDs.logs);
    this.descriptions = this.tracker('nbtorchjob-describe', CommandIDs.describe);
  }

  /** Shows what a job's ranks write, at a line or a failed job's at its failure. */
  openLogs(job: Job, at?: Place): void {
    const { app, client, model, trans } = this.options;
    const { content } = this.open(this.logs, job, trans.__('Logs: %1', job.name), () => {
      const openAtFailure = job.phase === 'FAILED';
      const act = (verb: 'cancel' | 'retry') =>
        void app.commands.execute(CommandIDs[verb], { id: job.id });
      const link = (rank: number, line: number) => linkTo(location.href, job.id, { rank, line });
      return new LogViewer({ client, job, model, trans, openAtFailure, act, copy, link });
    });
    if (at && content instanceof LogViewer) {
      content.goTo(at.rank, at.line);
    }
  }

  /** Shows all that is known of a job. */
  openDescription(job: Job): void {
    const { client, trans } = this.options;
    this.open(
      this.descriptions,
      job,
      job.name,
      () => new Description(() => client.describe(job.id), trans)
    );
  }

  private tracker(namespace: string, command: string): Tracker {
    const tracker: Tracker = new WidgetTracker({ namespace });
    const id = (widget: Widget) => decodeURIComponent(widget.id.slice(namespace.length + 1));
    void this.options.restorer?.restore(tracker, {
      command,
      args: widget => ({ id: id(widget), restored: true }),
      name: id
    });
    return tracker;
  }

  private open(tracker: Tracker, job: Job, label: string, make: () => Widget): MainAreaWidget {
    const { app, labShell } = this.options;
    const id = `${tracker.namespace}-${encodeURIComponent(job.id)}`;
    let tab = tracker.find(widget => widget.id === id);
    if (!tab) {
      tab = new MainAreaWidget({ content: make() });
      tab.toolbar.hide(); // a log has its own, a description none
      tab.id = id;
      tab.title.label = label;
      tab.title.caption = job.id;
      tab.title.icon = jobIcon;
      tab.title.closable = true;
      void tracker.add(tab);
    }
    if (!tab.isAttached) {
      // Notebook's main area holds the notebook and takes nothing else; below it a tab starts closed.
      tab.toggleClass('jp-nbtorchjob-below', labShell === null);
      app.shell.add(tab, labShell ? 'main' : 'down');
    }
    app.shell.activateById(id);
    return tab;
  }

  private readonly logs: Tracker;
  private readonly descriptions: Tracker;
}

function copy(text: string, said: string): void {
  Clipboard.copyToSystem(text);
  Notification.info(said, { autoClose: 3000 });
}

type Tracker = WidgetTracker<MainAreaWidget>;
