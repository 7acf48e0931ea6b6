/** What the server tells of changes, and what they make of the jobs that are known (pure). */

import type { Event } from '@jupyterlab/services';

import type { Job, Jobs } from './record';

export const JOBS_SCHEMA = 'https://events.nbtorchjob.dev/jobs/v1';

/** Whether an event says that jobs have changed; which ones it doesn't say. */
export function isChange(emission: Event.Emission): boolean {
  return emission.schema_id === JOBS_SCHEMA;
}

/**
 * The jobs after an answer: those that are known keep their place, new ones come last. A whole answer has no
 * others, but where it hasn't seen any.
 */
export function applied(
  jobs: ReadonlyMap<string, Job>,
  { jobs: changed, removed, unseen, whole }: Pick<Jobs, 'jobs' | 'removed' | 'unseen' | 'whole'>
): ReadonlyMap<string, Job> {
  const stays = ([id]: readonly [string, Job]) => !whole || unseen.some(ids => id.startsWith(ids));
  const after = new Map([...jobs].filter(stays));
  for (const job of changed) {
    if (!jobIn(after, job)) {
      after.delete(job.id); // a job that was deleted had its name
    }
    after.set(job.id, job);
  }
  removed.forEach(id => after.delete(id));
  return after;
}

/** The same job in another list: a later one may have the name, and so the id, of one that was deleted. */
export function jobIn(
  jobs: ReadonlyMap<string, Job>,
  job: Pick<Job, 'id' | 'created'>
): Job | undefined {
  const namesake = jobs.get(job.id);
  return namesake?.created === job.created ? namesake : undefined;
}

/** How grave it is that a job says nothing: it has stalled, or hangs; 0: neither. */
export function stillnessOf({ status }: Job): 0 | 1 | 2 {
  return status === 'HUNG' ? 2 : status === 'STALLED' ? 1 : 0;
}

/** The jobs that were known, and have stalled since, or now hang. */
export function stalledBetween(
  before: ReadonlyMap<string, Job>,
  after: ReadonlyMap<string, Job>
): Job[] {
  return [...before.values()].flatMap(job => {
    const now = jobIn(after, job);
    return now !== undefined && stillnessOf(now) > stillnessOf(job) ? [now] : [];
  });
}

/** The jobs that had no end before and have one now. */
export function endedBetween(
  before: ReadonlyMap<string, Job>,
  after: ReadonlyMap<string, Job>
): Job[] {
  return [...before.values()].flatMap(job => {
    const now = job.terminal ? undefined : jobIn(after, job);
    return now?.terminal ? [now] : [];
  });
}
