/** What can be done to a job: one table, of which each entry is a command. */

import { Clipboard, Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import {
  type LabIcon,
  copyIcon,
  deleteIcon,
  infoIcon,
  jumpForwardIcon,
  linkIcon,
  listIcon,
  pauseIcon,
  runIcon,
  stopIcon,
  undoIcon
} from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';

import { attachLine } from './cells';
import type { Client } from './client';
import { CommandIDs } from './ids';
import type { Notebooks } from './notebooks';
import type { Job } from './record';

/** What can be done to a job. */
export interface JobAction {
  readonly id: string;
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
  /** null: there are no notebooks here. */
  readonly notebooks: Notebooks | null;
  readonly openLogs: (job: Job) => void;
  /** Points at a job in the sidebar, as soon as it is listed there. */
  readonly point: (id: string) => void;
  readonly openDescription: (job: Job) => void;
  readonly trans: TranslationBundle;
}

/** All of them, in the order of a menu. */
export function jobActions(options: JobActionsOptions): JobAction[] {
  return [...looking(options), ...steering(options), ...ending(options)];
}

function looking({
  notebooks,
  client,
  openLogs,
  openDescription,
  trans
}: JobActionsOptions): JobAction[] {
  return [
    {
      id: CommandIDs.attach,
      icon: linkIcon,
      label: trans.__('Attach'),
      asking: trans.__('Attach to Torch Job…'),
      caption: trans.__('Follow this job in a new cell of the active notebook'),
      applies: () => notebooks !== null,
      run: job => notebooks?.insert(attachLine(job), { run: true })
    },
    {
      id: CommandIDs.logs,
      icon: listIcon,
      label: trans.__('Open Logs'),
      asking: trans.__('Open Logs of Torch Job…'),
      caption: trans.__('Show what this job’s ranks write'),
      applies: () => true,
      run: openLogs
    },
    {
      id: CommandIDs.describe,
      icon: infoIcon,
      label: trans.__('Describe'),
      asking: trans.__('Describe Torch Job…'),
      caption: trans.__('Show all that is known of this job'),
      applies: () => true,
      run: openDescription
    },
    {
      id: CommandIDs.copyManifest,
      icon: copyIcon,
      label: trans.__('Copy Manifest'),
      asking: trans.__('Copy Manifest of Torch Job…'),
      caption: trans.__('Copy the YAML that runs this job on its cluster'),
      applies: job => job.backend === 'kubernetes',
      run: async job => {
        Clipboard.copyToSystem(await client.manifests(job.id));
        Notification.info(trans.__('The manifest of %1 is copied.', job.name), { autoClose: 3000 });
      }
    },
    {
      id: CommandIDs.goToCell,
      icon: jumpForwardIcon,
      label: trans.__('Go to Cell'),
      asking: trans.__('Go to Cell of Torch Job…'),
      caption: trans.__('Show the cell that submitted this job'),
      applies: job => notebooks !== null && job.cell !== '',
      run: job => notebooks?.reveal(job.cell, job.notebook)
    }
  ];
}

function steering({ commands, client, point, trans }: JobActionsOptions): JobAction[] {
  const suspended = (job: Job) => job.status === 'SUSPENDED';
  const button = (label: string, command: string, id: string) => ({
    label,
    callback: () => void commands.execute(command, { id })
  });
  return [
    {
      id: CommandIDs.suspend,
      icon: pauseIcon,
      label: trans.__('Suspend'),
      asking: trans.__('Suspend Torch Job…'),
      caption: trans.__('Take this job’s nodes away, and keep the job'),
      applies: job => job.backend === 'kubernetes' && !job.terminal && !suspended(job),
      run: job => client.suspend(job.id)
    },
    {
      id: CommandIDs.resume,
      icon: runIcon,
      label: trans.__('Resume'),
      asking: trans.__('Resume Torch Job…'),
      caption: trans.__('Start this suspended job’s nodes again'),
      applies: suspended,
      run: job => client.resume(job.id)
    },
    {
      id: CommandIDs.retry,
      icon: undoIcon,
      label: trans.__('Retry'),
      asking: trans.__('Retry Torch Job…'),
      caption: trans.__('Run what this job ran once more, as a new job'),
      applies: job => job.terminal,
      run: async job => {
        const { id, name } = await client.retry(job.id);
        point(id);
        const actions = [
          button(trans.__('Open Logs'), CommandIDs.logs, id),
          button(trans.__('Attach'), CommandIDs.attach, id)
        ];
        Notification.info(trans.__('%1 runs again as %2.', job.name, name), {
          autoClose: 8000,
          actions
        });
      }
    }
  ];
}

function ending({ client, trans }: JobActionsOptions): JobAction[] {
  return [
    {
      id: CommandIDs.cancel,
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
    {
      id: CommandIDs.delete,
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
  ];
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
