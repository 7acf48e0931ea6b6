/** The commands that act on the notebook: run a cell as a job, put lines into cells, open the panel. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { CommandRegistry } from '@lumino/commands';

import { reportErrors, strings } from '../commands/register';
import { runCellIcon } from '../icons';
import { CommandIDs } from '../ids';
import type { Settings } from '../settings';

import { isJobLine } from './cells';
import type { Notebooks } from './notebooks';
import { SizeDialog } from './sizedialog';

const MAGIC = '%%torchjob'; // translations treat a percent sign as a placeholder

export interface CellCommandsOptions {
  readonly commands: CommandRegistry;
  readonly notebooks: Notebooks;
  readonly settings: Settings;
  readonly trans: TranslationBundle;
}

/** Registers the commands that act on the notebook. */
export function addCellCommands({
  commands,
  notebooks,
  settings,
  trans
}: CellCommandsOptions): void {
  const size = new SizeDialog(settings, trans);
  commands.addCommand(CommandIDs.runCell, {
    label: trans.__('Run Cell as Torch Job'),
    caption: trans.__('Add %1 to the active cell, unless it is there already, and run it', MAGIC),
    icon: runCellIcon,
    describedBy: strings({
      options: trans.__('Options that replace those of the cell’s line')
    }),
    isEnabled: () => notebooks.hasCodeCell,
    execute: ({ options }) =>
      reportErrors(trans, async () => {
        if (typeof options === 'string') {
          return notebooks.runActiveCell({ options: oneLine(options), replace: true });
        }
        const notebook = notebooks.activeWithoutLine();
        const sizeOptions = notebook === null ? '' : await size.options(notebook);
        return sizeOptions === null
          ? null
          : notebooks.runActiveCell({ options: sizeOptions, replace: false });
      })
  });
  commands.addCommand(CommandIDs.openPanel, {
    label: trans.__('Set Up Torch Jobs in This Notebook'),
    caption: trans.__('Open the options panel in a new cell'),
    describedBy: strings({}),
    isEnabled: () => notebooks.isPython,
    execute: () => reportErrors(trans, () => notebooks.insert('%torchjob config', { run: true }))
  });
  commands.addCommand(CommandIDs.insertLine, {
    label: trans.__('Insert %1 Line', MAGIC),
    caption: trans.__('Add a %1 line to the active cell', MAGIC),
    describedBy: strings(
      {
        line: trans.__('%1 and its options', MAGIC),
        path: trans.__('The notebook, if not the active one')
      },
      ['line']
    ),
    isEnabled: () => notebooks.isPython,
    execute: ({ line, path }) =>
      reportErrors(trans, () => {
        // The line may come from a notebook's output: accept nothing but a line of options.
        if (typeof line !== 'string' || !isJobLine(line)) {
          throw new Error(trans.__('Not a %1 line: %2', MAGIC, JSON.stringify(line)));
        }
        return notebooks.putLine(line, typeof path === 'string' ? path : null);
      })
  });
}

/** Makes a click on the panel's button put its line into a cell. */
export function hearInsertions(node: HTMLElement, commands: CommandRegistry): void {
  node.addEventListener('click', ({ target }) => {
    const button = target instanceof Element ? target.closest('[data-nbtorchjob-line]') : null;
    if (button) {
      const line = button.getAttribute('data-nbtorchjob-line');
      void commands.execute(CommandIDs.insertLine, { line });
    }
  });
}

function oneLine(options: string): string {
  return options.replace(/\s+/g, ' ').trim();
}
