/** What can be done to a job. Made from the table of verbs (`nbtorchjob/commands/table.py`) by a test. */

import type { TranslationBundle } from '@jupyterlab/translation';

import type { Offer } from './verbs';

export const COMMANDS = {
  logs: 'nbtorchjob:logs',
  files: 'nbtorchjob:files',
  tensorboard: 'nbtorchjob:tensorboard',
  attach: 'nbtorchjob:attach',
  describe: 'nbtorchjob:describe',
  note: 'nbtorchjob:note',
  stacks: 'nbtorchjob:stacks',
  set: 'nbtorchjob:set',
  swap: 'nbtorchjob:swap',
  start: 'nbtorchjob:start',
  end: 'nbtorchjob:end',
  suspend: 'nbtorchjob:suspend',
  resume: 'nbtorchjob:resume',
  cancel: 'nbtorchjob:cancel',
  retry: 'nbtorchjob:retry',
  continue: 'nbtorchjob:continue',
  delete: 'nbtorchjob:delete'
} as const;

export const RANKS = {
  logs: 10,
  files: 16,
  tensorboard: 18,
  attach: 20,
  describe: 40,
  note: 42,
  stacks: 45,
  set: 47,
  swap: 48,
  start: 50,
  end: 55,
  suspend: 60,
  resume: 70,
  cancel: 80,
  retry: 90,
  continue: 92,
  delete: 100
} as const;

export const CHANGES = ['stacks', 'cancel', 'suspend', 'resume', 'start', 'end'] as const;

// In a function, and as literals: translators' tools look for them.
export function offersIn(trans: TranslationBundle) {
  return {
    logs: {
      label: trans.__('Open Logs'),
      asking: trans.__('Open Logs of Torch Job…'),
      caption: trans.__('Show what this job’s ranks write'),
      icon: 'listIcon',
      when: {}
    },
    files: {
      label: trans.__('Browse Files'),
      asking: trans.__('Browse Files of Torch Job…'),
      caption: trans.__('Show what this job’s ranks have written, and open it'),
      icon: 'folderIcon',
      when: {}
    },
    tensorboard: {
      label: trans.__('Open in TensorBoard'),
      asking: trans.__('Open Torch Job in TensorBoard…'),
      caption: trans.__('Show this job’s curves in TensorBoard, in a new cell of the notebook'),
      icon: 'launchIcon',
      when: { curves: [true, null] }
    },
    attach: {
      label: trans.__('Attach'),
      asking: trans.__('Attach to Torch Job…'),
      caption: trans.__('Follow this job in a new cell of the active notebook'),
      icon: 'linkIcon',
      when: {}
    },
    describe: {
      label: trans.__('Describe'),
      asking: trans.__('Describe Torch Job…'),
      caption: trans.__('Show everything known about this job'),
      icon: 'infoIcon',
      when: {}
    },
    note: {
      label: trans.__('Note and Tags'),
      asking: trans.__('Note and Tags of Torch Job…'),
      caption: trans.__('Add a note and tags to this job, to find it again'),
      icon: 'tagIcon',
      when: {}
    },
    stacks: {
      label: trans.__('Stacks'),
      asking: trans.__('Show Stacks of Torch Job…'),
      caption: trans.__('Show where each rank of this job is now, and which one blocks the others'),
      icon: 'searchIcon',
      when: { phase: ['RUNNING'] }
    },
    set: {
      label: trans.__('Set Values…'),
      asking: trans.__('Set Values of Torch Job…'),
      caption: trans.__('Change values that this job’s code reads, on all ranks at one step'),
      icon: 'settingsIcon',
      when: { phase: ['RUNNING'] }
    },
    swap: {
      label: trans.__('Swap Code…'),
      asking: trans.__('Swap Code of Torch Job…'),
      caption: trans.__('Change this job’s code as it runs, in a new cell of the active notebook'),
      icon: 'editIcon',
      when: { phase: ['RUNNING'] }
    },
    start: {
      label: trans.__('Run Beside It'),
      asking: trans.__('Start Waiting Torch Job…'),
      caption: trans.__('Start this job now, alongside those it is waiting for'),
      icon: 'runIcon',
      when: { backend: ['local'], status: ['SUBMITTED', 'PENDING', 'WAITING'] }
    },
    end: {
      label: trans.__('End'),
      asking: trans.__('End Torch Lab…'),
      caption: trans.__('End this lab once it has run everything sent to it'),
      icon: 'stopIcon',
      when: { terminal: [false], kept: [true] },
      warning: {
        title: (name: string) => trans.__('End %1?', name),
        yes: trans.__('End Job'),
        live: trans.__('What the lab’s ranks hold will be lost.'),
        ended: ''
      }
    },
    suspend: {
      label: trans.__('Suspend'),
      asking: trans.__('Suspend Torch Job…'),
      caption: trans.__('Remove this job’s nodes, but keep the job'),
      icon: 'pauseIcon',
      when: {
        backend: ['kubernetes'],
        status: [
          'SUBMITTED',
          'QUEUED',
          'PENDING',
          'RUNNING',
          'CANCELLING',
          'HUNG',
          'STALLED',
          'LEAVING',
          'DEBUGGING',
          'RETRYING',
          'WAITING'
        ]
      }
    },
    resume: {
      label: trans.__('Resume'),
      asking: trans.__('Resume Torch Job…'),
      caption: trans.__('Start this suspended job’s nodes again'),
      icon: 'runIcon',
      when: { status: ['SUSPENDED'] }
    },
    cancel: {
      label: trans.__('Cancel'),
      asking: trans.__('Cancel Torch Job…'),
      caption: trans.__('End this job; its record and logs are kept'),
      icon: 'stopIcon',
      when: { terminal: [false] },
      warning: {
        title: (name: string) => trans.__('Cancel %1?', name),
        yes: trans.__('Cancel Job'),
        live: trans.__('This ends its ranks. Its record and logs are kept.'),
        ended: ''
      }
    },
    retry: {
      label: trans.__('Retry'),
      asking: trans.__('Retry Torch Job…'),
      caption: trans.__('Run this job again, as a new job'),
      icon: 'undoIcon',
      when: { terminal: [true] }
    },
    continue: {
      label: trans.__('Resume From Checkpoint'),
      asking: trans.__('Resume Torch Job From Checkpoint…'),
      caption: trans.__('Run this job again, as a new job that finds its checkpoints'),
      icon: 'fastForwardIcon',
      when: { terminal: [true], resumable: [true, null] }
    },
    delete: {
      label: trans.__('Delete'),
      asking: trans.__('Delete Torch Job…'),
      caption: trans.__('End this job, and remove its record, logs and value'),
      icon: 'deleteIcon',
      when: {},
      warning: {
        title: (name: string) => trans.__('Delete %1?', name),
        yes: trans.__('Delete Job'),
        live: trans.__('This ends it, and removes its record, logs and value for good.'),
        ended: trans.__('This removes its record, logs and value for good.')
      }
    }
  } as const satisfies Record<keyof typeof COMMANDS, Offer>;
}
