/** The sidebar's plugin. */

import {
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { deleteAll } from '../commands/actions';
import { addToPalette, reportErrors, strings } from '../commands/register';
import { jobIcon } from '../icons';
import { CommandIDs, PluginIDs } from '../ids';
import { JobsSidebar } from '../sidebar';
import { ITorchJobs } from '../tokens';

export const sidebar: JupyterFrontEndPlugin<void> = {
  id: PluginIDs.sidebar,
  description: 'Torch jobs: the sidebar.',
  autoStart: true,
  requires: [ITorchJobs],
  optional: [ITranslator, INotebookTracker, ILayoutRestorer, ICommandPalette],
  activate
};

function activate(
  app: JupyterFrontEnd,
  { browsed, client, model, retried }: ITorchJobs,
  translator: ITranslator | null,
  tracker: INotebookTracker | null,
  restorer: ILayoutRestorer | null,
  palette: ICommandPalette | null
): void {
  const { commands } = app;
  const trans = (translator ?? nullTranslator).load('nbtorchjob');
  const notebook = () => tracker?.currentWidget?.context.path ?? null;
  const widget = new JobsSidebar({
    model,
    client,
    commands,
    notebook,
    trans,
    openFile: (job, { path, node }) =>
      void commands.execute(CommandIDs.openFile, {
        created: job.created,
        ids: [job.id, path, `${node}`]
      }),
    deleteAll: jobs => reportErrors(trans, () => deleteAll(jobs, client, trans))
  });
  tracker?.currentChanged.connect(() => widget.update());
  retried.connect((_, job) => widget.point(job.id));
  browsed.connect((_, job) => {
    widget.browse(job.id);
    app.shell.activateById(widget.id);
  });
  widget.id = 'nbtorchjob-sidebar';
  widget.title.icon = jobIcon;
  widget.title.caption = trans.__('Torch Jobs');
  app.shell.add(widget, 'left', { rank: 350, type: 'Torch Jobs' });
  restorer?.add(widget, widget.id);

  commands.addCommand(CommandIDs.showJobs, {
    label: trans.__('Show Torch Jobs'),
    caption: trans.__('Show every torch job in the sidebar'),
    icon: jobIcon,
    describedBy: strings({}),
    execute: () => app.shell.activateById(widget.id)
  });
  addToPalette(palette, [CommandIDs.showJobs], trans);
}
