/** Links to lines of logs: the address of this page, with the line to open. */

import type { Meant } from '../model/client';

/** A line of a rank's log, counted from 1 as in the log viewer. */
export interface Place {
  readonly rank: number;
  readonly line: number;
}

export type Linked = Place & Meant;

const JOB = 'nbtorchjob-logs';
const LINE = 'nbtorchjob-line';
const CREATED = 'nbtorchjob-created';

/** Matches an address that has such a link. */
export const LINKED = new RegExp(`[?&]${JOB}=`);

/** A page's address that opens a job's log at a line. */
export function linkTo(page: string, { id, created }: Meant, { rank, line }: Place): string {
  const url = new URL(page);
  url.search = url.hash = '';
  url.searchParams.set(JOB, id);
  url.searchParams.set(LINE, `${rank}.${line}`);
  if (created !== undefined) {
    url.searchParams.set(CREATED, `${created}`);
  }
  return url.href;
}

/** The line that an address's query links to; null: none. */
export function linked(search: string): Linked | null {
  const query = new URLSearchParams(search);
  const created = query.get(CREATED);
  return place(query.get(JOB), query.get(LINE), created === null ? undefined : Number(created));
}

/** The line of a log named by a job's id and `RANK.LINE`; null: these are invalid. */
export function place(id: unknown, line: unknown, created?: unknown): Linked | null {
  const match = /^(\d{1,9})\.(\d{1,9})$/.exec(typeof line === 'string' ? line : '');
  return typeof id === 'string' && id && match
    ? {
        id,
        created: typeof created === 'number' && Number.isFinite(created) ? created : undefined,
        rank: Number(match[1]),
        line: Number(match[2])
      }
    : null;
}

/** An address's query without the link. */
export function unlinked(search: string): string {
  const query = new URLSearchParams(search);
  query.delete(JOB);
  query.delete(LINE);
  query.delete(CREATED);
  return query.size ? `?${query}` : '';
}
