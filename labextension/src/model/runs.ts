/** The runs of a group, folded into one entry, as in a notebook's list of jobs (pure). */

import type { TranslationBundle } from '@jupyterlab/translation';

import type { Job, Phase } from './record';

type Some = readonly [Job, ...Job[]];

export interface Runs {
  /** Not the id of any job. */
  readonly id: string;
  readonly name: string;
  /** By run number; a run that was retried has several jobs. */
  readonly jobs: Some;
  /** The newest job of each run: the one that counts. */
  readonly newest: readonly Job[];
  /** The group's phase: the group goes on while one of its runs does. */
  readonly phase: Phase;
}

/** An entry of the list: a job, or the runs of a group. */
export type Listed = Job | Runs;

export function isRuns(listed: Listed): listed is Runs {
  return 'jobs' in listed;
}

export function jobsOf(listed: Listed): readonly Job[] {
  return isRuns(listed) ? listed.jobs : [listed];
}

/** The id of the group that a job is a run of, or "". Groups in different places may share a name. */
export function groupIdOf({ group, where }: Job): string {
  return group && `runs:${where}/${group}`;
}

/** Folds the jobs of a group that are `together` into one entry, at the first one's place in the order. */
export function folded(jobs: readonly Job[], together: (job: Job) => boolean): Listed[] {
  const entries = new Map<string, Job | [Job, ...Job[]]>();
  for (const job of jobs) {
    const id = together(job) ? groupIdOf(job) : '';
    const others = entries.get(id);
    if (Array.isArray(others)) {
      others.push(job);
    } else {
      entries.set(id || job.id, id ? [job] : job);
    }
  }
  return [...entries.values()].map(entry => (Array.isArray(entry) ? runsOf(entry) : entry));
}

/** All runs of a job's group, among these jobs. */
export function runsWith(job: Job, jobs: Iterable<Job>): Runs {
  const id = groupIdOf(job);
  const others = [...jobs].filter(other => other.id !== job.id && groupIdOf(other) === id);
  return runsOf([job, ...others]);
}

function runsOf(members: Some): Runs {
  const jobs = [...members].sort((a, b) => a.run - b.run || a.created - b.created) as [
    Job,
    ...Job[]
  ];
  const newest = [...new Map(jobs.map(job => [job.run, job])).values()];
  const [first] = jobs;
  return { id: groupIdOf(first), name: first.group, jobs, newest, phase: phaseOf(newest) };
}

/** The same as `phase` in `nbtorchjob/ui/record.py`. */
function phaseOf(jobs: readonly Job[]): Phase {
  // Runs are stopped early on request, so they count as succeeded.
  const runPhases = new Set(jobs.map(job => (wasStopped(job) ? 'SUCCEEDED' : job.phase)));
  const first = (...phases: Phase[]) => phases.find(phase => runPhases.has(phase));
  const live = first('RUNNING', 'PENDING', 'SUBMITTED');
  if (live) {
    return first('SUCCEEDED', 'FAILED', 'CANCELLED') ? 'RUNNING' : live;
  }
  return first('FAILED', 'CANCELLED') ?? 'SUCCEEDED';
}

function wasStopped({ status }: Job): boolean {
  return status === 'STOPPED';
}

/** In the order in which runs are counted and drawn. */
const STANDS = [
  'SUCCEEDED',
  'RUNNING',
  'FAILED',
  'STOPPED',
  'CANCELLED',
  'PENDING',
  'SUBMITTED'
] as const;

/** How many runs are in which state, without the states that no run is in. */
export function shares({ newest }: Runs): (readonly [Phase | 'STOPPED', number])[] {
  return STANDS.flatMap(stand => {
    const count = newest.filter(job => (wasStopped(job) ? 'STOPPED' : job.phase) === stand).length;
    return count > 0 ? [[stand, count] as const] : [];
  });
}

/** How many runs are in which state: "5 done, 2 running, 1 failed". */
export function counted(runs: Runs, trans: TranslationBundle): string {
  const words: Readonly<Record<(typeof STANDS)[number], (n: number) => string>> = {
    SUCCEEDED: n => trans.__('%1 done', n),
    RUNNING: n => trans.__('%1 running', n),
    FAILED: n => trans.__('%1 failed', n),
    STOPPED: n => trans.__('%1 stopped early', n),
    CANCELLED: n => trans.__('%1 cancelled', n),
    PENDING: n => trans.__('%1 waiting', n),
    SUBMITTED: n => trans.__('%1 submitted', n)
  };
  return shares(runs)
    .map(([stand, n]) => words[stand](n))
    .join(', ');
}

/** Seconds from the first submission to the last end; `elapsed` gives how long a job has taken so far. */
export function elapsedOf({ jobs, newest }: Runs, elapsed: (job: Job) => number): number {
  const ends = newest.map(job => job.created + elapsed(job));
  return Math.max(...ends) - Math.min(...jobs.map(job => job.created));
}
