/** What can be done to a job: a table by verb, of which each entry is a command. */

import { Clipboard, Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import {
  type LabIcon,
  copyIcon,
  deleteIcon,
  infoIcon,
  listIcon,
  pauseIcon,
  runIcon,
  stopIcon,
  undoIcon
} from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';

import type { Client } from '../model/client';
import type { Job } from '../model/record';

import { jobButtons } from './buttons';
import type { Verb } from './verbs';

/** What can be done to a job. */
export interface JobAction {
  /** Beside a job: "Cancel". */
  readonly label: string;
  /** Where no job is named: "Cancel Torch Job…". */
  readonly asking: string;
  readonly caption: string;
  readonly icon: LabIcon;
  readonly applies: (job: Job) => boolean;
  /** May reject with an Error, one line for the user. */
  readonly run: (job: Job) => unknown;
}

export interface JobActionsOptions {
  readonly commands: CommandRegistry;
  readonly client: Client;
  readonly openLogs: (job: Job) => void;
  readonly openDescription: (job: Job) => void;
  /** Is told the new job when what one ran is run once more. */
  readonly retried: (job: Job) => void;
  readonly trans: TranslationBundle;
}

/** Actions by their verbs. */
export type JobActions = Readonly<Partial<Record<Verb, JobAction>>>;

/** All but those that need a notebook (`notebook/actions`). */
export function jobActions(options: JobActionsOptions): JobActions {
  return { ...looking(options), ...steering(options), ...ending(options) };
}

function looking({ client, openLogs, openDescription, trans }: JobActionsOptions): JobActions {
  return {
    logs: {
      icon: listIcon,
      label: trans.__('Open Logs'),
      asking: trans.__('Open Logs of Torch Job…'),
      caption: trans.__('Show what this job’s ranks write'),
      applies: () => true,
      run: openLogs
    },
    describe: {
      icon: infoIcon,
      label: trans.__('Describe'),
      asking: trans.__('Describe Torch Job…'),
      caption: trans.__('Show all that is known of this job'),
      applies: () => true,
      run: openDescription
    },
    copyManifest: {
      icon: copyIcon,
      label: trans.__('Copy Manifest'),
      asking: trans.__('Copy Manifest of Torch Job…'),
      caption: trans.__('Copy the YAML that runs this job on its cluster'),
      applies: job => job.backend === 'kubernetes',
      run: async job => {
        Clipboard.copyToSystem(await client.manifests(job.id));
        Notification.info(trans.__('The manifest of %1 is copied.', job.name), { autoClose: 3000 });
      }
    }
  };
}

function steering({ commands, client, retried, trans }: JobActionsOptions): JobActions {
  const suspended = (job: Job) => job.status === 'SUSPENDED';
  return {
    suspend: {
      icon: pauseIcon,
      label: trans.__('Suspend'),
      asking: trans.__('Suspend Torch Job…'),
      caption: trans.__('Take this job’s nodes away, and keep the job'),
      applies: job => job.backend === 'kubernetes' && !job.terminal && !suspended(job),
      run: job => client.suspend(job.id)
    },
    resume: {
      icon: runIcon,
      label: trans.__('Resume'),
      asking: trans.__('Resume Torch Job…'),
      caption: trans.__('Start this suspended job’s nodes again'),
      applies: suspended,
      run: job => client.resume(job.id)
    },
    retry: {
      icon: undoIcon,
      label: trans.__('Retry'),
      asking: trans.__('Retry Torch Job…'),
      caption: trans.__('Run what this job ran once more, as a new job'),
      applies: job => job.terminal,
      run: async job => {
        const made = await client.retry(job.id);
        retried(made);
        Notification.info(trans.__('%1 runs again as %2.', job.name, made.name), {
          autoClose: 8000,
          actions: jobButtons(commands, ['logs', 'attach'], made.id)
        });
      }
    }
  };
}

function ending({ client, trans }: JobActionsOptions): JobActions {
  return {
    cancel: {
      icon: stopIcon,
      label: trans.__('Cancel'),
      asking: trans.__('Cancel Torch Job…'),
      caption: trans.__('End this job; its record and logs stay'),
      applies: job => !job.terminal,
      run: async job => {
        const body = trans.__('Its ranks are ended. Its record and logs stay.');
        if (
          await confirmed(trans.__('Cancel %1?', job.name), body, trans.__('Cancel Job'), trans)
        ) {
          await client.cancel(job.id);
        }
      }
    },
    delete: {
      icon: deleteIcon,
      label: trans.__('Delete'),
      asking: trans.__('Delete Torch Job…'),
      caption: trans.__('End this job, and remove its record, logs and value'),
      applies: () => true,
      run: async job => {
        const body = job.terminal
          ? trans.__('Its record, logs and value are removed for good.')
          : trans.__('It is ended, and its record, logs and value are removed for good.');
        if (
          await confirmed(trans.__('Delete %1?', job.name), body, trans.__('Delete Job'), trans)
        ) {
          await client.delete(job.id);
        }
      }
    }
  };
}

async function confirmed(
  title: string,
  body: string,
  label: string,
  trans: TranslationBundle
): Promise<boolean> {
  const buttons = [
    Dialog.cancelButton({ label: trans.__('Keep It') }),
    Dialog.warnButton({ label })
  ];
  return (await showDialog({ title, body, buttons })).button.accept;
}
