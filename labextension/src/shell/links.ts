/** Links to lines of logs: the address of this page, with what it is to open. */

/** A line of a rank's log, counted from 1 as the log viewer counts. */
export interface Place {
  readonly rank: number;
  readonly line: number;
}

export interface Linked extends Place {
  readonly id: string;
}

const JOB = 'nbtorchjob-logs';
const LINE = 'nbtorchjob-line';

/** What of an address is ours. */
export const LINKED = new RegExp(`[?&]${JOB}=`);

/** A page's address that opens a job's log at a line. */
export function linkTo(page: string, id: string, { rank, line }: Place): string {
  const url = new URL(page);
  url.search = url.hash = '';
  url.searchParams.set(JOB, id);
  url.searchParams.set(LINE, `${rank}.${line}`);
  return url.href;
}

/** What a link opens; null: nothing of ours. */
export function linked(search: string): Linked | null {
  const query = new URLSearchParams(search);
  return place(query.get(JOB), query.get(LINE));
}

/** A job by its id, and `RANK.LINE`. */
export function place(id: unknown, line: unknown): Linked | null {
  const found = /^(\d{1,9})\.(\d{1,9})$/.exec(typeof line === 'string' ? line : '');
  return typeof id === 'string' && id && found
    ? { id, rank: Number(found[1]), line: Number(found[2]) }
    : null;
}

/** An address's query without what is ours. */
export function unlinked(search: string): string {
  const query = new URLSearchParams(search);
  query.delete(JOB);
  query.delete(LINE);
  return query.size ? `?${query}` : '';
}
