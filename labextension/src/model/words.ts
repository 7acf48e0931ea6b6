/** A job's state, times and size in words, the same wherever they are shown (pure). */

import type { TranslationBundle } from '@jupyterlab/translation';

import type { Job, Phase } from './record';

/** A job's state in one word. */
export function status(job: Job, trans: TranslationBundle): string {
  return worded(job.status, trans);
}

/** The state of a group's runs, which have only a phase, in one word. */
export function phase(of: Phase, trans: TranslationBundle): string {
  return worded(of, trans);
}

function worded(status: string, trans: TranslationBundle): string {
  const words: Record<string, string> = {
    SUBMITTED: trans.__('Submitted'),
    PENDING: trans.__('Pending'),
    RUNNING: trans.__('Running'),
    SUCCEEDED: trans.__('Succeeded'),
    FAILED: trans.__('Failed'),
    CANCELLED: trans.__('Cancelled'),
    QUEUED: trans.__('Queued'),
    CANCELLING: trans.__('Cancelling'),
    SUSPENDED: trans.__('Suspended'),
    HUNG: trans.__('Hung'),
    STALLED: trans.__('Stalled'),
    LEAVING: trans.__('Leaving'),
    DEBUGGING: trans.__('Debugging'),
    RETRYING: trans.__('Retrying'),
    WAITING: trans.__('Waiting'),
    STOPPED: trans.__('Stopped early'),
    DELETED: trans.__('Deleted')
  };
  return words[status] ?? status;
}

/** A duration as the card words it: "4.2 s", "42 s", "3 min 20 s", "2 h 05 min", "3 d 4 h". */
export function duration(seconds: number, trans: TranslationBundle): string {
  if (seconds < 9.95) {
    return trans.__('%1 s', Math.max(0, seconds).toFixed(1));
  }
  const whole = Math.round(seconds);
  const minutes = Math.floor(whole / 60);
  const hours = Math.floor(minutes / 60);
  if (whole < 60) {
    return trans.__('%1 s', whole);
  }
  if (minutes < 60) {
    return trans.__('%1 min %2 s', minutes, two(whole % 60));
  }
  return hours < 48
    ? trans.__('%1 h %2 min', hours, two(minutes % 60))
    : trans.__('%1 d %2 h', Math.floor(hours / 24), hours % 24);
}

/** A job that took fewer seconds to start hasn't waited; the same as in its card and in `list`. */
const WAITED_S = 10;

/** How many of the `elapsed` seconds a job has run: those before it had its turn don't count. */
export function ran({ created, started }: Job, elapsed: number): number {
  const waited = started === null ? 0 : started - created;
  return waited < WAITED_S ? elapsed : Math.max(0, elapsed - waited);
}

/**
 * How long a running job has been silent, as its card words it: "no step for 40 s; a step took 2.0 s",
 * "quiet for 2 min"; "" if that is no longer than usual. For a lab, what it is doing: "idle for 3 min",
 * "runs cell 4". `elapsed` is in seconds.
 */
export function stillness(
  { created, lab, still }: Job,
  elapsed: number,
  trans: TranslationBundle
): string {
  if (lab) {
    const { doing, since } = lab;
    return since === null
      ? doing
      : trans.__('idle for %1', roughly(created + elapsed - since, trans));
  }
  if (still === null) {
    return '';
  }
  const age = created + elapsed - still.since;
  if (still.unit === null || still.usual === null) {
    return trans.__('quiet for %1', roughly(age, trans));
  }
  const [silent, usual] = [duration(age, trans), duration(still.usual, trans)];
  switch (still.unit) {
    case 'step':
      return trans.__('no step for %1; a step took %2', silent, usual);
    case 'epoch':
      return trans.__('no epoch for %1; an epoch took %2', silent, usual);
    default:
      return trans.__('no report for %1; one came every %2', silent, usual);
  }
}

function roughly(seconds: number, trans: TranslationBundle): string {
  const minutes = Math.floor(seconds / 60);
  return seconds >= 60 && minutes < 60 ? trans.__('%1 min', minutes) : duration(seconds, trans);
}

function two(value: number): string {
  return String(value).padStart(2, '0');
}

/** Nodes and ranks: "2 nodes × 4 ranks", "1 of 2 nodes × 1 rank" while some are missing. */
export function shape(job: Job, trans: TranslationBundle): string {
  const [fewest, most] = job.nodes.asked;
  const range = fewest === most ? String(most) : `${fewest}–${most}`;
  const missing = job.phase === 'RUNNING' && job.nodes.now !== most;
  const among = fewest === most ? String(most) : trans.__('up to %1', most);
  const nodes = missing
    ? trans._n('%2 of %3 node', '%2 of %3 nodes', most, job.nodes.now, among)
    : trans._n('%2 node', '%2 nodes', most, range);
  return `${nodes} × ${trans._n('%1 rank', '%1 ranks', job.nproc_per_node)}`;
}
