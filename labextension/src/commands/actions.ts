/** The actions on a job: a table by verb, each entry of which becomes a command. */

import {
  Clipboard,
  Dialog,
  Notification,
  showDialog,
  showErrorMessage
} from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as icons from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';

import type { Client } from '../model/client';
import type { Change, Job } from '../model/record';

import { jobButtons } from './buttons';
import { askNote } from './notedialog';
import { CHANGES, offersIn } from './table';
import { setValues } from './values';
import { type Offer, type OfferedVerb, type Verb, type Warning, applies } from './verbs';

/** An action on a job. */
export interface JobAction extends Pick<Offer, 'label' | 'asking' | 'caption'> {
  readonly icon: icons.LabIcon;
  readonly applies: (job: Job) => boolean;
  /** May reject with an Error, one line for the user. */
  readonly run: (job: Job, args: ReadonlyPartialJSONObject) => unknown;
  /** What its arguments other than the job's id mean. */
  readonly arguments?: Readonly<Record<string, string>>;
}

export interface JobActionsOptions {
  readonly commands: CommandRegistry;
  readonly client: Client;
  readonly openLogs: (job: Job) => void;
  readonly openDescription: (job: Job) => void;
  readonly browseFiles: (job: Job) => void;
  /** Called with the new job when one is retried or continued. */
  readonly retried: (job: Job) => void;
  readonly trans: TranslationBundle;
}

/** Actions by their verbs. */
export type JobActions = Readonly<Partial<Record<Verb, JobAction>>>;

type InNotebook = 'attach' | 'swap' | 'tensorboard';

/** All actions except those that need a notebook (`notebook/actions`). */
export function jobActions(options: JobActionsOptions): JobActions {
  const { browseFiles, client, openLogs, openDescription, trans } = options;
  const runs: Readonly<Record<Exclude<OfferedVerb, InNotebook>, JobAction['run']>> = {
    ...changes(client),
    logs: job => openLogs(job),
    files: browseFiles,
    describe: job => openDescription(job),
    stacks: async job => {
      await client.change(job, 'stacks');
      openDescription(job); // which shows them, and follows the job
    },
    set: job => setValues(job, client, trans),
    note: async job => {
      for (
        let note = await askNote(job, job, trans);
        note;
        note = await askNote(job, note, trans)
      ) {
        try {
          await client.annotate(job, note);
          return;
        } catch (error) {
          // Then it asks again, with what was typed.
          const why = error instanceof Error ? error.message : String(error);
          await showErrorMessage(trans.__('The note wasn’t saved'), why);
        }
      }
    },
    retry: async job => again(job, await client.retry(job), options),
    continue: async job => again(job, await client.resumed(job), options),
    delete: job => client.delete(job)
  };
  const actions = Object.entries(runs).map(([verb, run]) => [
    verb,
    offered(verb as OfferedVerb, run, trans)
  ]);
  return {
    ...(Object.fromEntries(actions) as JobActions),
    downloadLogs: downloadLogs(client, trans),
    downloadArtifacts: downloadArtifacts(client, trans),
    copyManifest: copyManifest(client, trans)
  };
}

/** The action of a verb in the table. */
export function offered(
  verb: OfferedVerb,
  run: JobAction['run'],
  trans: TranslationBundle
): JobAction {
  const offer: Offer = offersIn(trans)[verb];
  const { label, asking, caption, warning } = offer;
  return {
    label,
    asking,
    caption,
    icon: icons[offer.icon],
    applies: job => applies(offer, job),
    run: warning
      ? async (job, args) => (await confirmed(warning, job, trans)) && run(job, args)
      : run
  };
}

/** The actions that only send the server a change. */
function changes(client: Client): Record<Change, JobAction['run']> {
  const runs = CHANGES.map((change): [Change, JobAction['run']] => [
    change,
    job => client.change(job, change)
  ]);
  return Object.fromEntries(runs) as Record<Change, JobAction['run']>;
}

function again(job: Job, rerun: Job, { commands, retried, trans }: JobActionsOptions): void {
  retried(rerun);
  Notification.info(trans.__('%1 runs again as %2.', job.name, rerun.name), {
    autoClose: 8000,
    actions: jobButtons(commands, ['logs', 'attach'], rerun)
  });
}

