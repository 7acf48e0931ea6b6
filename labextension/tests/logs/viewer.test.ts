// @vitest-environment jsdom
import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { LogViewer } from '../../src/logs';
import type { Failed } from '../../src/logs/stream';
import { RequestError } from '../../src/model/client';
import type { JobsModel } from '../../src/model/model';
import type { Job } from '../../src/model/record';

import { aJob, english } from '../jobs';

// Lumino asks for it when it is loaded; jsdom has none.
vi.hoisted(() => vi.stubGlobal('DragEvent', class extends MouseEvent {}));

const TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: no\n';

interface Line {
  onopen?: () => void;
  onmessage?: (event: { data: unknown }) => void;
  onclose?: () => void;
  close: () => void;
}

let viewer: LogViewer;
let asked: (readonly number[] | null)[];
let socket: Line;
let copied: [string, string][];
let refusal: RequestError | null;

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal(
    'ResizeObserver',
    class {
      constructor(private readonly resized: () => void) {}
      observe() {
        this.resized();
      }
      disconnect() {}
    }
  );
  vi.spyOn(HTMLElement.prototype, 'clientHeight', 'get').mockReturnValue(400);
  asked = [];
  copied = [];
  refusal = null;
});

afterEach(() => {
  viewer.dispose();
  vi.useRealTimers();
  vi.unstubAllGlobals();
  vi.restoreAllMocks();
});

function open(openAtFailure = false, model?: JobsModel): void {
  const openLogs = (_job: unknown, _since: string, ranks: readonly number[] | null) => {
    asked.push(ranks);
    socket = { close: () => {} };
    return socket as unknown as WebSocket;
  };
  viewer = new LogViewer({
    client: {
      openLogs,
      job: () => (refusal ? Promise.reject(refusal) : Promise.resolve(aJob())),
      logUrl: ({ id }, rank) => `/${id}/${rank}`,
      archiveUrl: ({ id }, times) => `/${id}/zip?${times}`
    },
    job: { id: aJob().id, name: 'a', created: aJob().created },
    trans: english,
    openAtFailure,
    copy: (text, said) => copied.push([text, said]),
    link: (rank, line) => `link to ${rank}.${line}`,
    ...(model && { model })
  });
  Widget.attach(viewer, document.body);
}

async function says(message: object): Promise<void> {
  socket.onmessage?.({ data: JSON.stringify(message) });
  await drawn();
}

async function hears(job: Partial<Job>, failed: Failed | null = null): Promise<void> {
  const nodes = { asked: [1, 1], now: 1 } as const;
  await says({ job: aJob({ nodes, nproc_per_node: 2, ...job }), failed });
}

async function knows(job: Partial<Job>, failed: Failed | null = null): Promise<void> {
  await hears(job, failed);
  await says({ loaded: true });
}

async function wrote(head: string, text: string): Promise<void> {
  socket.onmessage?.({ data: new TextEncoder().encode(`${head}\n${text}`).buffer });
  await drawn();
}

async function drawn(): Promise<void> {
  await vi.advanceTimersByTimeAsync(100);
}

function all<T extends Element = HTMLElement>(selector: string): T[] {
  return [...viewer.node.querySelectorAll<T>(selector)];
}

function rows(): string[] {
  return all('.jp-nbtorchjob-log-row').map(row => row.textContent ?? '');
}

function button(label: string): HTMLButtonElement {
  const found = all<HTMLButtonElement>('button').find(each => each.textContent?.startsWith(label));
  expect(found, label).toBeDefined();
  return found as HTMLButtonElement;
}

async function press(label: string): Promise<void> {
  button(label).click();
  await drawn();
}

async function type(selector: string, value: string): Promise<void> {
  const [input] = all<HTMLInputElement>(selector);
  Object.assign(input ?? {}, { value });
  input?.dispatchEvent(new Event(input.tagName === 'SELECT' ? 'change' : 'input'));
  await vi.advanceTimersByTimeAsync(400);
}

async function key(
  name: string,
  selector = '.jp-nbtorchjob-log-scroller',
  more: KeyboardEventInit = {}
): Promise<void> {
  const pressed = new KeyboardEvent('keydown', { key: name, bubbles: true, ...more });
  all(selector)[0]?.dispatchEvent(pressed);
  await drawn();
}

