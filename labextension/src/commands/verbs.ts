/** The verbs: what can be done to a job, and where it is offered (pure). */

import type { CommandIDs } from '../ids';
import type { Job } from '../model/record';

/** In the order of a job's menu. */
export const VERBS = [
  'logs',
  'attach',
  'goToCell',
  'describe',
  'copyManifest',
  'suspend',
  'resume',
  'cancel',
  'retry',
  'delete'
] as const satisfies readonly (keyof typeof CommandIDs)[];

export type Verb = (typeof VERBS)[number];

export function isVerb(name: string): name is Verb {
  return VERBS.some(verb => verb === name);
}

/** What ends a job: first what runs, then what is kept of it. */
export function ending(job: Job): Verb {
  return job.terminal ? 'delete' : 'cancel';
}

/** What a row offers at once; all the rest is in its menu. */
export function quick(job: Job): readonly Verb[] {
  return job.terminal ? ['logs', 'retry', 'delete'] : ['logs', 'attach', 'cancel'];
}