function downloadLogs(client: Client, trans: TranslationBundle): JobAction {
  return {
    icon: icons.downloadIcon,
    label: trans.__('Download Logs'),
    asking: trans.__('Download Logs of Torch Job…'),
    caption: trans.__('Download all ranks’ logs as one archive'),
    applies: () => true,
    run: job => download(client.archiveUrl(job, false))
  };
}

function downloadArtifacts(client: Client, trans: TranslationBundle): JobAction {
  return {
    icon: icons.downloadIcon,
    label: trans.__('Download Artifacts'),
    asking: trans.__('Download Artifacts of Torch Job…'),
    caption: trans.__('Download what this job’s ranks left below artifacts_dir() as one archive'),
    applies: job => job.artifacts !== 0, // null: only its cluster knows
    run: async job => {
      // Checked first: a browser would save the server's error message as a file.
      if ((await client.artifacts(job)).length === 0) {
        throw new Error(trans.__('%1 left no artifacts.', job.name));
      }
      download(client.artifactsUrl(job));
    }
  };
}

function download(href: string): void {
  Object.assign(document.createElement('a'), { href, download: '' }).click();
}

function copyManifest(client: Client, trans: TranslationBundle): JobAction {
  return {
    icon: icons.copyIcon,
    label: trans.__('Copy Manifest'),
    asking: trans.__('Copy Manifest of Torch Job…'),
    caption: trans.__('Copy the YAML that runs this job on its cluster'),
    applies: job => job.backend === 'kubernetes',
    run: async job => {
      const manifests = await client.manifests(job);
      // A browser lets a page copy only within seconds of a click, and a cluster may take longer.
      const { userActivation } = navigator as Partial<Navigator>; // some browsers have none
      if (userActivation && !userActivation.isActive) {
        const buttons = [Dialog.cancelButton(), Dialog.okButton({ label: trans.__('Copy') })];
        const title = trans.__('Manifest of %1', job.name);
        const body = trans.__('The cluster has sent it.');
        if (!(await showDialog({ title, body, buttons })).button.accept) {
          return;
        }
      }
      Clipboard.copyToSystem(manifests);
      Notification.info(trans.__('Manifest of %1 copied.', job.name), { autoClose: 3000 });
    }
  };
}

const AT_ONCE = 4; // as many as the server handles at once in one place (`TorchJobApp.at_once`)

/** Deletes jobs once the user has confirmed how many; rejects with the first error, once all are done. */
export async function deleteAll(
  jobs: readonly Job[],
  client: Pick<Client, 'delete'>,
  trans: TranslationBundle
): Promise<void> {
  const title = trans._n('Delete %1 ended job?', 'Delete %1 ended jobs?', jobs.length);
  const body = trans.__('This removes their records, logs and values for good.');
  if (await agreed(title, body, trans.__('Delete Jobs'), trans)) {
    await eachOf(jobs, job => client.delete(job));
  }
}

/** Asks whether to do something to several jobs. */
export async function agreed(
  title: string,
  body: string,
  yes: string,
  trans: TranslationBundle
): Promise<boolean> {
  const buttons = [
    Dialog.cancelButton({ label: trans.__('Keep Them') }),
    Dialog.warnButton({ label: yes })
  ];
  return (await showDialog({ title, body, buttons })).button.accept;
}

/** Does something to jobs, a few at a time; rejects with the first error, once all are done. */
export async function eachOf(
  jobs: readonly Job[],
  act: (job: Job) => Promise<unknown>
): Promise<void> {
  const failed: unknown[] = [];
  const left = [...jobs];
  const work = async () => {
    for (let job = left.shift(); job; job = left.shift()) {
      await act(job).catch((error: unknown) => failed.push(error));
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  if (failed.length > 0) {
    throw failed[0];
  }
}

async function confirmed(
  { title, yes, live, ended }: Warning,
  job: Job,
  trans: TranslationBundle
): Promise<boolean> {
  const body = job.terminal ? ended : live;
  const buttons = [
    Dialog.cancelButton({ label: trans.__('Keep It') }),
    Dialog.warnButton({ label: yes })
  ];
  return body === '' || (await showDialog({ title: title(job.name), body, buttons })).button.accept;
}
