/** The plugin: the parts, and where in JupyterLab or Notebook each of them goes. */

import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IDocumentManager } from '@jupyterlab/docmanager';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRunningSessionManagers } from '@jupyterlab/running';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { addCellCommands } from './cellcommands';
import { Client } from './client';
import { addJobCommands, strings } from './commands';
import { jobIcon } from './icons';
import { CommandIDs, PLUGIN } from './ids';
import { JobsModel } from './model';
import { announceEnds } from './notices';
import { Notebooks } from './notebooks';
import type { Job } from './record';
import { runningJobs } from './running';
import { Settings } from './settings';
import { JobsSidebar } from './sidebar';
import { JobsStatus } from './statusbar';
import { countsOf } from './summary';
import { Viewers } from './viewers';

const plugin: JupyterFrontEndPlugin<void> = {
  id: PLUGIN,
  description: 'Torch jobs: a sidebar, their logs, and cells that run as jobs.',
  autoStart: true,
  // None is required: Notebook has no status bar, and a page of a single document few of the others.
  optional: [
    ITranslator,
    ISettingRegistry,
    INotebookTracker,
    IDocumentManager,
    ILabShell,
    ILayoutRestorer,
    ICommandPalette,
    IStatusBar,
    IRunningSessionManagers
  ],
  activate
};

export default plugin;

function activate(
  app: JupyterFrontEnd,
  translator: ITranslator | null,
  registry: ISettingRegistry | null,
  tracker: INotebookTracker | null,
  documents: IDocumentManager | null,
  labShell: ILabShell | null,
  restorer: ILayoutRestorer | null,
  palette: ICommandPalette | null,
  statusBar: IStatusBar | null,
  running: IRunningSessionManagers | null
): void {
  const { commands } = app;
  translator ??= nullTranslator;
  const trans = translator.load('nbtorchjob');
  const settings = new Settings(registry, PLUGIN);
  const client = new Client(app.serviceManager.serverSettings);
  const { connectionFailure: lost, events } = app.serviceManager;
  const model = new JobsModel({ client, events: events.stream, lost });
  const notebooks = tracker && new Notebooks({ tracker, documents, translator });
  const viewers = new Viewers({ app, labShell, restorer, client, model, trans });

  const openLogs = viewers.openLogs.bind(viewers);
  const openDescription = viewers.openDescription.bind(viewers);
  const point = (id: string) => sidebar.point(id);
  addJobCommands({ commands, client, model, notebooks, openLogs, openDescription, point, trans });
  if (notebooks) {
    addCellCommands({ commands, notebooks, settings, trans });
  }

  const notebook = () => tracker?.currentWidget?.context.path ?? null;
  const sidebar = new JobsSidebar({ model, commands, notebook, trans });
  tracker?.currentChanged.connect(() => {
    sidebar.update();
  });
  sidebar.id = 'nbtorchjob-sidebar';
  sidebar.title.icon = jobIcon;
  sidebar.title.caption = trans.__('Torch Jobs');
  app.shell.add(sidebar, 'left', { rank: 350, type: 'Torch Jobs' });
  restorer?.add(sidebar, sidebar.id);

  const show = () => app.shell.activateById(sidebar.id);
  commands.addCommand(CommandIDs.showJobs, {
    label: trans.__('Show Torch Jobs'),
    caption: trans.__('Show every torch job in the sidebar'),
    icon: jobIcon,
    describedBy: strings({}),
    execute: show
  });
  Object.values(CommandIDs)
    .filter(command => command !== CommandIDs.insertLine && commands.hasCommand(command))
    .forEach(command => palette?.addItem({ command, category: trans.__('Torch Jobs') }));

  const inView = (job: Job) =>
    tracker?.currentWidget === app.shell.currentWidget && notebook() === job.notebook;
  announceEnds({ commands, model, cancelled: client.cancelled, inView, settings, trans });
  running?.add(runningJobs({ client, commands, model, trans }));
  statusBar?.registerStatusItem('nbtorchjob:status', {
    item: new JobsStatus({ model, show, trans }),
    align: 'left',
    rank: 20,
    isActive: () => countsOf(model.jobs.values(), trans) !== '',
    activeStateChanged: model.changed
  });
}
