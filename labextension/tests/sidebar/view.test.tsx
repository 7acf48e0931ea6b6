// @vitest-environment jsdom
import { type ReactElement, act } from 'react';
import { type Root, createRoot } from 'react-dom/client';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { RequestError } from '../../src/model/client';
import type { Job } from '../../src/model/record';
import { Clock } from '../../src/sidebar/clock';
import { type Page, PageProvider } from '../../src/sidebar/context';
import { JobsView, type JobsViewProps } from '../../src/sidebar/view';

import { aJob, aRun, english } from '../jobs';

const VIEW_HEIGHT = 460;
let root: Root;
let page: { [name in keyof Page]: Page[name] };

beforeEach(() => {
  vi.stubGlobal('IS_REACT_ACT_ENVIRONMENT', true);
  vi.stubGlobal(
    'ResizeObserver',
    class {
      observe() {}
      disconnect() {}
    }
  );
  vi.spyOn(HTMLElement.prototype, 'clientHeight', 'get').mockReturnValue(VIEW_HEIGHT);
  HTMLElement.prototype.scrollTo = function (this: HTMLElement, to?: ScrollToOptions | number) {
    this.scrollTop = typeof to === 'object' ? (to.top ?? 0) : 0;
  };
  HTMLElement.prototype.scrollIntoView = vi.fn();
  localStorage.clear();
  document.body.innerHTML = '<main></main>';
  root = createRoot(one('main'));
  page = {
    trans: english,
    clock: new Clock(),
    elapsed: vi.fn((job: Job) => job.elapsed),
    can: () => true,
    run: vi.fn(),
    label: verb => verb,
    icon: name => name,
    menu: vi.fn(),
    offers: () => true,
    start: vi.fn(),
    refresh: vi.fn(),
    comparable: jobs => jobs.length > 1,
    compare: vi.fn(),
    files: vi.fn(),
    openFile: vi.fn(),
    deleteAll: vi.fn()
  };
});

afterEach(() => {
  act(() => root.unmount());
  vi.unstubAllGlobals();
  vi.restoreAllMocks();
  vi.useRealTimers();
});

function view(jobs: readonly Job[], given: Partial<JobsViewProps> = {}): ReactElement {
  return (
    <PageProvider value={page}>
      <JobsView
        jobs={new Map(jobs.map(job => [job.id, job]))}
        notes={[]}
        failure={null}
        loaded
        notebook={null}
        {...given}
      />
    </PageProvider>
  );
}

function show(jobs: readonly Job[], given: Partial<JobsViewProps> = {}): void {
  act(() => root.render(view(jobs, given)));
}

function one(selector: string): HTMLElement {
  const found = document.querySelector<HTMLElement>(selector);
  if (!found) {
    throw new Error(`no ${selector} in ${document.body.innerHTML}`);
  }
  return found;
}

const all = (selector: string) => [...document.querySelectorAll<HTMLElement>(selector)];
const text = () => document.body.textContent;
const names = () => all('.jp-nbtorchjob-jobs-name').map(each => each.textContent);
const list = () => one('[role=treegrid]');
const activeRow = () => one('[data-active]').textContent;

function press(key: string, options: KeyboardEventInit = {}): void {
  const event = new KeyboardEvent('keydown', { key, bubbles: true, ...options });
  act(() => void list().dispatchEvent(event));
}

function happen(selector: string, type: string): void {
  const event = new MouseEvent(type, { bubbles: true, cancelable: true, clientX: 5, clientY: 6 });
  act(() => void one(selector).dispatchEvent(event));
}

function type(words: string): void {
  const input = one('input') as HTMLInputElement;
  const setter = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value')?.set;
  act(() => {
    setter?.call(input, words); // React listens to the instance's own setter
    input.dispatchEvent(new Event('input', { bubbles: true }));
  });
}

const many = (count: number) =>
  Array.from({ length: count }, (_, n) => aJob({ id: `local:job-${n}`, created: -n }));

