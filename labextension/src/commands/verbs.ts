/** The verbs: the actions on a job, and where they are offered (pure). */

import type * as icons from '@jupyterlab/ui-components';

import type { Job } from '../model/record';
import { type Listed, jobsOf } from '../model/runs';

import { COMMANDS, RANKS } from './table';

type IconName = {
  [Name in keyof typeof icons]: (typeof icons)[Name] extends icons.LabIcon ? Name : never;
}[keyof typeof icons];

/** A verb as in the table, in the page's language. */
export interface Offer {
  /** Beside a job: "Cancel". */
  readonly label: string;
  /** Where no job is named: "Cancel Torch Job…". */
  readonly asking: string;
  readonly caption: string;
  readonly icon: IconName;
  /** The jobs that it applies to: those that have one of these values in each of these fields. */
  readonly when: { readonly [Field in keyof Job]?: readonly Job[Field][] };
  readonly warning?: Warning;
}

/** The confirmation to ask for first: none if the text for a job that is live, or has ended, is empty. */
export interface Warning {
  readonly title: (name: string) => string;
  readonly yes: string;
  readonly live: string;
  readonly ended: string;
}

export type OfferedVerb = keyof typeof COMMANDS;

/** The verbs that only a page has, by their place in a job's menu. */
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

/** The verb that ends a job, or all runs of a group: cancels what is live, or deletes what has ended. */
export function ending(listed: Listed): Verb {
  return jobsOf(listed).every(job => job.terminal) ? 'delete' : 'cancel';
}

/** The verbs that a row shows as buttons; all others are in its menu. */
export function quick(listed: Listed): readonly Verb[] {
  return ending(listed) === 'delete' ? ['logs', 'retry', 'delete'] : ['logs', 'attach', 'cancel'];
}
