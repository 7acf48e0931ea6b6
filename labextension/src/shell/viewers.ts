/** Logs, descriptions, comparisons and files in tabs: one tab for each, restored after a reload. */

import type { ILabShell, ILayoutRestorer, JupyterFrontEnd } from '@jupyterlab/application';
import { Clipboard, MainAreaWidget, Notification, WidgetTracker } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Widget } from '@lumino/widgets';

import { FileView } from '../files/view';
import { jobIcon } from '../icons';
import { CommandIDs } from '../ids';
import { LogViewer } from '../logs';
import { type Client, type FilePlace, type Meant, meant, named } from '../model/client';
import type { JobsModel } from '../model/model';
import type { Job, Page } from '../model/record';

import { linkTo, type Place } from './links';
import { JobsPage } from './page';

export interface ViewersOptions {
  readonly app: JupyterFrontEnd;
  /** null: an application that shows one document per page, like Notebook. */
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
    this.comparisons = this.tracker('nbtorchjob-compare', CommandIDs.compare);
    this.files = this.tracker('nbtorchjob-file', CommandIDs.openFile);
  }

  /** Shows a job's logs, at a line or, for a failed job, at its failure. */
  openLogs(job: Job, at?: Place): void {
    const { app, client, model, trans } = this.options;
    this.closeNamesake(this.logs, job);
    const { content } = this.open(this.logs, job, [job.id], trans.__('Logs: %1', job.name), () => {
      const openAtFailure = job.phase === 'FAILED';
      const act = (verb: 'cancel' | 'retry') =>
        void app.commands.execute(CommandIDs[verb], meant(job));
      const link = (rank: number, line: number) => linkTo(location.href, job, { rank, line });
      return new LogViewer({ client, job, model, trans, openAtFailure, act, copy, link });
    });
    if (at && content instanceof LogViewer) {
      content.goTo(at.rank, at.line);
    }
  }

  /** Shows everything known about a job. */
  openDescription(job: Job): void {
    const { client, trans } = this.options;
    const ask = () => client.page(job);
    this.closeNamesake(this.descriptions, job);
    this.open(this.descriptions, job, [job.id], trans.__('Job: %1', job.name), () =>
      this.page([job], ask)
    );
  }

  /** Shows a comparison of jobs, each named by its id or as `nameOf` does. */
  openComparison(ids: readonly string[]): void {
    const { client, trans } = this.options;
    const label = trans._n('Compare: %1 job', 'Compare: %1 jobs', ids.length);
    const jobs = ids.map(named);
    this.open(this.comparisons, null, ids, label, () =>
      this.page(jobs, () => client.compare(jobs))
    );
  }

  /** Shows a file that a job's ranks have written. */
  openFile(job: Meant, { path, node }: FilePlace): void {
    const { client, model, trans } = this.options;
    const name = model.jobs.get(job.id)?.name ?? job.id.replace(/.*[:/]/, '');
    const label = path.split('/').pop() ?? path;
    const ids = [job.id, path, `${node}`];
    this.closeNamesake(this.files, job, ids);
    this.open(this.files, job, ids, label, () => {
      return new FileView({ job, place: { path, node }, name, client, trans });
    });
  }

  private page(jobs: readonly Meant[], ask: () => Promise<Page>): JobsPage {
    const { app, model, trans } = this.options;
    return new JobsPage({ jobs, ask, commands: app.commands, model, trans });
  }

  /** Closes the tab of a deleted job that had the same id. */
  private closeNamesake(tracker: Tracker, job: Meant, ids: readonly string[] = [job.id]): void {
    const tab = this.find(tracker, ids);
    if (tab && job.created !== undefined && !(tab.content as Content).shows(job)) {
      tab.dispose();
    }
  }

  private tracker(namespace: string, command: string): Tracker {
    const tracker: Tracker = new WidgetTracker({ namespace });
    const name = (widget: Widget) => widget.id.slice(namespace.length + 1);
    const ids = (widget: Widget) => name(widget).split('&').map(decodeURIComponent);
    void this.options.restorer?.restore(tracker, {
      command,
      args: tab => ({ ...this.jobs.get(tab), ids: ids(tab), restored: true }),
      name
    });
    return tracker;
  }

  private open(
    tracker: Tracker,
    job: Meant | null,
    ids: readonly string[],
    label: string,
    make: () => Content
  ): MainAreaWidget {
    const { app, labShell } = this.options;
    let tab = this.find(tracker, ids);
    if (!tab) {
      tab = new MainAreaWidget({ content: make() });
      tab.toolbar.hide(); // a log has its own, a page has none
      tab.id = tabId(tracker, ids);
      tab.title.label = label;
      tab.title.caption = [label, ...ids.map(word => named(word).id)].join('\n');
      tab.title.icon = jobIcon;
      tab.title.closable = true;
      if (job) {
        this.jobs.set(tab, meant(job));
      }
      void tracker.add(tab);
    }
    if (!tab.isAttached) {
      // Notebook's main area takes nothing but the notebook; in the area below it, a tab starts closed.
      tab.toggleClass('jp-nbtorchjob-below', labShell === null);
      app.shell.add(tab, labShell ? 'main' : 'down');
    }
    app.shell.activateById(tab.id);
    return tab;
  }

  private find(tracker: Tracker, ids: readonly string[]): MainAreaWidget | undefined {
    return tracker.find(widget => widget.id === tabId(tracker, ids));
  }

  /** The job of each tab, as a saved layout refers to it; a comparison has several, and none here. */
  private readonly jobs = new WeakMap<Widget, Meant>();
  private readonly logs: Tracker;
  private readonly descriptions: Tracker;
  private readonly comparisons: Tracker;
  private readonly files: Tracker;
}

function tabId(tracker: Tracker, ids: readonly string[]): string {
  return `${tracker.namespace}-${ids.map(encodeURIComponent).join('&')}`;
}

function copy(text: string, message: string): void {
  Clipboard.copyToSystem(text);
  Notification.info(message, { autoClose: 3000 });
}

type Tracker = WidgetTracker<MainAreaWidget>;

interface Content extends Widget {
  /** Whether it shows this job, and not a deleted one that had its id. */
  shows(job: Meant): boolean;
}