function many(count: number): string {
  return Array.from({ length: count }, (_, line) => `line ${line}\n`).join('');
}

describe('the log viewer', () => {
  it('merges ranks, and shows them side by side', async () => {
    open();
    await knows({});
    await wrote('0.0.0', 'a\n');
    await wrote('1.0.0', 'b\n');
    expect(rows()).toEqual(['a', 'b']);
    await press('Merged');
    expect(all('[role=log]').map(log => log.getAttribute('aria-label'))).toEqual([
      'Log of rank 0',
      'Log of rank 1'
    ]);
    expect(button('Merged').getAttribute('aria-pressed')).toBe('false');
  });

  it('shows hostile text as text', async () => {
    open();
    await knows({ name: '<b>x</b>', failure: '<img src=x onerror=alert(1)>' });
    await wrote('0.0.0', '<script>alert(1)</script>\u001b]8;;javascript:x\u001b\\y\n');
    expect(rows()).toEqual(['<script>alert(1)</script>y']);
    expect(all('script, img, b')).toEqual([]);
  });

  it('says how it stands with the job and the server', async () => {
    open();
    await knows({ pending: ['no nodes'], phase: 'PENDING' });
    expect(viewer.node.textContent).toContain('Pending');
    expect(viewer.node.textContent).toContain('no nodes');
    await says({ message: 'the cluster is gone' });
    socket.onopen?.();
    socket.onclose?.();
    await drawn();
    expect(viewer.node.textContent).toContain('reconnecting · the cluster is gone');
    await vi.advanceTimersByTimeAsync(60_000);
    await knows({});
    expect(viewer.node.textContent).not.toContain('reconnecting');
  });

  it('opens at the traceback also where the first record says nothing of a failure yet', async () => {
    open(true);
    await knows({ phase: 'SUBMITTED' });
    await knows({ phase: 'FAILED' }, { rank: 1, round: 0 });
    await wrote('1.0.0', `${'line\n'.repeat(500)}${TRACEBACK}`);
    expect(rows().join()).toContain('ValueError: no');
    expect(button('Rank 1').textContent).toContain('(1 of 2)');
  });

  it('has the whole traceback in view though it came in parts', async () => {
    open(true);
    await knows({ phase: 'FAILED' }, { rank: 1, round: 0 });
    const [head = '', ...rest] = TRACEBACK.split(/(?<=\n)/);
    await wrote('1.0.0', many(500) + head);
    await wrote(`1.0.${many(500).length + head.length}`, rest.join(''));
    const scroll = all('.jp-nbtorchjob-log-scroller')[0]?.scrollTop ?? 0;
    expect(scroll).toBe(503 * 18 - 400);
  });

  it('stays where a reader scrolls up, however slowly that begins', async () => {
    open();
    await knows({});
    await wrote('0.0.0', many(100));
    const [scroller] = all('.jp-nbtorchjob-log-scroller');
    const scroll = (by: number) => {
      scroller?.dispatchEvent(new WheelEvent('wheel', { deltaY: by }));
      Object.assign(scroller ?? {}, { scrollTop: (scroller?.scrollTop ?? 0) + by });
      scroller?.dispatchEvent(new Event('scroll'));
    };

    scroll(-1); // as smooth scrolling begins
    await wrote(`0.0.${many(100).length}`, many(50));
    expect(button('Follow').getAttribute('aria-pressed')).toBe('false');
    expect(scroller?.scrollTop).toBe(100 * 18 - 400 - 1);

    scroll(50 * 18 + 1);
    await drawn();
    expect(button('Follow').getAttribute('aria-pressed')).toBe('true');
  });

  it('opens at the traceback of the rank that failed first', async () => {
    open(true);
    await knows({ phase: 'FAILED', nproc_per_node: 4 }, { rank: 2, round: 0 });
    await wrote('2.0.0', many(500));
    await wrote('2.0.4390', TRACEBACK + many(300));
    await says({ end: true });
    expect(all('.jp-nbtorchjob-log-current').map(row => row.textContent)).toEqual([
      'Traceback (most recent call last):'
    ]);
    expect(all('[role=log]')[0]?.getAttribute('aria-label')).toBe('Log of rank 2');
    expect(button('Follow').getAttribute('aria-pressed')).toBe('false');
  });

  it('follows until it is moved, counts what comes, and jumps back', async () => {
    open();
    await knows({});
    await wrote('0.0.0', many(1000));
    expect(rows().at(-1)).toBe('line 999');
    await key('Home');
    await wrote('0.0.9000', 'newest\n');
    expect(rows()[0]).toBe('line 0');
    expect(rows().length).toBeLessThan(60);
    button('↓ 1 new line').focus();
    await press('↓ 1 new line');
    expect(rows().at(-1)).toBe('newest');
    expect(document.activeElement).toBe(all('[role=log]')[0]);
  });

  it('keeps the keys when a long line is shown', async () => {
    open();
    await knows({});
    await wrote('0.0.0', `${'x'.repeat(50_000)}\n`);
    const more = button('…');
    more.focus();
    await press('…');
    expect(more.isConnected).toBe(false);
    expect(document.activeElement).toBe(all('[role=log]')[0]);
  });

  it('keeps following when it is the layout that moves the scroll bar', async () => {
    open();
    await knows({});
    await wrote('0.0.0', many(1000));
    const [scroller] = all('.jp-nbtorchjob-log-scroller');
    vi.spyOn(HTMLElement.prototype, 'clientHeight', 'get').mockReturnValue(500);
    Object.assign(scroller ?? {}, { scrollTop: 17_000 });
    scroller?.dispatchEvent(new Event('scroll'));
    await drawn();
    expect(button('Follow').getAttribute('aria-pressed')).toBe('true');
    Object.assign(scroller ?? {}, { scrollTop: 900 });
    scroller?.dispatchEvent(new Event('scroll'));
    await drawn();
    expect(button('Follow').getAttribute('aria-pressed')).toBe('false');
  });

  it('takes only what goes beyond the view for the width of its text', async () => {
    open();
    await knows({});
    vi.spyOn(HTMLElement.prototype, 'clientWidth', 'get').mockReturnValue(800);
    const wide = vi.spyOn(HTMLElement.prototype, 'scrollWidth', 'get').mockReturnValue(800);
    await wrote('0.0.0', 'short\n');
    const width = () => all('.jp-nbtorchjob-log-spacer')[0]?.style.minWidth;
    expect(width()).toBe('');
    wide.mockReturnValue(950);
    await wrote('0.0.6', `${'x'.repeat(120)}\n`);
    expect(width()).toBe('950px');
  });

  it('keeps the keys when the job’s size brings other columns', async () => {
    open();
    viewer.activate();
    await drawn();
    await knows({});
    expect(document.activeElement).toBe(all('.jp-nbtorchjob-log-scroller')[0]);
  });

  it('says that the job was deleted, and asks what else it missed when it is back', async () => {
    const changed = new Signal<object, void>({});
    const jobs = new Map([[aJob().id, aJob()]]);
    const notes: string[] = ['kind: no answer'];
    const refresh = vi.fn(async () => {});
    const elapsed = () => 100;
    open(false, { jobs, notes, changed, elapsed, refresh } as unknown as JobsModel);
    await knows({ phase: 'SUCCEEDED' });
    expect(refresh).toHaveBeenCalledOnce();
    await says({ end: true });
    jobs.clear();
    changed.emit();
    expect(viewer.node.textContent).not.toContain('deleted');
    notes.pop();
    changed.emit();
    expect(viewer.node.textContent).toContain('Succeeded, deleted');
  });

  it('counts on from when the job began, also while the logs can’t be had', async () => {
    const changed = new Signal<object, void>({});
    const job = aJob({ started: aJob().created + 3600, elapsed: 3660 });
    const began = Date.now();
    const elapsed = () => job.elapsed + (Date.now() - began) / 1000;
    const jobs = new Map([[job.id, job]]);
    open(false, { jobs, notes: [], changed, elapsed } as unknown as JobsModel);
    const took = () => all('.jp-nbtorchjob-log-facts')[0]?.textContent?.split(' · ')[0];
    socket.onclose?.();
    expect(took()).toBe('1 min 00 s');

    await vi.advanceTimersByTimeAsync(60_000);
    expect(took()).toBe('2 min 00 s');
    changed.emit(); // another job's record is another one now
    expect(took()).toBe('2 min 00 s');
  });

  it('is that of the deleted job also when another one has its name', async () => {
    const changed = new Signal<object, void>({});
    const elapsed = () => 100;
    const jobs = new Map([[aJob().id, aJob()]]);
    open(false, {
      jobs,
      notes: [],
      changed,
      elapsed,
      refresh: async () => {}
    } as unknown as JobsModel);
    await knows({});
    await wrote('0.0.0', 'of the first\n');
    await key('ArrowUp', undefined, { shiftKey: true });
    await key('l');
    expect([copied.length, button('Copy link').hidden]).toEqual([1, false]);
    const namesake = aJob({ created: aJob().created + 1, phase: 'FAILED' });
    jobs.set(aJob().id, namesake);
    changed.emit();
    expect(viewer.node.textContent).toContain('Running, deleted');
    expect(viewer.shows(namesake)).toBe(false);

    await knows(namesake, { rank: 0, round: 0 });
    await wrote('0.0.0', 'of the second\n');
    expect(rows()).toEqual(['of the first']);
    expect(viewer.node.textContent).not.toContain('Failed');
    await key('l');
    expect([copied.length, button('Copy link').hidden]).toEqual([1, true]);
  });

  it('filters by text, by level and by rank', async () => {
    open();
    await knows({});
    await wrote('0.0.0', `one\nWARNING two\n${TRACEBACK}`);
    await wrote('1.0.0', 'one more\n');
    await type('.jp-nbtorchjob-log-filter', 'ONE');
    expect(rows()).toEqual(['one', 'one more']);
    const [, second] = all<HTMLInputElement>('.jp-nbtorchjob-log-menu input');
    second?.click();
    await drawn();
    expect(rows()).toEqual(['one']);
    await type('.jp-nbtorchjob-log-filter', '');
    await type('.jp-nbtorchjob-log-level', '2');
    expect(rows()).toEqual(['WARNING two', ...TRACEBACK.trimEnd().split('\n')]);
  });

  it('folds what several ranks say at once, of what the filter shows', async () => {
    open();
    await knows({});
    await wrote('0.0.0 10:1000', 'ready\nown\n');
    await wrote('1.0.0 6:1000', 'ready\n');
    await press('Fold');
    expect(rows()).toEqual(['ready', 'own', 'ready']);
    await type('.jp-nbtorchjob-log-filter', 'ready');
    expect(rows()).toEqual(['2 ×ready']);
    await press('Fold');
    expect(rows()).toEqual(['ready', 'ready']);
  });

  it('searches all lines, forwards and backwards, around the ends', async () => {
    open();
    await knows({});
    await wrote('0.0.0', many(1000));
    await key('Home');
    await key('/');
    await type('.jp-nbtorchjob-log-find', 'line 99');
    const count = () => all('.jp-nbtorchjob-log-count')[0]?.textContent;
    expect(count()).toBe('11 lines');
    const current = () => all('.jp-nbtorchjob-log-current').map(row => row.textContent);
    const steps: unknown[] = [];
    for (const name of ['Next', 'Next', 'Previous', 'Previous', 'Next']) {
      const step = all(`button[aria-label^=${name}]`)[0];
      step?.click();
      await drawn();
      steps.push([count(), ...current()]);
    }
    expect(steps).toEqual([
      ['1 of 11 lines', 'line 99'],
      ['2 of 11 lines', 'line 990'],
      ['1 of 11 lines', 'line 99'],
      ['11 of 11 lines', 'line 999'],
      ['1 of 11 lines', 'line 99']
    ]);
    expect(all('mark')[0]?.textContent).toBe('line 99');
  });

  it('says what is wrong with an expression', async () => {
    open();
    await key('/');
    await press('.*');
    await type('.jp-nbtorchjob-log-find', '(');
    expect(all('.jp-nbtorchjob-log-count')[0]?.textContent).toContain('Unterminated group');
    await key('Escape', '.jp-nbtorchjob-log-find');
    expect(all('.jp-nbtorchjob-log-finder')[0]?.hidden).toBe(true);
  });

  it('cuts very long lines until more is asked for', async () => {
    open();
    await knows({});
    await wrote('0.0.0', `${'x'.repeat(5000)}\n`);
    expect(rows()[0]).toBe(`${'x'.repeat(4000)}… ${(1000).toLocaleString()} more`);
    await press('…');
    expect(rows()[0]).toBe('x'.repeat(5000));
  });

  it('reads some ranks of many, and others once they are chosen', async () => {
    open();
    await knows({ nproc_per_node: 64 }, { rank: 40, round: 0 });
    const first = [0, 1, 2, 3, 4, 5, 6, 7, 40];
    expect(asked).toEqual([null, first]);
    all<HTMLInputElement>('.jp-nbtorchjob-log-menu input')[20]?.click();
    await drawn();
    expect(asked.at(-1)).toEqual([...first, 20]);
  });

  it('offers each rank’s log as a download', async () => {
    open();
    await knows({});
    const links = all<HTMLAnchorElement>('.jp-nbtorchjob-log-menu a');
    expect(links.map(link => link.getAttribute('href'))).toEqual([
      '/local:train-1/0',
      '/local:train-1/1'
    ]);
  });

  it('marks where a round begins', async () => {
    open();
    await knows({ nproc_per_node: 1 });
    await wrote('0.0.0', 'a\n');
    await wrote('0.9.0', 'b\n');
    expect(rows()).toEqual(['a', 'restarted: round 2', 'b']);
  });

  it('names no ranks where all are to be read: of a thousand no address has the numbers', async () => {
    open();
    await knows({ nproc_per_node: 64 });
    await press('All');
    expect(asked).toEqual([null, [0, 1, 2, 3, 4, 5, 6, 7], null]);
  });

  it('asks again for logs that were refused once its tab is opened again', async () => {
    refusal = new RequestError(404, 'there is no job a', true);
    open();
    socket.onclose?.();
    await drawn();
    expect(viewer.node.textContent).toContain('No logs · there is no job a');
    await vi.advanceTimersByTimeAsync(600_000);
    expect(asked).toHaveLength(1);

    viewer.activate();
    await drawn();
    expect(asked).toHaveLength(2);
    await knows({});
    expect(viewer.node.textContent).not.toContain('No logs');
  });

  it('shows nothing of a long log before it is whole, and says how far it is', async () => {
    open();
    await says({ job: aJob({ nproc_per_node: 1 }), failed: null });
    await wrote('0.0.0 4:1000', 'one\n');
    expect(rows()).toEqual([]);
    const waits = () => all('.jp-nbtorchjob-log-columns')[0]?.dataset['waits'];
    const said = () => all('.jp-nbtorchjob-log-headline')[0]?.textContent;
    expect([waits(), said()]).toEqual(['true', expect.stringContaining('Loading… 1 line so far')]);
    await says({ loaded: true });
    expect(waits()).toBeUndefined();
    expect(
      all('.jp-nbtorchjob-log-connection').some(each => each.textContent && !each.hidden)
    ).toBe(false);
  });

  it('shows what there is of a log that takes long', async () => {
    open();
    await says({ job: aJob({ nproc_per_node: 1 }), failed: null });
    await wrote('0.0.0', 'one\n');
    await vi.advanceTimersByTimeAsync(3000);
    expect(rows()).toEqual(['one']);
  });

  it('puts times before lines, of the day or since the start', async () => {
    open();
    await knows({ nproc_per_node: 1 });
    await wrote('0.0.0 4:60000,4:1234', 'one\ntwo\n');
    const gutters = () =>
      all('.jp-nbtorchjob-log-row').map(row => row.dataset['gutter']?.split(' ')[0]);
    expect(gutters()).toEqual(['1', '2']);
    await type('.jp-nbtorchjob-log-times', 'since');
    expect(gutters()).toEqual(['+0:00:00.00', '+0:00:01.23']);
    await type('.jp-nbtorchjob-log-times', 'day');
    expect(gutters()[1]).toMatch(/^\d\d:01:01\.23$/);
  });

  it('links to the web, and to nothing else', async () => {
    open();
    await knows({ nproc_per_node: 1 });
    await wrote(
      '0.0.0',
      'see https://a.b/c?d=1. or \u001b[31mhttp://x\u001b[0my (file:///etc javascript:alert(1))\n'
    );
    const links = all<HTMLAnchorElement>('.jp-nbtorchjob-log-row a');
    expect(links.map(link => link.getAttribute('href'))).toEqual([
      'https://a.b/c?d=1',
      'http://xy'
    ]);
    expect(links.every(link => link.rel.includes('noopener') && link.target === '_blank')).toBe(
      true
    );
    expect(rows()[0]).toContain('see https://a.b/c?d=1. or http://xy (file');
  });

  it('says that a search found nothing', async () => {
    open();
    await knows({});
    await wrote('0.0.0', 'one\n');
    await key('/');
    await type('.jp-nbtorchjob-log-find', 'two');
    expect(all('.jp-nbtorchjob-log-count')[0]?.textContent).toBe('No matching lines.');
  });

  it('copies marked lines with ranks and times, and a link to the first', async () => {
    open();
    await knows({});
    expect(button('Copy').disabled).toBe(true);
    await wrote('0.0.0 4:1000,15:2000', 'one\n\u001b[31mthree\u001b[0m\n');
    await wrote('1.0.0 4:1500', 'two\n');
    const at = (seconds: string) => expect.stringMatching(new RegExp(`^\\d{4}-.*:${seconds}`));
    const marked = () => all('.jp-nbtorchjob-log-current').map(row => row.textContent);

    for (const [row, shiftKey] of [
      [1, false],
      [2, true]
    ] as const) {
      const pressed = new MouseEvent('mousedown', { bubbles: true, shiftKey });
      all('.jp-nbtorchjob-log-row')[row]?.dispatchEvent(pressed);
      await drawn();
    }
    expect(marked()).toEqual(['two', 'three']);
    await press('Copy');
    expect(copied[0]?.[0].split('\n')).toEqual([
      at('01.500.*\\[rank1\\]: two$'),
      at('03.000.*: three$'),
      ''
    ]);
    expect(copied[0]?.[1]).toBe('2 lines copied.');

    await key('Escape');
    expect([marked(), button('Copy').disabled]).toEqual([[], true]);
    for (let turn = 0; turn < 2; turn++) {
      await key('ArrowUp', undefined, { shiftKey: true });
    }
    await key('l');
    expect(marked()).toEqual(['one']);
    expect(copied[1]).toEqual(['link to 0.1', 'Link to line 1 of rank 0 copied.']);
  });

  it('goes to a line once it is there', async () => {
    open();
    viewer.goTo(1, 501);
    await says({ job: aJob({ nproc_per_node: 2 }), failed: null });
    await wrote('1.0.0', many(400));
    expect(all('.jp-nbtorchjob-log-current')).toEqual([]);
    await wrote('1.0.3490', many(400));
    await says({ loaded: true });
    expect(all('.jp-nbtorchjob-log-current').map(row => row.textContent)).toEqual(['line 100']);
    expect(button('Follow').getAttribute('aria-pressed')).toBe('false');
  });

  it('goes to a line of columns that the page hasn’t laid out yet', async () => {
    const laid: (() => void)[] = [];
    vi.stubGlobal(
      'ResizeObserver',
      class {
        constructor(resized: () => void) {
          laid.push(resized);
        }
        observe() {}
        disconnect() {}
      }
    );
    open();
    viewer.goTo(0, 201);
    await wrote('0.0.0', many(600));
    await knows({});
    laid.forEach(resized => resized());
    await drawn();
    expect(all('.jp-nbtorchjob-log-current').map(row => row.textContent)).toEqual(['line 200']);
  });

  it('has the log read that a link leads to, and goes there once it was looked through', async () => {
    open();
    await knows({ nproc_per_node: 64 });
    await wrote('0.0.0', many(600));
    viewer.goTo(20, 201);
    await drawn();
    expect(asked.at(-1)).toContain(20);
    await wrote('20.0.0', many(600));
    await says({ loaded: true });
    expect(all('.jp-nbtorchjob-log-current').map(row => row.textContent)).toEqual(['line 200']);
    expect(all('.jp-nbtorchjob-log-current')[0]?.dataset['gutter']).toMatch(/^r20 /);
  });

  it('goes to a failure of which the log isn’t read yet', async () => {
    open();
    await knows({ nproc_per_node: 64 });
    await hears({ nproc_per_node: 64 }, { rank: 20, round: 0 });
    await press('Go to failure');
    await wrote('20.0.0', many(600));
    await wrote(`20.0.${many(600).length}`, TRACEBACK);
    await says({ loaded: true });
    expect(all('.jp-nbtorchjob-log-current').map(row => row.textContent)).toEqual([
      'Traceback (most recent call last):'
    ]);
  });

  it('shows the rank that a link leads to where it isn’t among the columns', async () => {
    open();
    await knows({ nproc_per_node: 12 });
    await wrote('0.0.0', many(600));
    await wrote('10.0.0', many(600));
    await press('Merged');
    viewer.goTo(10, 201);
    await drawn();
    expect(all('.jp-nbtorchjob-log-current').map(row => row.textContent)).toEqual(['line 200']);
    expect(all('[role=log]').map(log => log.getAttribute('aria-label'))).toEqual([
      'Log of rank 10'
    ]);
  });

  it.each([
    [0, 201, 'Rank 0 has no line 201: its log ends at line 40.', ['line 39']],
    [1, 201, 'Rank 1 has no line 201: its log is empty.', []],
    [7, 201, 'This job has no rank 7.', []]
  ])('says that there is no such line: rank %i, line %i', async (rank, line, said, marked) => {
    open();
    viewer.goTo(rank, line);
    await hears({});
    await wrote('0.0.0', many(40));
    const status = () =>
      all('[role=status]')
        .map(each => each.textContent)
        .join();
    expect(status()).not.toContain(said);
    await says({ loaded: true });
    expect(status()).toContain(said);
    expect(all('.jp-nbtorchjob-log-current').map(row => row.textContent)).toEqual(marked);
    expect(button('All 2 ranks')).toBeDefined();
    await key('Home');
    expect(status()).not.toContain(said);
  });

  it('says that the line of a link is filtered out, and goes to the next one that isn’t', async () => {
    open();
    await knows({ nproc_per_node: 1 });
    await wrote('0.0.0', many(600));
    await type('.jp-nbtorchjob-log-filter', '5');
    viewer.goTo(0, 201);
    await drawn();
    expect(all('.jp-nbtorchjob-log-current').map(row => row.textContent)).toEqual(['line 205']);
    expect(
      all('[role=status]')
        .map(each => each.textContent)
        .join()
    ).toContain('Line 201 of rank 0 is filtered out.');
  });

  it('offers all logs as one archive, with times where they are shown', async () => {
    open();
    await knows({});
    const links = () =>
      all<HTMLAnchorElement>('.jp-nbtorchjob-log-toolbar > a').filter(a => !a.hidden);
    expect(links().map(link => link.getAttribute('href'))).toEqual(['/local:train-1/zip?false']);
    await type('.jp-nbtorchjob-log-times', 'day');
    expect(links().map(link => link.getAttribute('href'))).toEqual(['/local:train-1/zip?true']);
  });

  it('says of an empty log whether anything may still come, where it is seen', async () => {
    open();
    await drawn();
    const said = () => all('.jp-nbtorchjob-log-scroller')[0]?.textContent;
    expect(all('.jp-nbtorchjob-log-spacer')[0]?.style.height).toBe('0px');
    expect(said()).toBe('Loading…');
    await says({ loaded: true });
    expect(said()).toBe('No output yet.');
    await says({ end: true });
    expect(said()).toBe('No output.');
  });

  it('marks a line as unfinished until its end has come, in place', async () => {
    open();
    await knows({});
    const shown = () => all('.jp-nbtorchjob-log-row').map(r => [r.textContent, r.dataset['open']]);
    await wrote('0.0.0', 'one\ntw');
    await wrote('1.0.0', 'other\n');
    expect(shown()).toEqual([
      ['one', 'false'],
      ['other', 'false'],
      ['tw', 'true']
    ]);
    await wrote('0.0.6', 'o\n50%');
    expect(shown().slice(2)).toEqual([
      ['two', 'false'],
      ['50%', 'true']
    ]);
    await type('.jp-nbtorchjob-log-filter', '5');
    expect(shown()).toEqual([]);
    await says({ end: true });
    expect(shown()).toEqual([['50%', 'false']]);
  });
});
