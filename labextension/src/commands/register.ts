/** A command for each action on a job; without an id it asks which job is meant. */

import { type ICommandPalette, InputDialog, showErrorMessage } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { CommandRegistry } from '@lumino/commands';
import type { ReadonlyJSONObject, ReadonlyPartialJSONObject } from '@lumino/coreutils';

import { CommandIDs } from '../ids';
import type { Client, FilePlace, Meant } from '../model/client';
import type { JobsModel } from '../model/model';
import type { Job } from '../model/record';
import { status } from '../model/words';

import type { JobAction, JobActions } from './actions';
import { VERBS } from './verbs';

const MOST = 8; // jobs that the server compares at most (`nbtorchjob/ui/page`)

export interface CommandsOptions {
  readonly commands: CommandRegistry;
  readonly client: Pick<Client, 'job'>;
  readonly model: Pick<JobsModel, 'jobs'>;
  readonly trans: TranslationBundle;
}

/** Registers a command for each of these actions; returns the commands' ids. */
export function addJobCommands(actions: JobActions, options: CommandsOptions): string[] {
  return VERBS.flatMap(verb => {
    const action = actions[verb];
    if (!action) {
      return [];
    }
    addJobCommand(CommandIDs[verb], action, options);
    return [CommandIDs[verb]];
  });
}

/** Registers the command that compares the jobs that its arguments name. */
export function addCompareCommand(
  open: (ids: readonly string[]) => void,
  { commands, trans }: Pick<CommandsOptions, 'commands' | 'trans'>
): void {
  const named = ({ ids }: ReadonlyPartialJSONObject) =>
    Array.isArray(ids) ? ids.filter(id => typeof id === 'string') : [];
  commands.addCommand(CommandIDs.compare, {
    label: trans.__('Compare Torch Jobs'),
    caption: trans.__(
      'Show the curves of 2 to %1 jobs, and how their options and code differ',
      MOST
    ),
    describedBy: {
      args: { type: 'object', properties: { ids: { type: 'array', items: { type: 'string' } } } }
    },
    isEnabled: args => named(args).length >= 2 && named(args).length <= MOST,
    execute: args => open(named(args))
  });
}

/** Registers the command that opens a file of a job: `ids` are the job's id, the path and the node. */
export function addFileCommand(
  open: (job: Meant, place: FilePlace) => void,
  { commands, trans }: Pick<CommandsOptions, 'commands' | 'trans'>
): void {
  commands.addCommand(CommandIDs.openFile, {
    label: trans.__('Open File of Torch Job'),
    describedBy: {
      args: { type: 'object', properties: { ids: { type: 'array', items: { type: 'string' } } } }
    },
    execute: ({ created, ids }) => {
      const [id, path, node] = Array.isArray(ids) ? (ids as readonly unknown[]) : [];
      if (typeof id === 'string' && typeof path === 'string') {
        open({ id, created: numberIn(created) }, { path, node: Number(node ?? 0) || 0 });
      }
    }
  });
}

/** Lists commands in the palette. */
export function addToPalette(
  palette: ICommandPalette | null,
  commands: readonly string[],
  trans: TranslationBundle
): void {
  commands.forEach(command => palette?.addItem({ command, category: trans.__('Torch Jobs') }));
}

/** Does some work; shows the user an error's message. */
export async function reportErrors(trans: TranslationBundle, work: () => unknown): Promise<void> {
  try {
    await work();
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    await showErrorMessage(trans.__('Torch Jobs'), message);
  }
}

/** Does work that the user didn't ask for, and ignores errors: a saved layout may name a job that is gone. */
async function quietly(_: TranslationBundle, work: () => Promise<void>): Promise<void> {
  await work().catch(() => undefined);
}

/** A schema of a command's arguments, all of them strings. */
export function strings(
  properties: Record<string, string>,
  required: readonly string[] = []
): { args: ReadonlyJSONObject } {
  const described: ReadonlyJSONObject = Object.fromEntries(
    Object.entries(properties).map(([name, description]) => [name, { type: 'string', description }])
  );
  return { args: { type: 'object', properties: described, required } };
}

function addJobCommand(
  command: string,
  action: JobAction,
  { commands, client, model, trans }: CommandsOptions
): void {
  const fitting = () => [...model.jobs.values()].filter(action.applies);
  commands.addCommand(command, {
    label: args => (idIn(args) === null ? action.asking : action.label),
    caption: action.caption,
    icon: action.icon,
    describedBy: strings({
      id: trans.__('The id of a job; without one, asks which job'),
      ...action.arguments
    }),
    isEnabled: args => {
      const id = idIn(args);
      const job = id === null ? undefined : model.jobs.get(id);
      // A job that isn't listed yet may well exist: only the server knows.
      return id === null ? fitting().length > 0 : job === undefined || action.applies(job);
    },
    execute: args =>
      (args.restored ? quietly : reportErrors)(trans, async () => {
        const id = idIn(args);
        // Ids come from notebooks' outputs too: only a job that the server knows is acted on.
        const job =
          id === null
            ? await choose(action, fitting(), trans)
            : await recordOf({ id, created: numberIn(args.created) });
        if (job === null) {
          return;
        }
        // What is known of a live job may be a second old: the server refuses what no longer applies.
        if (job.terminal && !action.applies(job)) {
          throw new Error(
            trans.__(
              '%1 doesn’t apply to %2 (%3).',
              action.label.replace('…', ''),
              job.name,
              status(job, trans)
            )
          );
        }
        await action.run(job, args);
      })
  });

  async function recordOf(job: Meant): Promise<Job> {
    const listed = model.jobs.get(job.id);
    // Only the server can say what became of a job whose name another one has.
    return listed && [undefined, listed.created].includes(job.created) ? listed : client.job(job);
  }
}

async function choose(
  action: JobAction,
  jobs: readonly Job[],
  trans: TranslationBundle
): Promise<Job | null> {
  const newest = [...jobs].sort((a, b) => b.created - a.created);
  const items = newest.map(job => `${job.name} · ${job.status} · ${job.where || job.backend}`);
  const { value } = await InputDialog.getItem({
    title: action.asking,
    label: trans.__('Job'),
    items,
    okLabel: action.label
  });
  return value === null ? null : (newest[items.indexOf(value)] ?? null);
}

function numberIn(value: unknown): number | undefined {
  return typeof value === 'number' ? value : undefined;
}

function idIn(args: ReadonlyPartialJSONObject): string | null {
  return typeof args.id === 'string' && args.id ? args.id : null;
}
