/** What can be done to a job in a notebook: the other part of the table in `commands/actions`. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { jumpForwardIcon } from '@jupyterlab/ui-components';

import { type JobActions, offered } from '../commands/actions';

import { attachLine } from './cells';
import type { Notebooks } from './notebooks';

/** The actions that need a notebook. */
export function notebookActions(notebooks: Notebooks, trans: TranslationBundle): JobActions {
  return {
    attach: offered('attach', job => notebooks.insert(attachLine(job), { run: true }), trans),
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
