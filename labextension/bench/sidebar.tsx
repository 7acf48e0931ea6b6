/** The page that the sidebar is measured on, and the plain list that it is held against. */

import type { Event } from '@jupyterlab/services';
import { nullTranslator } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { JOBS_SCHEMA } from '../src/model/changes';
import { CommandIDs } from '../src/ids';
import { JobsModel } from '../src/model/model';
import type { Job, Jobs, Phase } from '../src/model/record';
import { JobsSidebar } from '../src/sidebar';
import { gist } from '../src/sidebar/list/words';
import { aJob } from '../tests/jobs';

import { frame, scroll, until } from './frames';

const PHASES: Phase[] = ['RUNNING', 'PENDING', 'FAILED', 'SUCCEEDED', 'CANCELLED'];
const events = new Signal<object, Event.Emission>({});
let listing: Jobs; // what the server answers
const trans = nullTranslator.load('');

function job(index: number): Job {
  const phase = PHASES[index % PHASES.length] ?? 'RUNNING';
  const remote = index % 3 === 0;
  const name = `${remote ? 'finetune-bert' : 'train'}-${index}`;
  return aJob({
    id: remote ? `kubernetes:kind/ml/${name}` : `local:${name}`,
    label: index % 2 ? 'train(lr=0.1, epochs=20)' : 'cell',
    backend: remote ? 'kubernetes' : 'local',
    where: remote ? 'kubernetes: pytorchjob in ml, context kind' : 'local',
    phase,
    notebook: `work/train-${index % 9}.ipynb`,
    created: 1.7e9 + index * 60,
    elapsed: (37 * index) % 9000,
    budgets: { failures: { used: index % 3, limit: 3 } },
    pending: phase === 'PENDING' ? ['0/3 hosts fit: 3 have no free nvidia.com/gpu'] : [],
    failure: phase === 'FAILED' ? 'rank 3: RuntimeError: CUDA out of memory' : null,
    progress: phase === 'RUNNING' ? { unit: 'epoch', done: 3, total: 20, left: 130 } : null
  });
}

function jobs(count: number): Job[] {
  return Array.from({ length: count }, (_, index) => job(index));
}

async function timed(work: () => void, shown: () => boolean): Promise<number> {
  const start = await frame();
  work();
  await until(shown);
  return (await frame()) - start;
}

function text(selector: string): string {
  return document.querySelector(selector)?.textContent ?? '';
}

function openSidebar(count: number): Promise<number> {
  listing = { jobs: jobs(count), removed: [], whole: true, mark: 'born.1', notes: [], unseen: [] };
  const commands = new CommandRegistry();
  Object.values(CommandIDs).forEach(id =>
    commands.addCommand(id, { label: id, execute: () => {} })
  );
  const open = () => {
    const client = {
      jobs: () => Promise.resolve(listing),
      files: () => Promise.reject(new Error('nobody asks'))
    };
    const model = new JobsModel({ client, events });
    Widget.attach(
      new JobsSidebar({ model, client, commands, openFile: () => {}, trans }),
      document.body
    );
  };
  return timed(open, () => text('[role=treegrid]').includes('train'));
}

/** A browser's best: all jobs at once, as text. */
function openPlain(count: number): Promise<number> {
  const list = document.createElement('ul');
  list.className = 'plain';
  document.body.append(list);
  const open = () => fill(jobs(count));
  return timed(open, () => true);
}

function fill(shown: readonly Job[]): void {
  const rows = shown.map(each => {
    const row = document.createElement('li');
    row.innerText = `${each.name} ${each.label} ${each.elapsed} s\n${each.status} ${gist(each, trans)}`;
    return row;
  });
  document.querySelector('.plain')?.replaceChildren(...rows);
}

/** The longest frame, in milliseconds, while one of many jobs is seen to change. */
async function change(count: number): Promise<number> {
  const newest = jobs(count)
    .reverse()
    .find(each => each.phase === 'RUNNING');
  const list = document.querySelector('[role=treegrid]');
  if (list && newest) {
    list.scrollTop = 0;
    await frame();
    listing = { ...listing, jobs: [{ ...newest, label: 'changed' }], whole: false };
    events.emit({ schema_id: JOBS_SCHEMA });
  }
  return until(() => text('[role=treegrid]').includes('changed'));
}

async function changePlain(count: number): Promise<number> {
  await frame();
  return timed(
    () => fill(jobs(count)),
    () => true
  );
}

/** Milliseconds until the jobs that a search finds are seen. */
function find(wanted: string, found: number): Promise<number> {
  const input = document.querySelector('input');
  const value = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value');
  const type = () => {
    value?.set?.call(input, wanted); // React has a setter of its own on the element
    input?.dispatchEvent(new InputEvent('input', { bubbles: true }));
  };
  return timed(type, () => text('[role=status]').startsWith(`${found} `));
}

function findPlain(wanted: string, count: number): Promise<number> {
  const found = () => fill(jobs(count).filter(each => each.name.includes(wanted)));
  return timed(found, () => true);
}

Object.assign(window, {
  bench: { openSidebar, openPlain, scroll, change, changePlain, find, findPlain }
});
