/** What the server tells of changes, and what they make of the jobs that are known (pure). */

import type { Event } from '@jupyterlab/services';

import type { Job } from './record';

export const JOBS_SCHEMA = 'https://events.nbtorchjob.dev/jobs/v1';

export interface Change {
  readonly changed: readonly Job[];
  /** Ids. */
  readonly removed: readonly string[];
}

/** A change of jobs; 'many' where there are more than are told; null for events of others. */
export function asChange(emission: Event.Emission): Change | 'many' | null {
  if (emission.schema_id !== JOBS_SCHEMA) {
    return null;
  }
  return emission.many ? 'many' : (emission as unknown as Change);
}

/** The jobs after a change: those that are known keep their place, new ones come last. */
export function applyChange(
  jobs: ReadonlyMap<string, Job>,
  { changed, removed }: Change
): ReadonlyMap<string, Job> {
  const after = new Map(jobs);
  changed.forEach(job => after.set(job.id, job));
  removed.forEach(id => after.delete(id));
  return after;
}

/** The jobs that had no end before and have one now. */
export function endedBetween(
  before: ReadonlyMap<string, Job>,
  after: ReadonlyMap<string, Job>
): Job[] {
  return [...before.values()].flatMap(job => {
    const now = job.terminal ? undefined : after.get(job.id);
    return now?.terminal ? [now] : [];
  });
}
