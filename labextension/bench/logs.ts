/** The page that the log viewer is measured on, and the plain `<pre>` that it is held against. */

import { nullTranslator } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';

import { LogViewer } from '../src/logs';
import type { Job } from '../src/model/record';

import { frame, scroll, until } from './frames';

/** Milliseconds from the start: until anything could be read, until all was there and drawn. */
interface Opened {
  readonly first: number;
  readonly all: number;
  /** The longest that the page didn't answer. */
  readonly stuck: number;
}

const URL = `ws://${location.host}/logs`;

async function timed(shown: () => boolean, complete: () => boolean): Promise<Opened> {
  const start = performance.now();
  const before = await until(shown);
  const first = performance.now() - start;
  const after = await until(complete);
  return { first, all: performance.now() - start, stuck: Math.max(before, after) };
}

function viewer(query: string, openAtFailure = false): LogViewer {
  const client = {
    openLogs: (_job: unknown, since: string) => new WebSocket(`${URL}?${query}&since=${since}`),
    job: () => Promise.reject<Job>(new Error('the server is gone')),
    logUrl: (_job: unknown, rank: number) => `/log/${rank}`,
    archiveUrl: () => '/logs.zip'
  };
  const job = { id: 'local:bench', name: 'bench', created: 0 };
  const made = new LogViewer({ client, job, trans: nullTranslator.load(''), openAtFailure });
  Widget.attach(made, document.body);
  return made;
}

function rows(): string {
  return document.querySelector('.jp-nbtorchjob-log-rows')?.textContent ?? '';
}

async function openViewer(lines: number): Promise<Opened> {
  viewer(`lines=${lines}`);
  return timed(
    () => rows() !== '',
    () => rows().includes(`line ${lines - 1} `)
  );
}

/** A browser's best: all of the text at once, as it shows a text file. */
async function openPlain(lines: number): Promise<Opened> {
  const pre = document.createElement('pre');
  pre.className = 'plain';
  document.body.append(pre);
  const socket = new WebSocket(`${URL}?lines=${lines}&since=`);
  socket.binaryType = 'arraybuffer';
  const decoder = new TextDecoder();
  let [text, ended] = ['', false];
  socket.onmessage = ({ data }) => {
    if (typeof data !== 'string') {
      const bytes = new Uint8Array(data);
      text += decoder.decode(bytes.subarray(bytes.indexOf(10) + 1), { stream: true });
    } else if (data.includes('"end"')) {
      pre.textContent = text;
      [text, ended] = ['', true];
    }
  };
  return timed(
    () => ended,
    () => ended
  );
}

/** Milliseconds until every line with a text is known. */
async function find(text: string, lines: number): Promise<number> {
  const open = document.querySelector<HTMLElement>('.jp-nbtorchjob-log-scroller');
  open?.dispatchEvent(new KeyboardEvent('keydown', { key: '/', bubbles: true }));
  const input = document.querySelector<HTMLInputElement>('.jp-nbtorchjob-log-find');
  const start = performance.now();
  if (input) {
    input.value = text;
    input.dispatchEvent(new Event('input'));
  }
  const count = document.querySelector('.jp-nbtorchjob-log-count');
  await until(() => count?.textContent === `${lines.toLocaleString()} lines`);
  return performance.now() - start;
}

async function findPlain(text: string): Promise<number> {
  const start = performance.now();
  const wanted = new RegExp(text, 'i');
  const found = document
    .querySelector('pre')
    ?.textContent.split('\n')
    .filter(l => wanted.test(l));
  await frame();
  return found ? performance.now() - start : 0;
}

Object.assign(window, { bench: { viewer, openViewer, openPlain, scroll, find, findPlain } });
