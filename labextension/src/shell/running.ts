/** The jobs that are under way, in JupyterLab's panel of running sessions. */

import type { IRunningSessions } from '@jupyterlab/running';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { CommandRegistry } from '@lumino/commands';

import { jobIcon } from '../icons';
import { CommandIDs } from '../ids';
import { type Client, meant } from '../model/client';
import type { JobsModel } from '../model/model';
import type { Job } from '../model/record';
import { underWay } from '../model/summary';

export interface RunningJobsOptions {
  readonly client: Client;
  readonly commands: CommandRegistry;
  readonly model: Pick<JobsModel, 'jobs' | 'changed' | 'refresh'>;
  readonly trans: TranslationBundle;
}

/** Returns the section of that panel. */
export function runningJobs({
  client,
  commands,
  model,
  trans
}: RunningJobsOptions): IRunningSessions.IManager {
  const item = (job: Job): IRunningSessions.IRunningItem => ({
    icon: () => jobIcon,
    label: () => job.name,
    labelTitle: () => `${job.label} · ${job.where}`,
    detail: () => job.status.toLowerCase(),
    open: () => void commands.execute(CommandIDs.logs, meant(job)),
    shutdown: () => void commands.execute(CommandIDs.cancel, meant(job))
  });
  return {
    name: trans.__('Torch Jobs'),
    running: () => underWay(model.jobs.values()).map(item),
    runningChanged: model.changed,
    refreshRunning: () => void model.refresh(),
    // The panel has asked for confirmation already; jobs that can't be cancelled stay in the list.
    shutdownAll: () =>
      void Promise.allSettled(
        underWay(model.jobs.values()).map(job => client.change(job, 'cancel'))
      ),
    shutdownLabel: trans.__('Cancel'),
    shutdownAllLabel: trans.__('Cancel All'),
    shutdownAllConfirmationText: trans.__('Cancel every torch job that hasn’t ended?')
  };
}
