/** The changes that the server reports, applied to the jobs that the page knows (pure). */

import type { Event } from '@jupyterlab/services';

import type { Job, Jobs } from './record';

export const JOBS_SCHEMA = 'https://events.nbtorchjob.dev/jobs/v1';

/** Whether an event reports that jobs have changed; it doesn't name them. */
export function isChange(emission: Event.Emission): boolean {
  return emission.schema_id === JOBS_SCHEMA;
}

/**
 * The jobs after an answer: known ones keep their place, new ones come last. A whole answer drops all jobs that
 * it doesn't list, except in places that the server couldn't see.
 */
export function applied(
  jobs: ReadonlyMap<string, Job>,
  { jobs: changed, removed, unseen, whole }: Pick<Jobs, 'jobs' | 'removed' | 'unseen' | 'whole'>
): ReadonlyMap<string, Job> {
  const stays = ([id]: readonly [string, Job]) => !whole || unseen.some(ids => id.startsWith(ids));
  const after = new Map([...jobs].filter(stays));
  for (const job of changed) {
    if (!jobIn(after, job)) {
      after.delete(job.id); // a deleted job had the same name
    }
    after.set(job.id, job);
  }
  removed.forEach(id => after.delete(id));
  return after;
}

/** The same job in another list: a later job may have the name, and so the id, of a deleted one. */
export function jobIn(
  jobs: ReadonlyMap<string, Job>,
  job: Pick<Job, 'id' | 'created'>
): Job | undefined {
  const namesake = jobs.get(job.id);
  return namesake?.created === job.created ? namesake : undefined;
}

/** How serious a job's silence is: 2 if it hangs, 1 if it has stalled, else 0. */
export function stillnessOf({ status }: Job): 0 | 1 | 2 {
  return status === 'HUNG' ? 2 : status === 'STALLED' ? 1 : 0;
}

/** The known jobs that have stalled since, or now hang. */
export function stalledBetween(
  before: ReadonlyMap<string, Job>,
  after: ReadonlyMap<string, Job>
): Job[] {
  return [...before.values()].flatMap(job => {
    const now = jobIn(after, job);
    return now !== undefined && stillnessOf(now) > stillnessOf(job) ? [now] : [];
  });
}

/** The known jobs that have ended since. */
export function endedBetween(
  before: ReadonlyMap<string, Job>,
  after: ReadonlyMap<string, Job>
): Job[] {
  return [...before.values()].flatMap(job => {
    const now = job.terminal ? undefined : jobIn(after, job);
    return now?.terminal ? [now] : [];
  });
}
