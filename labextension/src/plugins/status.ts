/** The plugin that shows the jobs' status: in the status bar, the panel of running sessions, and notices. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRunningSessionManagers } from '@jupyterlab/running';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { CommandIDs, PluginIDs } from '../ids';
import type { Job } from '../model/record';
import { countsOf } from '../model/summary';
import { Settings } from '../settings';
import { announceEnds, announceStalls } from '../shell/notices';
import { runningJobs } from '../shell/running';
import { JobsStatus } from '../shell/statusbar';
import { ITorchJobs } from '../tokens';

export const status: JupyterFrontEndPlugin<void> = {
  id: PluginIDs.status,
  description: 'Torch jobs: how many are under way, and a notice when one ends.',
  autoStart: true,
  requires: [ITorchJobs],
  // Notebook has no status bar, and its file browser has no notebooks.
  optional: [ITranslator, ISettingRegistry, INotebookTracker, IStatusBar, IRunningSessionManagers],
  activate
};

function activate(
  { commands, shell }: JupyterFrontEnd,
  { client, model }: ITorchJobs,
  translator: ITranslator | null,
  registry: ISettingRegistry | null,
  tracker: INotebookTracker | null,
  statusBar: IStatusBar | null,
  running: IRunningSessionManagers | null
): void {
  const trans = (translator ?? nullTranslator).load('nbtorchjob');
  const settings = new Settings(registry);
  const inView = (job: Job) => {
    const panel = tracker?.currentWidget;
    return panel === shell.currentWidget && panel?.context.path === job.notebook;
  };
  const cancelled = client.hasCancelled.bind(client);
  const notices = { commands, model, cancelled, inView, settings, trans };
  announceEnds(notices);
  announceStalls(notices);
  running?.add(runningJobs({ client, commands, model, trans }));
  const show = () => void commands.execute(CommandIDs.showJobs);
  statusBar?.registerStatusItem('nbtorchjob:status', {
    item: new JobsStatus({ model, show, trans }),
    align: 'left',
    rank: 20,
    isActive: () => countsOf(model.jobs.values(), trans) !== '',
    activeStateChanged: model.changed
  });
}
