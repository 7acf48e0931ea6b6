/** What other extensions can use. */

import { Token } from '@lumino/coreutils';
import type { ISignal } from '@lumino/signaling';

import type { Client } from './model/client';
import type { JobsModel } from './model/model';
import type { Job } from './model/record';
import type { Place } from './shell/links';

/**
 * The torch jobs of this page. An extension that uses them names the token in its plugin's `requires`:
 *
 *     import { ITorchJobs } from 'nbtorchjob';
 *
 *     const plugin: JupyterFrontEndPlugin<void> = {
 *       id: 'mine:plugin',
 *       autoStart: true,
 *       requires: [ITorchJobs],
 *       activate: (app, { model, openLogs }: ITorchJobs) => {
 *         model.finished.connect((_, job) => job.phase === 'FAILED' && openLogs(job));
 *       }
 *     };
 *
 * and shares the package rather than bundling it, in its `package.json`:
 *
 *     "jupyterlab": { "sharedPackages": { "nbtorchjob": { "bundled": false, "singleton": true } } }
 */
export const ITorchJobs = new Token<ITorchJobs>(
  'nbtorchjob:ITorchJobs',
  'Torch jobs: their state, logs and actions.'
);

export interface ITorchJobs {
  /** Every job, as the server reported it last; its signals announce changes and ends. */
  readonly model: Pick<
    JobsModel,
    | 'ready'
    | 'changed'
    | 'finished'
    | 'stalled'
    | 'jobs'
    | 'doubtful'
    | 'notes'
    | 'failure'
    | 'loaded'
    | 'elapsed'
    | 'refresh'
  >;
  /** Sends requests to the server: cancels, suspends, retries, deletes, without confirmation. */
  readonly client: Client;
  /** A job was retried or continued from this page, as this new job. */
  readonly retried: ISignal<unknown, Job>;
  /** The user asked for this job's files: the sidebar shows them. */
  readonly browsed: ISignal<unknown, Job>;
  /** Opens a job's logs in a tab, at a line or, for a failed job, at its failure. */
  readonly openLogs: (job: Job, at?: Place) => void;
  /** Opens everything known about a job in a tab. */
  readonly openDescription: (job: Job) => void;
}