describe('the list', () => {
  it('draws only what is in view of thousands of jobs', () => {
    show(many(5000));

    expect(all('[role=row]').length).toBeLessThan(20);
    expect(list().getAttribute('aria-rowcount')).toBe('5001');
    expect(one('.jp-nbtorchjob-jobs-count').textContent).toBe('5000');
    expect(one('[aria-level="2"]').getAttribute('aria-setsize')).toBe('5000');
  });

  it('draws what a job uses as strips, with the newest in words', () => {
    const strips = [{ of: 'memory', newest: '6 of 8 GB', parts: [0.25, 0.75] }] as const;
    show([aJob({ uses: [{ node: 1, strips }] }), aJob({ id: 'local:silent' })]);

    expect(all('[role=img]').map(strip => strip.getAttribute('aria-label'))).toEqual([
      'node 1: memory 6 of 8 GB'
    ]);
    expect(one('polyline').getAttribute('points')).toBe('0,0.75 1,0.25');
  });

  it('draws other rows once it is scrolled', () => {
    show(many(5000));

    act(() => {
      list().scrollTop = 46 * 2500;
      list().dispatchEvent(new Event('scroll'));
    });

    expect(names()).toContain('job-2500');
    expect(names()).not.toContain('job-0');
  });

  it('draws no other job anew when one has changed', () => {
    const jobs = many(5);
    show(jobs);
    const drawn = vi.mocked(page.elapsed);
    drawn.mockClear();

    show(jobs.map((job, n) => (n === 2 ? { ...job, elapsed: 200 } : job)));

    expect(new Set(drawn.mock.calls.map(([job]) => job.id))).toEqual(new Set(['local:job-2']));
  });

  it('ticks with the clock, not with the list', () => {
    vi.useFakeTimers();
    let now = 100;
    page.elapsed = () => now;
    show([aJob()]);

    now = 101;
    act(() => void vi.advanceTimersByTime(1000));

    expect(one('.jp-nbtorchjob-jobs-elapsed').textContent).toBe('1 min 41 s');
    show([]);
    expect(vi.getTimerCount()).toBe(0);
  });

  it('shows text of jobs as text', () => {
    show([aJob({ label: '<img src=x onerror=alert(1)>', failure: '<b>no</b>' })]);

    expect(all('img, b')).toEqual([]);
  });

  it('closes a group, and remembers it', () => {
    show(many(3));

    happen('[aria-level="1"]', 'click');
    expect([names(), one('[aria-level="1"]').getAttribute('aria-expanded')]).toEqual([[], 'false']);

    act(() => root.unmount());
    root = createRoot(one('main'));
    show(many(3));
    expect(names()).toEqual([]);
  });
});

describe('runs of a group', () => {
  const runs = [aRun(1), aRun(2, { phase: 'FAILED' }), aRun(3, { phase: 'SUCCEEDED' })];

  it('are a row that says where they stand, and unfolds', () => {
    show(runs);
    expect(names()).toEqual(['sweep']);
    expect(one('[aria-level="2"]').textContent).toContain(
      '1 done, 1 running, 1 failed · train.ipynb · 3 runs'
    );

    happen('[aria-level="2"]', 'click');
    expect(names()).toEqual(['sweep', 'sweep-r1', 'sweep-r2', 'sweep-r3']);
    expect(one('[aria-level="2"]').getAttribute('aria-expanded')).toBe('true');

    happen('[aria-level="2"]', 'click');
    expect(names()).toEqual(['sweep']);
    expect(page.run).not.toHaveBeenCalled();
  });

  it('are ended together', () => {
    show(runs);
    press('ArrowDown');
    press('Delete');

    expect(page.run).toHaveBeenCalledWith('cancel', expect.objectContaining({ name: 'sweep' }));
  });

  it('unfold for one that is wanted', () => {
    show(runs, { destination: { id: 'local:sweep-r2', met: false } });

    expect(activeRow()).toContain('sweep-r2');
  });

  it('say how many jobs a search finds, not how many rows', () => {
    show(runs);
    type('sweep');

    expect([names(), one('[role=status]').textContent]).toEqual([['sweep'], '3 jobs found']);
  });
});

