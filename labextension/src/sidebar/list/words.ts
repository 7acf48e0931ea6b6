/** A job in words, for a row and its tooltip (pure). */

import type { TranslationBundle } from '@jupyterlab/translation';

import { type GroupName, needsAttention } from '../../model/groups';
import type { Budget, Job, Progress, Strip } from '../../model/record';
import { type Runs, counted } from '../../model/runs';
import { duration, shape, status } from '../../model/words';

const DOT = ' · ';

/** A group's heading. */
export function heading(name: GroupName, trans: TranslationBundle): string {
  const words: Record<GroupName, string> = {
    attention: trans.__('Needs you'),
    running: trans.__('Running'),
    waiting: trans.__('Waiting'),
    failed: trans.__('Failed'),
    succeeded: trans.__('Succeeded'),
    cancelled: trans.__('Cancelled')
  };
  return words[name];
}

/** How long ago something was, in one unit: "now", "5 min ago", "3 h ago", "2 d ago". */
export function ago(seconds: number, trans: TranslationBundle): string {
  const minutes = Math.floor(seconds / 60);
  if (minutes < 1) {
    return trans.__('now');
  }
  if (minutes < 60) {
    return trans.__('%1 min ago', minutes);
  }
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? trans.__('%1 h ago', hours) : trans.__('%1 d ago', Math.floor(hours / 24));
}

/** How much of each budget is used: "failures 1/2 · preemptions 4/∞". */
export function budgets(
  entries: readonly (readonly [string, Budget])[],
  trans: TranslationBundle
): string {
  const names: Record<string, string> = {
    failures: trans.__('failures'),
    preemptions: trans.__('preemptions')
  };
  return entries
    .map(([name, { used, limit }]) => `${names[name] ?? name} ${used}/${limit ?? '∞'}`)
    .join(DOT);
}

/** As the card words it: "3 of 20 epochs · 2 min 10 s left". */
export function progress(of: Progress, trans: TranslationBundle): string {
  return [reached(of, trans), toGo(of, trans)].filter(Boolean).join(DOT);
}

function reached({ unit, done, total }: Progress, trans: TranslationBundle): string {
  const whole = { epoch: epochs, step: steps, percent: percents }[unit] ?? reports;
  return whole(done, total, trans);
}

function toGo({ left }: Progress, trans: TranslationBundle): string {
  return left === null ? '' : trans.__('%1 left', duration(left, trans));
}

function steps(done: number, total: number | null, trans: TranslationBundle): string {
  return total === null
    ? trans._n('%1 step', '%1 steps', done)
    : trans._n('%2 of %1 step', '%2 of %1 steps', total, done);
}

function epochs(done: number, total: number | null, trans: TranslationBundle): string {
  return total === null
    ? trans._n('%1 epoch', '%1 epochs', done)
    : trans._n('%2 of %1 epoch', '%2 of %1 epochs', total, done);
}

function percents(done: number): string {
  return `${done} %`;
}

function reports(done: number, _: number | null, trans: TranslationBundle): string {
  return trans._n('%1 report', '%1 reports', done);
}

/** The notebook's name without its folders. */
export function notebookName(job: Job): string {
  return job.notebook.split('/').pop() ?? '';
}

/** What a row shows beside the name: what was run or, if that is just a cell, its notebook. */
export function origin(job: Job): string {
  return (job.label === 'cell' && notebookName(job)) || job.label;
}

/** What a row shows below the name, the most urgent first, as the end may be cut off. */
export function gist(job: Job, trans: TranslationBundle): string {
  const going = job.terminal ? null : job.progress;
  const used = Object.entries(job.budgets).filter(([, budget]) => budget.used > 0);
  const facts = [
    job.failure,
    job.terminal ? null : job.pending[0],
    tagged(job),
    ...(job.failure ? [] : job.metrics.slice(0, 1)),
    going && toGo(going, trans),
    ...(job.failure ? [] : job.metrics.slice(1)),
    going && reached(going, trans),
    shape(job, trans),
    budgets(used, trans),
    origin(job) === job.label && notebookName(job),
    job.where
  ];
  return facts.filter(Boolean).join(DOT);
}

function tagged({ tags }: Job): string {
  return tags.map(tag => `#${tag}`).join(' ');
}

/** The call that a group's runs have in common: "train(…)". */
export function runsCall({ jobs: [first] }: Runs): string {
  const [name = '', call] = first.label.split('(');
  return call === undefined ? name : `${name}(…)`;
}

/** What the row of a group's runs shows beside its name: what was run or, if just a cell, its notebook. */
export function runsOrigin(runs: Runs): string {
  const call = runsCall(runs);
  return (call === 'cell' && notebookName(runs.jobs[0])) || call;
}

/** What the row of a group's runs shows below its name, the most urgent first. */
export function runsGist(runs: Runs, trans: TranslationBundle): string {
  const [first] = runs.jobs;
  const urgent = runs.newest.find(needsAttention);
  const facts = [
    urgent && `${urgent.name}: ${status(urgent, trans)}`,
    counted(runs, trans),
    runsOrigin(runs) === runsCall(runs) && notebookName(first),
    trans._n('%1 run', '%1 runs', runs.newest.length),
    first.where
  ];
  return facts.filter(Boolean).join(DOT);
}

/** The use of one resource: "memory 7.2 of 8 GB"; with the number of its `node` unless null. */
export function strip(
  { of, newest }: Strip,
  node: number | null,
  trans: TranslationBundle
): string {
  const words = { CPU: trans.__('CPU'), memory: trans.__('memory'), GPU: trans.__('GPU') };
  const used = `${words[of]} ${newest}`;
  return node === null ? used : trans.__('node %1: %2', node, used);
}

/** Everything known about a job, one fact per line. */
export function details(job: Job, trans: TranslationBundle): string {
  const { restarts } = job;
  const lines = [
    [job.name, job.label].filter(Boolean).join(DOT),
    status(job, trans),
    [tagged(job), job.note].filter(Boolean).join(DOT),
    job.failure,
    ...job.pending,
    job.progress && progress(job.progress, trans),
    ...job.uses.map(({ node, strips }) =>
      strips
        .map((usage, at) => strip(usage, at || job.nodes.asked[1] === 1 ? null : node, trans))
        .join(DOT)
    ),
    shape(job, trans),
    job.attempts > 1 && trans.__('attempt %1', job.attempts),
    restarts.limit > 0 && trans.__('restarts %1/%2', restarts.used, restarts.limit),
    budgets(Object.entries(job.budgets), trans),
    job.notebook && trans.__('notebook %1', job.notebook),
    job.cell && trans.__('cell %1', job.cell),
    job.where,
    trans.__('submitted %1', new Date(job.created * 1000).toLocaleString())
  ];
  return lines.filter(Boolean).join('\n');
}
