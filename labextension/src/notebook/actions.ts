/** The actions on a job that need a notebook: the rest of the table in `commands/actions`. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { jumpForwardIcon, linkIcon } from '@jupyterlab/ui-components';

import { type JobActions, offered } from '../commands/actions';
import type { RunsActions } from '../commands/runs';

import { attachLine, boardLine, swapLine } from './cells';
import type { Notebooks } from './notebooks';

/** The actions that need a notebook. */
export function notebookActions(notebooks: Notebooks, trans: TranslationBundle): JobActions {
  return {
    attach: offered('attach', job => notebooks.insert(attachLine(job), { run: true }), trans),
    swap: {
      ...offered(
        'swap',
        (job, { edited }) =>
          notebooks.insert(swapLine(job, Boolean(edited)), { run: Boolean(edited) }),
        trans
      ),
      arguments: {
        edited: trans.__('If given, swaps in this job’s cell as edited and run')
      }
    },
    tensorboard: offered(
      'tensorboard',
      job => notebooks.insert(boardLine(job), { run: true }),
      trans
    ),
    goToCell: {
      icon: jumpForwardIcon,
      label: trans.__('Go to Cell'),
      asking: trans.__('Go to Cell of Torch Job…'),
      caption: trans.__('Show the cell that submitted this job'),
      applies: job => job.cell !== '',
      run: job => notebooks.reveal(job.cell, job.notebook)
    }
  };
}

/** Such actions on all runs of a group. */
export function notebookRunsActions(notebooks: Notebooks, trans: TranslationBundle): RunsActions {
  return {
    attach: {
      label: trans.__('Attach to All Runs'),
      caption: trans.__('Follow these runs in a new cell of the active notebook'),
      icon: linkIcon,
      applies: () => true,
      run: ({ name, jobs: [{ backend }] }) =>
        notebooks.insert(attachLine({ id: `${backend}:${name}`, backend }), { run: true })
    }
  };
}
