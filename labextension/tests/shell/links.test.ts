// @vitest-environment jsdom
import { CommandRegistry } from '@lumino/commands';
import { expect, it, vi } from 'vitest';

import { CommandIDs } from '../../src/ids';
import { LINKED, linked, linkTo, place, unlinked } from '../../src/shell/links';
import { type OpenLineOptions, addOpenLine } from '../../src/shell/openline';

vi.hoisted(() => vi.stubGlobal('DragEvent', class extends MouseEvent {})); // Lumino's widgets need it
vi.mock('@jupyterlab/apputils', () => ({ InputDialog: {}, showErrorMessage: vi.fn() }));

it('links to a line of a job’s log, and reads that again', () => {
  const job = { id: 'local:a b', created: 100.25 };
  const link = linkTo('http://a/lab/tree/x.ipynb?token=t#h', job, { rank: 1, line: 12 });
  const { origin, pathname, search, hash } = new URL(link);
  expect([origin + pathname, hash]).toEqual(['http://a/lab/tree/x.ipynb', '']);
  expect(LINKED.test(link)).toBe(true);
  expect(linked(search)).toEqual({ ...job, rank: 1, line: 12 });
  expect(unlinked(`${search}&reset`)).toBe('?reset=');
  expect(unlinked(search)).toBe('');
});

it('takes nothing else for a link', () => {
  expect(LINKED.test('/lab?reset')).toBe(false);
  expect([linked('?nbtorchjob-logs=local:a'), place('local:a', '1'), place('', '0.1')]).toEqual([
    null,
    null,
    null
  ]);
});

it.each([
  ['another job that has its name now', 200.5, 'deleted'],
  ['its job', 100.25, 'opened']
])('opens a log only of the job that it was made for: %s', async (_, created, outcome) => {
  const link = linkTo('http://a/lab', { id: 'local:a', created: 100.25 }, { rank: 0, line: 3 });
  const listed = { id: 'local:a', created };
  const job = vi.fn(async () => Promise.reject(new Error('local:a was deleted')));
  const openLogs = vi.fn();
  const commands = new CommandRegistry();
  addOpenLine({
    app: { commands, restored: Promise.resolve() },
    router: null,
    client: { job },
    model: { jobs: new Map([[listed.id, listed]]) },
    openLogs,
    trans: { __: (text: string) => text }
  } as unknown as OpenLineOptions);

  await commands.execute(CommandIDs.openLine, { search: new URL(link).search });

  expect(openLogs.mock.calls.map(([opened]) => opened)).toEqual(
    outcome === 'opened' ? [listed] : []
  );
  expect(job.mock.calls).toEqual(
    outcome === 'opened' ? [] : [[{ id: 'local:a', created: 100.25 }]]
  );
});