describe('the keyboard', () => {
  it('moves through the list, which is one tab stop', () => {
    show(many(100));

    press('ArrowDown');
    expect(activeRow()).toContain('job-0');
    expect(list().getAttribute('aria-activedescendant')).toBe(one('[data-active]').id);
    press('End');
    act(() => void list().dispatchEvent(new Event('scroll')));
    expect(activeRow()).toContain('job-99');
    expect(all('[role=treegrid] [tabindex="0"]')).toEqual([]);
  });

  it('opens logs, ends jobs, and closes groups', () => {
    const job = aJob();
    show([job, aJob({ id: 'local:done', phase: 'FAILED' })]);

    press('ArrowDown');
    press('Enter');
    press('Delete');
    press('End');
    press('Delete');
    press('Home');
    press('ArrowLeft');

    expect(vi.mocked(page.run).mock.calls.map(([verb, { name }]) => [verb, name])).toEqual([
      ['logs', 'train-1'],
      ['cancel', 'train-1'],
      ['delete', 'done']
    ]);
    expect(names()).toEqual(['done']);
  });

  it("leaves others' shortcuts alone", () => {
    show([aJob()]);

    press('ArrowDown', { ctrlKey: true });

    expect(activeRow()).toContain('Running');
  });

  it('runs nothing that a job is not fit for', () => {
    page.can = () => false;
    show([aJob()]);

    press('ArrowDown');
    press('Enter');

    expect(page.run).not.toHaveBeenCalled();
  });

  it('stays with its job when others come', () => {
    const jobs = many(3);
    show(jobs);
    press('ArrowDown');

    show([aJob({ id: 'local:new', created: 9 }), ...jobs]);

    expect(activeRow()).toContain('job-0');
  });
});

describe('what has ended', () => {
  const ended = aJob({ id: 'local:old', terminal: true, phase: 'SUCCEEDED', created: 1000 });

  it('says when it ended, however long it took', () => {
    vi.spyOn(Date, 'now').mockReturnValue(1_000_000 + 8 * 3_600_000);
    show([{ ...ended, elapsed: 5 * 3600 }, aJob()]);

    expect(all('.jp-nbtorchjob-jobs-ended').map(each => each.textContent)).toEqual(['3 h ago']);
  });

  it('is deleted at once, as far as it is listed', () => {
    show([ended, aJob()]);
    happen('[aria-label^="Delete all listed jobs"]', 'click');

    expect(page.deleteAll).toHaveBeenCalledWith([ended]);
  });
});

describe('the mouse', () => {
  it('opens logs by a click, and the menu where it points', () => {
    const job = aJob();
    show([job]);

    happen('[aria-level="2"]', 'click');
    happen('[aria-level="2"]', 'contextmenu');

    expect(page.run).toHaveBeenCalledWith('logs', job);
    expect(page.menu).toHaveBeenCalledWith(job, 5, 6);
  });

  it('acts by the buttons of a row, and leaves the keys to the list', () => {
    show([aJob()]);
    expect(all('[aria-level="2"] button')).toEqual([]);

    happen('[aria-level="2"]', 'mouseover');
    happen('[aria-label=cancel]', 'mousedown');
    happen('[aria-label=cancel]', 'click');

    expect(vi.mocked(page.run).mock.calls.map(([verb]) => verb)).toEqual(['cancel']);
    expect(document.activeElement).toBe(list());
  });
});

describe('the search', () => {
  it('narrows the list and says how many it found', () => {
    show([aJob({ id: 'local:bert' }), aJob({ id: 'local:gpt', phase: 'FAILED' })]);

    type('gpt');

    expect(names()).toEqual(['gpt']);
    expect(one('[role=status]').textContent).toBe('1 job found');
  });

  it('says when it finds nothing, and shows all again', () => {
    show([aJob()]);
    type('nothing like it');
    expect([names(), text()]).toEqual([[], expect.stringContaining('No matching jobs.')]);

    happen('.jp-nbtorchjob-jobs-message button', 'click');

    expect(names()).toEqual(['train-1']);
  });

  it('keeps the focus when a button that clears it goes', () => {
    show([aJob()]);
    type('nothing like it');
    const again = one('.jp-nbtorchjob-jobs-message button');
    again.focus();
    act(() => again.click());
    expect(document.activeElement).toBe(list());

    type('train');
    const clear = one('[aria-label="Clear the search"]');
    clear.focus();
    act(() => clear.click());
    expect(document.activeElement).toBe(one('input'));
  });

  it('is limited to the active notebook', () => {
    show([aJob(), aJob({ id: 'local:other', notebook: '' })], { notebook: 'work/train.ipynb' });

    happen('[aria-pressed]', 'click');

    expect(names()).toEqual(['train-1']);
    expect(one('[aria-pressed]').getAttribute('aria-pressed')).toBe('true');
  });
});

