/** Sorting jobs, grouping them by state, and searching them (pure). */

import type { Job, Phase } from './record';
import { type Listed, folded, isRuns } from './runs';
import { ran } from './words';

/** In the order in which they are shown. */
export const GROUPS = [
  'attention',
  'running',
  'waiting',
  'failed',
  'succeeded',
  'cancelled'
] as const;

export type GroupName = (typeof GROUPS)[number];

/** "state": a group for each state, newest first. Any other order: one list without headings. */
export const SORTS = ['state', 'start', 'name', 'duration'] as const;

export type Sort = (typeof SORTS)[number];

export interface Group {
  /** null: the group of all jobs, without a heading. */
  readonly name: GroupName | null;
  readonly listed: readonly Listed[];
}

export interface Search {
  /** Every word must occur. */
  readonly text: string;
  /** Only jobs of this notebook; null: of any notebook. */
  readonly notebook: string | null;
}

const OF_PHASE: Readonly<Record<Phase, GroupName>> = {
  SUBMITTED: 'waiting',
  PENDING: 'waiting',
  RUNNING: 'running',
  SUCCEEDED: 'succeeded',
  FAILED: 'failed',
  CANCELLED: 'cancelled'
};

export function groupOf(listed: Listed): GroupName {
  if (needsAttention(listed)) {
    return 'attention';
  }
  const suspended = !isRuns(listed) && listed.status === 'SUSPENDED';
  return suspended ? 'waiting' : OF_PHASE[listed.phase];
}

// The same as `state/text/facts.ATTENTION`.
const ATTENTION: readonly string[] = [
  'HUNG',
  'STALLED',
  'LEAVING',
  'DEBUGGING',
  'RETRYING',
  'WAITING'
];

/** Whether a user should act on a job, or on one of a group's runs, or at least know about it. */
export function needsAttention(listed: Listed): boolean {
  return isRuns(listed) ? listed.newest.some(needsAttention) : ATTENTION.includes(listed.status);
}

/** The words of a search; a job must match all of them. */
export function wordsOf(text: string): string[] {
  return text.toLowerCase().split(/\s+/).filter(Boolean);
}

/** Whether each word occurs in a job's name, label, notebook, place, status, note or tags. */
export function matches(job: Job, words: readonly string[]): boolean {
  return words.every(word => haystack(job).includes(word));
}

/** Whether a search matches a job's whole group: its name, the function called, notebook or place. */
function isWithRuns({ group, label, notebook, where }: Job, words: readonly string[]): boolean {
  const text = [group, label.split('(')[0], notebook, where].join('\n').toLowerCase();
  return group !== '' && words.every(word => text.includes(word));
}

/** Jobs in an order; `elapsed` gives the seconds from a job's submission to now, or to its end. */
export function ordered(
  jobs: Iterable<Job>,
  sort: Sort = 'state',
  elapsed = (job: Job) => job.elapsed
): Job[] {
  const before =
    sort === 'name' ? byName : sort === 'duration' ? longestFirst(elapsed) : newestFirst;
  return [...jobs].sort(before);
}

/**
 * The jobs that a search finds, in the order given; by state, only the groups that have any. The runs of a
 * group are one entry, unless the search matches single runs and not the whole group.
 */
export function grouped(
  jobs: readonly Job[],
  { text, notebook }: Search,
  sort: Sort = 'state'
): Group[] {
  const words = wordsOf(text);
  const together = (job: Job) => isWithRuns(job, words);
  const hits = jobs.filter(
    job =>
      (notebook === null || job.notebook === notebook) && (matches(job, words) || together(job))
  );
  const listed = folded(hits, together);
  if (sort !== 'state') {
    return listed.length > 0 ? [{ name: null, listed }] : [];
  }
  const groups = new Map<GroupName, Listed[]>(GROUPS.map(name => [name, []]));
  listed.forEach(entry => groups.get(groupOf(entry))?.push(entry));
  return [...groups]
    .filter(([, members]) => members.length > 0)
    .map(([name, members]) => ({ name, listed: members }));
}

function newestFirst(a: Job, b: Job): number {
  return b.created - a.created || (a.id < b.id ? -1 : 1);
}

// "train-9" before "train-10".
const names = new Intl.Collator(undefined, { numeric: true });

function byName(a: Job, b: Job): number {
  return names.compare(a.name, b.name) || newestFirst(a, b);
}

function longestFirst(elapsed: (job: Job) => number): (a: Job, b: Job) => number {
  const took = (job: Job) => ran(job, elapsed(job)); // what its row shows
  return (a, b) => took(b) - took(a) || newestFirst(a, b);
}

// Records are immutable: the text to search in each one is made once, and dropped with the record.
const haystacks = new WeakMap<Job, string>();

function haystack(job: Job): string {
  let text = haystacks.get(job);
  if (text === undefined) {
    const { name, label, notebook, where, status, note, tags } = job;
    const tagged = tags.map(tag => `#${tag}`);
    text = [name, label, notebook, where, status, note, ...tagged].join('\n').toLowerCase();
    haystacks.set(job, text);
  }
  return text;
}
