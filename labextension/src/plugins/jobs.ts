/** The plugin that the others build on: the jobs, the commands that act on them, and their tabs. */

import {
  ILabShell,
  ILayoutRestorer,
  IRouter,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';

import { jobActions } from '../commands/actions';
import {
  addCompareCommand,
  addFileCommand,
  addJobCommands,
  addToPalette
} from '../commands/register';
import { addRunsCommands, runsActions } from '../commands/runs';
import { PluginIDs } from '../ids';
import { Client } from '../model/client';
import { JobsModel } from '../model/model';
import type { Job } from '../model/record';
import { addOpenLine } from '../shell/openline';
import { Viewers } from '../shell/viewers';
import { ITorchJobs } from '../tokens';

export const jobs: JupyterFrontEndPlugin<ITorchJobs> = {
  id: PluginIDs.jobs,
  description: 'Torch jobs: commands that act on them, and their logs.',
  autoStart: true,
  provides: ITorchJobs,
  // Notebook has no ILabShell, and a page of a single document restores no layout.
  optional: [ITranslator, ILabShell, ILayoutRestorer, ICommandPalette, IRouter],
  activate
};

function activate(
  app: JupyterFrontEnd,
  translator: ITranslator | null,
  labShell: ILabShell | null,
  restorer: ILayoutRestorer | null,
  palette: ICommandPalette | null,
  router: IRouter | null
): ITorchJobs {
  const { commands } = app;
  const trans = (translator ?? nullTranslator).load('nbtorchjob');
  const client = new Client(app.serviceManager.serverSettings);
  const { connectionFailure: lost, events } = app.serviceManager;
  const model = new JobsModel({ client, events: events.stream, lost });
  const viewers = new Viewers({ app, labShell, restorer, client, model, trans });
  const openLogs = viewers.openLogs.bind(viewers);
  const openDescription = viewers.openDescription.bind(viewers);

  const retried = new Signal<object, Job>(model);
  const browsed = new Signal<object, Job>(model);
  const actions = jobActions({
    commands,
    client,
    openLogs,
    openDescription,
    browseFiles: job => browsed.emit(job),
    retried: job => retried.emit(job),
    trans
  });
  addCompareCommand(viewers.openComparison.bind(viewers), { commands, trans });
  addFileCommand(viewers.openFile.bind(viewers), { commands, trans });
  addToPalette(palette, addJobCommands(actions, { commands, client, model, trans }), trans);
  addRunsCommands(runsActions(client, trans), { commands, model, trans });
  addOpenLine({ app, router, client, model, openLogs, trans });
  return { model, client, retried, browsed, openLogs, openDescription };
}