describe('a selection', () => {
  const jobs = [1, 2, 3, 4].map(n => aJob({ id: `local:job-${n}`, created: n }));
  const selected = () =>
    all('[aria-selected=true] .jp-nbtorchjob-jobs-name').map(each => each.textContent);
  const click = (nth: number, keys: MouseEventInit) => {
    const row = all('.jp-nbtorchjob-jobs-job')[nth]!;
    for (const kind of ['mousedown', 'click']) {
      act(() => void row.dispatchEvent(new MouseEvent(kind, { bubbles: true, ...keys })));
    }
  };

  it('is made by clicks as in a list of files, opens nothing, and is compared, the oldest first', () => {
    show(jobs);
    click(0, { ctrlKey: true });
    click(2, { shiftKey: true });
    click(1, { ctrlKey: true });

    expect(selected()).toEqual(['job-4', 'job-2']);
    expect(page.run).not.toHaveBeenCalled();
    act(() => one('.jp-nbtorchjob-jobs-selection button').click());
    expect(page.compare).toHaveBeenCalledWith([jobs[1], jobs[3]]);
  });

  it('is made by keys', () => {
    show(jobs);
    press('ArrowDown');
    press(' ');
    press('ArrowDown', { shiftKey: true });
    expect(selected()).toEqual(['job-4', 'job-3']);

    press('Escape');

    expect([selected(), all('.jp-nbtorchjob-jobs-selection').length]).toEqual([[], 0]);
  });

  it('leaves the focus in the list when its button clears it', () => {
    show(jobs);
    click(0, { ctrlKey: true });
    const clear = all('.jp-nbtorchjob-jobs-selection button')[1];

    clear?.focus();
    act(() => clear?.click());

    expect(document.activeElement).toBe(list());
  });

  it('goes with its jobs', () => {
    show(jobs);
    click(0, { metaKey: true });
    show(jobs.slice(0, 3));

    expect(all('.jp-nbtorchjob-jobs-selection').length).toBe(0);
  });
});

describe('the order', () => {
  it('is chosen, and remembered', () => {
    const jobs = [aJob({ id: 'b', phase: 'FAILED' }), aJob({ id: 'a' }), aJob({ id: 'c' })];
    show(jobs);
    const field = one('select') as HTMLSelectElement;
    act(() => {
      field.value = 'name';
      field.dispatchEvent(new Event('change', { bubbles: true }));
    });
    expect([names(), all('.jp-nbtorchjob-jobs-group').length]).toEqual([['a', 'b', 'c'], 0]);

    act(() => root.unmount());
    root = createRoot(one('main'));
    show(jobs);

    expect(names()).toEqual(['a', 'b', 'c']);
  });
});

describe('without jobs', () => {
  it('tells how to start one', () => {
    show([]);

    expect(text()).toContain('%load_ext nbtorchjob\n%%torchjob');
    happen('.jp-nbtorchjob-jobs-message button', 'click');
    expect(page.start).toHaveBeenCalledWith('runCell');
  });

  it('says that it waits for the list', () => {
    show([], { loaded: false });

    expect(text()).toContain('Loading jobs…');
  });

  it.each([
    [404, "This Jupyter server doesn't have nbtorchjob installed"],
    [0, "The Jupyter server isn't responding"],
    [504, 'no answer in 55 s']
  ])('says what is wrong after status %i, and asks again', (code, words) => {
    show([], { loaded: false, failure: new RequestError(code, 'no answer in 55 s') });

    expect(one('[role=alert]').textContent).toContain(words);
    happen('[role=alert] button', 'click');
    expect(page.refresh).toHaveBeenCalledTimes(1);
  });

  it('keeps the list of before beside the complaint', () => {
    show([aJob()], { failure: new RequestError(0, 'Failed to fetch') });

    expect([names(), all('[role=alert]').length]).toEqual([['train-1'], 1]);
  });

  it('tells of places that could not be listed', () => {
    show([], { notes: ['kind: no answer', 'prod: forbidden'] });

    expect(one('summary').textContent).toBe("Couldn't list the jobs in 2 places");
    expect(all('details li').map(each => each.textContent)).toEqual([
      'kind: no answer',
      'prod: forbidden'
    ]);
  });
});

