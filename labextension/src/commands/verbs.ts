/** The verbs: what can be done to a job, and where it is offered (pure). */

import type * as icons from '@jupyterlab/ui-components';

import type { Job } from '../model/record';
import { type Listed, jobsOf } from '../model/runs';

import { COMMANDS, RANKS } from './table';

type IconName = {
  [Name in keyof typeof icons]: (typeof icons)[Name] extends icons.LabIcon ? Name : never;
}[keyof typeof icons];

/** A verb as the table has it, in the words of the page's language. */
export interface Offer {
  /** Beside a job: "Cancel". */
  readonly label: string;
  /** Where no job is named: "Cancel Torch Job…". */
  readonly asking: string;
  readonly caption: string;
  readonly icon: IconName;
  /** Of which jobs: those that have one of these values in each of these fields. */
  readonly when: { readonly [Field in keyof Job]?: readonly Job[Field][] };
  readonly warning?: Warning;
}

/** What is asked first; of a job that is live, or has ended, nothing where that is empty. */
export interface Warning {
  readonly title: (name: string) => string;
  readonly yes: string;
  readonly live: string;
  readonly ended: string;
}

export type OfferedVerb = keyof typeof COMMANDS;

/** Those that only a page has, by their place in a job's menu. */
const OWN = { downloadLogs: 15, downloadArtifacts: 17, goToCell: 30, copyManifest: 50 } as const;

export type Verb = OfferedVerb | keyof typeof OWN;

/** In the order of a job's menu. */
export const VERBS = Object.entries({ ...RANKS, ...OWN })
  .sort(([, a], [, b]) => a - b)
  .map(([verb]) => verb as Verb);

export function isVerb(name: string): name is Verb {
  return VERBS.some(verb => verb === name);
}

export function applies({ when }: Offer, job: Job): boolean {
  const fields = Object.keys(when) as (keyof Job)[];
  return fields.every(field => (when[field] as readonly unknown[]).includes(job[field]));
}

/** What ends a job, or all runs of a group: first what runs, then what is kept of it. */
export function ending(listed: Listed): Verb {
  return jobsOf(listed).every(job => job.terminal) ? 'delete' : 'cancel';
}

/** What a row offers at once; all the rest is in its menu. */
export function quick(listed: Listed): readonly Verb[] {
  return ending(listed) === 'delete' ? ['logs', 'retry', 'delete'] : ['logs', 'attach', 'cancel'];
}
