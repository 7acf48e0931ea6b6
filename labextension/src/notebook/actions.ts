/** What can be done to a job in a notebook: the other part of the table in `commands/actions`. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { jumpForwardIcon, linkIcon } from '@jupyterlab/ui-components';

import type { JobActions } from '../commands/actions';

import { attachLine } from './cells';
import type { Notebooks } from './notebooks';

/** The actions that need a notebook. */
export function notebookActions(notebooks: Notebooks, trans: TranslationBundle): JobActions {
  return {
    attach: {
      icon: linkIcon,
      label: trans.__('Attach'),
      asking: trans.__('Attach to Torch Job…'),
      caption: trans.__('Follow this job in a new cell of the active notebook'),
      applies: () => true,
      run: job => notebooks.insert(attachLine(job), { run: true })
    },
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
