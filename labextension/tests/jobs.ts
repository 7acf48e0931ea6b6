/** Jobs for tests. */

import type { TranslationBundle } from '@jupyterlab/translation';

import type { Job } from '../src/model/record';

/** A job that runs, but for what is given. */
export function aJob(given: Partial<Job> = {}): Job {
  const id = given.id ?? 'local:train-1';
  return {
    id,
    name: id.replace(/.*[:/]/, ''),
    label: 'cell',
    backend: 'local',
    where: 'local',
    phase: 'RUNNING',
    status: given.phase ?? 'RUNNING',
    terminal: ['SUCCEEDED', 'FAILED', 'CANCELLED'].includes(given.phase ?? ''),
    notebook: 'work/train.ipynb',
    cell: 'c0ffee',
    created: 1_700_000_000,
    started: null,
    ended: null,
    elapsed: 100,
    nodes: { asked: [2, 2], now: 2 },
    nproc_per_node: 4,
    attempts: 1,
    restarts: { used: 0, limit: 0 },
    budgets: {},
    pending: [],
    failure: null,
    progress: null,
    metrics: [],
    still: null,
    kept: false,
    lab: null,
    promoted: '',
    note: '',
    tags: [],
    group: '',
    run: 0,
    artifacts: 0,
    resumable: false,
    curves: false,
    uses: [],
    ...given
  };
}

/** A run of the group "sweep". */
export function aRun(number: number, given: Partial<Job> = {}): Job {
  const label = `train(lr=0.${number})`;
  return aJob({ id: `local:sweep-r${number}`, label, group: 'sweep', run: number, ...given });
}

/** English as it is, as where no language pack is installed. */
export const english = {
  __: (text: string, ...values: unknown[]) => filled(text, values),
  _n: (one: string, many: string, count: number, ...values: unknown[]) =>
    filled(count === 1 ? one : many, [count, ...values])
} as TranslationBundle;

function filled(text: string, values: readonly unknown[]): string {
  return text.replace(/%(\d)/g, (_, place: string) => String(values[Number(place) - 1]));
}
