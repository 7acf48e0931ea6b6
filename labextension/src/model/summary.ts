/** Jobs in a few words: how many are under way, and how one ended (pure). */

import type { TranslationBundle } from '@jupyterlab/translation';

import { needsAttention } from './groups';
import type { Job } from './record';
import { duration, ran, stillness } from './words';

/** The jobs that haven't ended. */
export function underWay(jobs: Iterable<Job>): Job[] {
  return [...jobs].filter(job => !job.terminal);
}

/**
 * How many jobs run, need attention and wait: "2 torch jobs running, 1 needs you, 1 waiting"; "" if none does.
 * If `doubtful`, as a place or the server doesn't answer, the words claim only what was known last.
 */
export function countsOf(jobs: Iterable<Job>, trans: TranslationBundle, doubtful = false): string {
  const going = underWay(jobs);
  const attention = going.filter(needsAttention).length;
  const running = going.filter(job => job.phase === 'RUNNING' && !needsAttention(job)).length;
  const waiting = going.length - running - attention;
  // Only the first count names what is counted.
  const phrases: (readonly [number, string, string])[] = [
    [running, trans._n('%1 torch job running', '%1 torch jobs running', running), ''],
    [
      attention,
      trans._n('%1 torch job needs you', '%1 torch jobs need you', attention),
      trans._n('%1 needs you', '%1 need you', attention)
    ],
    [
      waiting,
      trans._n('%1 torch job waiting', '%1 torch jobs waiting', waiting),
      trans.__('%1 waiting', waiting)
    ]
  ];
  const counts = phrases
    .filter(([many]) => many > 0)
    .map(([, first, later], index) => (index === 0 ? first : later))
    .join(', ');
  return counts && doubtful ? trans.__('%1 as of the last update', counts) : counts;
}

/** The notice about a job that has just stalled or begun to hang. */
export function stalledLine(job: Job, elapsed: number, trans: TranslationBundle): string {
  if (job.status === 'HUNG') {
    return trans.__('%1 hangs', job.name);
  }
  return trans.__('%1 has stalled: %2', job.name, stillness(job, elapsed, trans));
}

/** How a job ended, in one line. */
export function outcomeOf(job: Job, elapsed: number, trans: TranslationBundle): string {
  const took = duration(ran(job, elapsed), trans);
  switch (job.phase) {
    case 'SUCCEEDED':
      if (job.lab?.ended === 'idle') {
        return trans.__('%1 ended after %2, because it was idle', job.name, took);
      }
      return trans.__('%1 succeeded after %2', job.name, took);
    case 'CANCELLED':
      if (job.status === 'STOPPED') {
        return trans.__('%1 was stopped early after %2', job.name, took);
      }
      if (job.status === 'DELETED') {
        return trans.__('%1 was deleted after %2', job.name, took);
      }
      return trans.__('%1 was cancelled after %2', job.name, took);
    default:
      return job.failure === null
        ? trans.__('%1 failed after %2', job.name, took)
        : trans.__('%1 failed after %2: %3', job.name, took, job.failure);
  }
}