describe('the files of a job', () => {
  const file = { path: 'artifacts/runs/loss.csv', size: 1200, modified: 1_700_000_000, node: 0 };
  const rows = () => all('[role=treeitem]').map(each => each.textContent);
  const onBrowsed = vi.fn();
  const key = (name: string) =>
    act(() =>
      one('[role=tree]').dispatchEvent(new KeyboardEvent('keydown', { key: name, bubbles: true }))
    );
  const browse = async (job: Job) => {
    show([job], { browsed: job.id, onBrowsed });
    await act(async () => {});
  };

  it('are a tree that is opened by keyboard', async () => {
    page.files = vi.fn(async () => ({ files: [file], trouble: ['node 1: gone'], more: true }));
    await browse(aJob());

    expect(rows()).toEqual(['openartifacts', 'openruns', 'loss.csv1.2 kB']);
    expect(one('section').textContent).toContain('node 1: gone');
    expect(one('section').textContent).toContain('Not all files are shown.');
    expect(document.activeElement).toBe(one('[role=tree]'));
    ['ArrowDown', 'ArrowDown'].forEach(key);
    const active = one('[role=tree]').getAttribute('aria-activedescendant');
    expect(document.getElementById(active ?? '')?.textContent).toBe('loss.csv1.2 kB');
    key('Enter');
    expect(page.openFile).toHaveBeenCalledWith(expect.anything(), file);
    ['ArrowLeft', 'ArrowLeft'].forEach(key);
    expect(rows()).toEqual(['openartifacts', 'closedruns']);
    key('Escape');
    expect(onBrowsed).toHaveBeenCalled();
  });

  it('stay those of an ended job when an answer from before its end comes late', async () => {
    let refuse: (error: Error) => void = () => undefined;
    page.files = vi
      .fn()
      .mockReturnValueOnce(new Promise((_, reject) => (refuse = reject)))
      .mockResolvedValue({ files: [file], trouble: [], more: false });
    await browse(aJob());
    await browse(aJob({ phase: 'SUCCEEDED', terminal: true }));
    await act(async () => refuse(new Error('the job ended meanwhile')));

    expect(rows()).toHaveLength(3);
    expect(all('.jp-nbtorchjob-files [role=status]')).toHaveLength(0);
  });

  it('are asked for again while a job goes on, and stay where that fails', async () => {
    vi.useFakeTimers();
    page.files = vi
      .fn()
      .mockResolvedValueOnce({ files: [file], trouble: [], more: false })
      .mockRejectedValue(new Error('its node does not answer'));
    await browse(aJob());
    await act(async () => {
      await vi.advanceTimersByTimeAsync(10_000);
    });

    expect(page.files).toHaveBeenCalledTimes(2);
    expect(rows()).toHaveLength(3);
    expect(one('.jp-nbtorchjob-files [role=status]').textContent).toBe('its node does not answer');

    page.files = vi.fn(async () => ({ files: [], trouble: [], more: false }));
    await browse(aJob({ id: 'local:over', phase: 'SUCCEEDED' }));
    await act(async () => {
      await vi.advanceTimersByTimeAsync(60_000);
    });
    expect(page.files).toHaveBeenCalledTimes(1);
    expect(one('.jp-nbtorchjob-files [role=status]').textContent).toBe('No files yet.');
  });
});

it('leads once to a job that is wanted, as soon as it is there', () => {
  const destination = { id: 'local:job-40', met: false };
  show(many(30), { destination });
  expect(activeRow()).toContain('Running');
  show(many(50), { destination });
  happen('[role=treegrid]', 'scroll');
  expect(activeRow()).toContain('job-40');
  expect(list().scrollTop).toBeGreaterThan(0);
  press('Home');
  happen('[role=treegrid]', 'scroll');
  show(many(51), { destination });
  expect(activeRow()).toContain('Running');
});
