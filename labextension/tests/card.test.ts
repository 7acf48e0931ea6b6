// @vitest-environment jsdom
// The card's script, which the kernel sends and JupyterLab runs in the output that it stands in.
import { readFileSync } from 'node:fs';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';

const SCRIPT = readFileSync('../nbtorchjob/ui/card/live.js', 'utf8');
const AT = '/user/me/nbtorchjob/api/jobs/local%3Atrain';

const asked: string[] = [];
let host: HTMLElement;
let failure: (() => Response) | null; // how requests fail; null: they don't

/** A running card, as far as the script looks. */
function card(text: string, isWaitedFor = false): string {
  const waitedFor = isWaitedFor ? 'nbtorchjob-waited-for' : '';
  return `<div class="nbtorchjob ${waitedFor}"><div><b class="nbt-state">Running</b></div>
    <div class="nbtorchjob-drawn"><span>drawn at 10:15</span><span class="nbt-tools"></span></div>
    <p>${text}</p></div>`;
}

/** Shows the saved card of a job on a page of a server that has another one of its name. */
function show(created: number, served: { readonly created: number }): void {
  document.body.innerHTML = `<script id="jupyter-config-data" type="application/json">
    {"baseUrl": "/user/me/", "token": "t"}</script><div id="output">${card('as saved')}</div>`;
  host = document.querySelector('#output') as HTMLElement;
  vi.stubGlobal('fetch', async (url: string, { method }: { method: string }) => {
    asked.push(`${method} ${url}`);
    if (failure) {
      return failure();
    }
    const meant = new URL(url, 'http://hub').searchParams.get('created');
    if (meant !== null && Number(meant) !== served.created) {
      const message = 'train was deleted; another job has its name';
      return Response.json({ message, reason: 'Not Found' }, { status: 404 });
    }
    return new Response(card('as served'));
  });
  const buttons = [{ verb: 'cancel', label: 'Cancel', asks: true, done: 'told to end' }];
  const given = { job: { id: 'local:train', created }, name: 'train', kernel: '', buttons };
  const run = new Function('host', 'given', `(${SCRIPT})(host, given)`);
  run(host, given);
}

beforeEach(() => {
  asked.length = 0;
  failure = null;
  vi.useFakeTimers();
  vi.stubGlobal('confirm', () => true);
});

afterEach(() => {
  host.remove(); // its looks end
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

it('is drawn on by the server where no kernel draws it', async () => {
  show(100.25, { created: 100.25 });
  await vi.advanceTimersByTimeAsync(10_000);

  expect(host.querySelector('p')?.textContent).toBe('as served');
  const cancel = [...host.querySelectorAll('button')].find(each => each.textContent === 'Cancel');
  cancel?.click();
  await vi.advanceTimersByTimeAsync(0);
  expect(asked).toContain(`POST ${AT}/cancel?created=100.25`);
});

it('stays that of its job once another one has its name', async () => {
  show(100.25, { created: 200.5 });
  await vi.advanceTimersByTimeAsync(10_000);

  expect(host.querySelector('p')?.textContent).toBe('as saved');
  expect(host.querySelector('.nbt-state')?.textContent).toBe('Deleted');
  expect(host.querySelector('[role=status]')?.textContent).toMatch('This job was deleted');
  expect(host.querySelectorAll('button')).toHaveLength(0);
  expect(asked.every(request => request.endsWith('?created=100.25'))).toBe(true);
});

it('is held by nothing but its page', async () => {
  const hosts: { readonly host: HTMLElement }[] = [];
  class Collected {
    constructor(readonly host: HTMLElement) {
      hosts.push(this);
    }
    deref(): HTMLElement | undefined {
      return this.host.isConnected ? this.host : undefined; // as if its memory were free at once
    }
  }
  vi.stubGlobal('WeakRef', Collected);
  show(100.25, { created: 100.25 });
  await vi.advanceTimersByTimeAsync(20_000);
  expect(hosts.map(({ host }) => host)).toEqual([host]);
  expect(vi.getTimerCount()).toBeGreaterThan(0);

  host.remove();
  await vi.advanceTimersByTimeAsync(30_000);

  expect(vi.getTimerCount()).toBe(0);
});

it('copies a manifest on a page without TLS', async () => {
  show(100.25, { created: 100.25 });
  await vi.advanceTimersByTimeAsync(2000);
  const copies: string[] = [];
  document.execCommand = () => {
    copies.push((document.querySelector('textarea') as HTMLTextAreaElement).value);
    return true;
  };
  const copy = [...host.querySelectorAll('button')].find(
    ({ textContent }) => textContent === 'Copy manifest'
  );

  copy?.click();
  await vi.advanceTimersByTimeAsync(0);

  expect(copies).toEqual([card('as served')]);
  expect(host.querySelector('textarea')).toBeNull();
  expect(host.querySelector('[role=status]')?.textContent).toBe('copied');
});

const unreachable = (): Response => {
  throw new TypeError('Failed to fetch');
};

it.each([
  ['the network', unreachable],
  ['a proxy', () => new Response('<h1>Bad Gateway</h1>', { status: 502 })],
  ['an expired login', () => Response.json({ message: 'Forbidden' }, { status: 403 })]
])('gets its buttons once %s is no longer in the way', async (_, fails) => {
  failure = fails;
  show(100.25, { created: 100.25 });
  await vi.advanceTimersByTimeAsync(20_000);
  expect(host.querySelectorAll('button')).toHaveLength(0);
  expect(asked.length).toBeLessThanOrEqual(5);

  failure = null;
  await vi.advanceTimersByTimeAsync(10_000);

  expect(host.querySelector('p')?.textContent).toBe('as served');
  expect(host.querySelectorAll('button').length).toBeGreaterThan(0);
});

it('asks a server without the extension only once', async () => {
  failure = () => Response.json({ message: 'Not Found' }, { status: 404 });
  show(100.25, { created: 100.25 });
  await vi.advanceTimersByTimeAsync(60_000);

  expect(asked).toHaveLength(1);
});

it('shows why the server draws nothing only until something is drawn', async () => {
  show(100.25, { created: 100.25 });
  await vi.advanceTimersByTimeAsync(2000);
  failure = unreachable;
  await vi.advanceTimersByTimeAsync(6000);
  expect(host.textContent).toContain('Failed to fetch');

  host.innerHTML = card('as the kernel draws it', true);
  await vi.advanceTimersByTimeAsync(1000);

  expect(host.textContent).toContain('as the kernel draws it');
  expect(host.textContent).not.toContain('Failed to fetch');
});
