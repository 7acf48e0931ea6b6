/** The runs of a group, folded into one, as the list in a notebook folds them (pure). */

import type { TranslationBundle } from '@jupyterlab/translation';

import type { Job, Phase } from './record';

type Some = readonly [Job, ...Job[]];

export interface Runs {
  /** No job has it. */
  readonly id: string;
  readonly name: string;
  /** By their numbers; of one that was retried each job. */
  readonly jobs: Some;
  /** Of each run the newest job: it counts. */
  readonly newest: readonly Job[];
  /** Of the whole: it goes on while one of its runs does. */
  readonly phase: Phase;
}

/** What has a place of its own in the list. */
export type Listed = Job | Runs;

export function isRuns(listed: Listed): listed is Runs {
  return 'jobs' in listed;
}

export function jobsOf(listed: Listed): readonly Job[] {
  return isRuns(listed) ? listed.jobs : [listed];
}

/** Which group a job is a run of: a name may be that of several places; "" of none. */
export function groupIdOf({ group, where }: Job): string {
  return group && `runs:${where}/${group}`;
}

/** Jobs in their order, where those of a group that are `together` stand as one in the first one's place. */
export function folded(jobs: readonly Job[], together: (job: Job) => boolean): Listed[] {
  const found = new Map<string, Job | [Job, ...Job[]]>();
  for (const job of jobs) {
    const id = together(job) ? groupIdOf(job) : '';
    const others = found.get(id);
    if (Array.isArray(others)) {
      others.push(job);
    } else {
      found.set(id || job.id, id ? [job] : job);
    }
  }
  return [...found.values()].map(each => (Array.isArray(each) ? runsOf(each) : each));
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

/** As `nbtorchjob/ui/record.py` has it. */
function phaseOf(jobs: readonly Job[]): Phase {
  // That some are stopped early is what was asked for.
  const found = new Set(jobs.map(job => (wasStopped(job) ? 'SUCCEEDED' : job.phase)));
  const first = (...phases: Phase[]) => phases.find(phase => found.has(phase));
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

/** How many runs stand where, without those of which there are none. */
export function shares({ newest }: Runs): (readonly [Phase | 'STOPPED', number])[] {
  return STANDS.flatMap(stand => {
    const count = newest.filter(job => (wasStopped(job) ? 'STOPPED' : job.phase) === stand).length;
    return count > 0 ? [[stand, count] as const] : [];
  });
}

/** How many runs stand where: "5 done, 2 running, 1 failed". */
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

/** Seconds from the first one's submission to the last one's end; `elapsed` is how long one has taken by now. */
export function elapsedOf({ jobs, newest }: Runs, elapsed: (job: Job) => number): number {
  const ends = newest.map(job => job.created + elapsed(job));
  return Math.max(...ends) - Math.min(...jobs.map(job => job.created));
}
