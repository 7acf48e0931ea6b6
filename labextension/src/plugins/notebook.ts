/** The plugin that acts on notebooks: runs cells as jobs, follows a job in a cell. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IDocumentManager } from '@jupyterlab/docmanager';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { addJobCommands, addToPalette } from '../commands/register';
import { addRunsCommands } from '../commands/runs';
import { CommandIDs, PluginIDs } from '../ids';
import { notebookActions, notebookRunsActions } from '../notebook/actions';
import { addCellCommands, hearInsertions } from '../notebook/cellcommands';
import { Notebooks } from '../notebook/notebooks';
import { Settings } from '../settings';
import { ITorchJobs } from '../tokens';

export const notebook: JupyterFrontEndPlugin<void> = {
  id: PluginIDs.notebook,
  description: 'Torch jobs: cells that run as jobs.',
  autoStart: true,
  requires: [ITorchJobs],
  // The tracker too: Notebook's file browser has none, and would report that the plugin failed.
  optional: [INotebookTracker, ITranslator, ISettingRegistry, IDocumentManager, ICommandPalette],
  activate
};

function activate(
  { commands }: JupyterFrontEnd,
  { client, model }: ITorchJobs,
  tracker: INotebookTracker | null,
  translator: ITranslator | null,
  registry: ISettingRegistry | null,
  documents: IDocumentManager | null,
  palette: ICommandPalette | null
): void {
  if (tracker === null) {
    return;
  }
  translator ??= nullTranslator;
  const trans = translator.load('nbtorchjob');
  const notebooks = new Notebooks({ tracker, documents, translator });
  const settings = new Settings(registry);
  const actions = notebookActions(notebooks, trans);
  const added = addJobCommands(actions, { commands, client, model, trans });
  addRunsCommands(notebookRunsActions(notebooks, trans), { commands, model, trans });
  addCellCommands({ commands, notebooks, settings, trans });
  hearInsertions(document.body, commands);
  addToPalette(palette, [CommandIDs.runCell, CommandIDs.openPanel, ...added], trans);
}
