/** The actions on all runs of a group: commands that take the id of any of them. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { type LabIcon, deleteIcon, stopIcon, undoIcon } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';

import { RunsCommandIDs } from '../ids';
import type { Client } from '../model/client';
import type { JobsModel } from '../model/model';
import type { Job } from '../model/record';
import { type Runs, runsWith } from '../model/runs';

import { agreed, eachOf } from './actions';
import { reportErrors, strings } from './register';

interface RunsAction {
  readonly label: string;
  readonly caption: string;
  readonly icon: LabIcon;
  readonly applies: (runs: Runs) => boolean;
  readonly run: (runs: Runs) => Promise<void>;
}

export type RunsActions = Readonly<Partial<Record<keyof typeof RunsCommandIDs, RunsAction>>>;

interface RunsCommandsOptions {
  readonly commands: CommandRegistry;
  readonly model: Pick<JobsModel, 'jobs'>;
  readonly trans: TranslationBundle;
}

/** Registers a command for each of these actions. */
export function addRunsCommands(
  actions: RunsActions,
  { commands, model, trans }: RunsCommandsOptions
): void {
  const runsIn = ({ id }: { readonly id?: unknown }): Runs | null => {
    const job = typeof id === 'string' ? model.jobs.get(id) : undefined;
    return job?.group ? runsWith(job, model.jobs.values()) : null;
  };
  for (const [verb, { applies, run, ...looks }] of Object.entries(actions)) {
    commands.addCommand(RunsCommandIDs[verb as keyof typeof RunsCommandIDs], {
      ...looks,
      describedBy: strings({ id: trans.__('The id of one of the runs') }, ['id']),
      isEnabled: args => {
        const runs = runsIn(args);
        return runs !== null && applies(runs);
      },
      execute: args =>
        reportErrors(trans, async () => {
          const runs = runsIn(args);
          if (runs) {
            await run(runs);
          }
        })
    });
  }
}

/** Actions that end runs, the last first so that no waiting run starts in between, and retry failed ones. */
export function runsActions(client: Client, trans: TranslationBundle): RunsActions {
  return {
    cancel: {
      label: trans.__('Cancel All Runs'),
      caption: trans.__('End the runs that haven’t ended yet; their records and logs are kept'),
      icon: stopIcon,
      applies: ({ jobs }) => jobs.some(job => !job.terminal),
      run: async ({ name, jobs }) => {
        const live = jobs.filter(job => !job.terminal).reverse();
        const body = trans._n(
          'This ends the ranks of %1 run. Its record and logs are kept.',
          'This ends the ranks of %1 runs. Their records and logs are kept.',
          live.length
        );
        if (await agreed(trans.__('Cancel %1?', name), body, trans.__('Cancel Jobs'), trans)) {
          await eachOf(live, job => client.change(job, 'cancel'));
        }
      }
    },
    retry: {
      label: trans.__('Retry Failed Runs'),
      caption: trans.__('Run the failed ones again, each as a new job'),
      icon: undoIcon,
      applies: ({ newest }) => newest.some(hasFailed),
      run: ({ newest }) => eachOf(newest.filter(hasFailed), job => client.retry(job))
    },
    delete: {
      label: trans.__('Delete All Runs'),
      caption: trans.__('End these runs, and remove their records, logs and values'),
      icon: deleteIcon,
      applies: () => true,
      run: async ({ name, jobs }) => {
        const body = trans._n(
          'This ends %1 job if it is running, and removes its record, logs and value for good.',
          'This ends %1 jobs if they are running, and removes their records, logs and values for good.',
          jobs.length
        );
        if (await agreed(trans.__('Delete %1?', name), body, trans.__('Delete Jobs'), trans)) {
          await eachOf([...jobs].reverse(), job => client.delete(job));
        }
      }
    }
  };
}

function hasFailed({ phase }: Job): boolean {
  return phase === 'FAILED';
}
