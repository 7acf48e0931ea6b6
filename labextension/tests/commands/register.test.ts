// @vitest-environment jsdom
import { CommandRegistry } from '@lumino/commands';
import { beforeEach, describe, expect, it, vi } from 'vitest';

import { type JobActionsOptions, jobActions } from '../../src/commands/actions';
import { addJobCommands } from '../../src/commands/register';
import { addRunsCommands, runsActions } from '../../src/commands/runs';
import type { ValuesForm } from '../../src/commands/values';
import { CommandIDs, RunsCommandIDs } from '../../src/ids';
import { notebookActions, notebookRunsActions } from '../../src/notebook/actions';
import type { Job } from '../../src/model/record';
import type { Notebooks } from '../../src/notebook/notebooks';

vi.hoisted(() => vi.stubGlobal('DragEvent', class extends MouseEvent {})); // Lumino's widgets need it

const shown = vi.hoisted(() => ({
  showDialog: vi.fn(),
  showErrorMessage: vi.fn(),
  getItem: vi.fn(),
  info: vi.fn(),
  success: vi.fn(),
  copied: vi.fn()
}));

// jsdom has none, and Lumino's widgets extend it as they are loaded.
vi.hoisted(() => vi.stubGlobal('DragEvent', class extends MouseEvent {}));

// The real ones draw dialogs into a page.
vi.mock('@jupyterlab/apputils', () => ({
  Clipboard: { copyToSystem: shown.copied },
  Dialog: {
    cancelButton: (b: object) => b,
    okButton: (b: object) => b,
    warnButton: (b: object) => b
  },
  InputDialog: { getItem: shown.getItem },
  Notification: { info: shown.info, success: shown.success },
  showDialog: shown.showDialog,
  showErrorMessage: shown.showErrorMessage
}));

// Its icons; the rest of it needs more of a page than there is here.
vi.mock(
  '@jupyterlab/ui-components',
  () => new Proxy({}, { get: () => undefined, has: () => true })
);

const trans = {
  __: (text: string, ...rest: unknown[]) => text.replace(/%(\d)/g, (_, n) => String(rest[n - 1])),
  _n: (one: string, many: string, n: number) => (n === 1 ? one : many).replace('%1', String(n))
};

function job(id: string, more: Partial<Job> = {}): Job {
  const [backend = '', name = ''] = id.split(':');
  const given = { id, backend, name, status: 'RUNNING', where: 'here', terminal: false };
  return { ...given, cell: '', created: 0, notebook: '', note: '', tags: [], ...more } as Job;
}

const running = job('local:brave-fox');
const failed = job('local:calm-owl', { terminal: true, status: 'FAILED', created: 2 });
const remote = job('kubernetes:kind/default/old-elk', { cell: 'c1', notebook: 'a.ipynb' });

const client = {
  job: vi.fn(),
  change: vi.fn(),
  annotate: vi.fn(),
  delete: vi.fn(),
  retry: vi.fn(),
  resumed: vi.fn(),
  manifests: vi.fn(),
  artifacts: vi.fn(),
  artifactsUrl: vi.fn(),
  values: vi.fn(),
  set: vi.fn()
};
const notebooks = { insert: vi.fn(), reveal: vi.fn() };
const openLogs = vi.fn();
const retried = vi.fn();
const browseFiles = vi.fn();
let commands: CommandRegistry;

function register(jobs: readonly Job[]): void {
  commands = new CommandRegistry();
  const model = { jobs: new Map(jobs.map(one => [one.id, one])) };
  const opened = { openLogs, openDescription: vi.fn(), browseFiles, retried };
  const options = { commands, client, model, ...opened, trans } as unknown as JobActionsOptions;
  const actions = {
    ...jobActions(options),
    ...notebookActions(notebooks as unknown as Notebooks, options.trans)
  };
  addJobCommands(actions, { ...options, model });
  const onRuns = {
    ...runsActions(options.client, options.trans),
    ...notebookRunsActions(notebooks as unknown as Notebooks, options.trans)
  };
  addRunsCommands(onRuns, { ...options, model });
}

beforeEach(() => {
  vi.resetAllMocks();
  register([running, failed, remote]);
});

describe('a command for a job', () => {
  it.each([
    [CommandIDs.cancel, running, true],
    [CommandIDs.cancel, failed, false],
    [CommandIDs.retry, running, false],
    [CommandIDs.retry, failed, true],
    [CommandIDs.suspend, running, false],
    [CommandIDs.suspend, remote, true],
    [CommandIDs.resume, remote, false],
    [CommandIDs.resume, { ...remote, status: 'SUSPENDED' }, true],
    [CommandIDs.copyManifest, running, false],
    [CommandIDs.copyManifest, remote, true],
    [CommandIDs.downloadArtifacts, { ...running, artifacts: 0 }, false],
    [CommandIDs.downloadArtifacts, { ...failed, artifacts: 2 }, true],
    [CommandIDs.downloadArtifacts, { ...remote, artifacts: null }, true],
    [CommandIDs.goToCell, running, false],
    [CommandIDs.goToCell, remote, true],
    [CommandIDs.delete, failed, true]
  ])('%s fits the job’s state', (command, one, enabled) => {
    register([one]);

    expect(commands.isEnabled(command, { id: one.id })).toBe(enabled);
    expect(commands.isEnabled(command)).toBe(enabled);
  });

  it('says what it does to one job, and that it will ask where none is named', () => {
    expect(commands.label(CommandIDs.cancel, { id: running.id })).toBe('Cancel');
    expect(commands.label(CommandIDs.cancel)).toBe('Cancel Torch Job…');
  });

  it('describes its arguments', async () => {
    for (const id of commands.listCommands()) {
      expect(await commands.describedBy(id)).toMatchObject({ args: { type: 'object' } });
    }
  });
});

describe('downloading artifacts', () => {
  it('says so where there are none', async () => {
    client.artifacts.mockResolvedValueOnce([]);

    await commands.execute(CommandIDs.downloadArtifacts, { id: remote.id });

    expect(shown.showErrorMessage.mock.calls[0]?.[1]).toMatch('old-elk left no artifacts.');
    expect(client.artifactsUrl).not.toHaveBeenCalled();
  });

  it('begins once there are some', async () => {
    client.artifacts.mockResolvedValueOnce([{ path: 'loss.png' }]);
    client.artifactsUrl.mockReturnValueOnce('#all');
    const click = vi.spyOn(HTMLAnchorElement.prototype, 'click').mockReturnValue();

    await commands.execute(CommandIDs.downloadArtifacts, { id: remote.id });

    expect((click.mock.contexts[0] as HTMLAnchorElement).href).toMatch(/#all$/);
  });
});

describe('the note and the tags of a job', () => {
  const noted = job('local:brave-fox', { note: 'as is', tags: ['v1'] });

  it('are asked for with what there is, and sent as words', async () => {
    register([noted]);
    shown.showDialog.mockImplementationOnce(async ({ body }) => {
      const [note, tags] = body.node.querySelectorAll('textarea, input');
      expect([note.value, tags.value]).toEqual(['as is', 'v1']);
      note.value = ' the one to beat\n';
      tags.value = ' v1, #lr:0.1  ';
      return { button: { accept: true }, value: body.getValue() };
    });
    await commands.execute(CommandIDs.note, { id: noted.id });

    expect(client.annotate).toHaveBeenCalledExactlyOnceWith(noted, {
      note: 'the one to beat',
      tags: ['v1', 'lr:0.1']
    });
  });

  it('are asked for again, as typed, where they are refused', async () => {
    client.annotate.mockRejectedValueOnce(new Error('at most 64 tags'));
    const typed = { note: 'long', tags: [] };
    shown.showDialog
      .mockResolvedValueOnce({ button: { accept: true }, value: typed })
      .mockImplementationOnce(async ({ body }) => {
        expect(body.node.querySelector('textarea').value).toBe('long');
        return { button: { accept: false }, value: null };
      });
    await commands.execute(CommandIDs.note, { id: running.id });

    expect(shown.showErrorMessage).toHaveBeenCalledExactlyOnceWith(
      expect.anything(),
      'at most 64 tags'
    );
    expect(client.annotate).toHaveBeenCalledOnce();
  });

  it('stay where the dialog is left', async () => {
    shown.showDialog.mockResolvedValueOnce({ button: { accept: false }, value: null });
    await commands.execute(CommandIDs.note, { id: running.id });

    expect(client.annotate).not.toHaveBeenCalled();
  });
});

describe('what ends a job', () => {
  it.each([
    [CommandIDs.cancel, client.change, [running, 'cancel']],
    [CommandIDs.delete, client.delete, [running]]
  ])('%s asks first', async (command, sent, told) => {
    shown.showDialog.mockResolvedValueOnce({ button: { accept: false } });
    await commands.execute(command, { id: running.id });

    expect(sent).not.toHaveBeenCalled();

    shown.showDialog.mockResolvedValueOnce({ button: { accept: true } });
    await commands.execute(command, { id: running.id });

    expect(sent).toHaveBeenCalledExactlyOnceWith(...told);
  });
});

describe('a command for all runs of a group', () => {
  const runs = [1, 2, 3].map(run =>
    job(`local:sweep-r${run}`, { group: 'sweep', run, terminal: run === 2 })
  );
  const id = 'local:sweep-r1';

  it('asks once, and ends those that go on, the last first', async () => {
    register([...runs, running]);
    shown.showDialog.mockResolvedValueOnce({ button: { accept: true } });
    client.change.mockResolvedValue(undefined);
    await commands.execute(RunsCommandIDs.cancel, { id });

    expect(shown.showDialog.mock.calls[0]?.[0]).toMatchObject({ title: 'Cancel sweep?' });
    expect(client.change.mock.calls).toEqual([
      [runs[2], 'cancel'],
      [runs[0], 'cancel']
    ]);
  });

  it('runs once more what failed last of each', async () => {
    const of = (name: string, phase: Job['phase'], more: Partial<Job> = {}) =>
      job(`local:${name}`, { group: 'sweep', phase, terminal: true, ...more });
    const again = of('sweep-r1-2', 'SUCCEEDED', { run: 1, created: 9 });
    const other = of('sweep-r2', 'FAILED', { run: 2 });
    register([
      of('sweep-r1', 'FAILED', { run: 1 }),
      again,
      other,
      of('sweep-r3', 'CANCELLED', { run: 3 })
    ]);
    await commands.execute(RunsCommandIDs.retry, { id: again.id });

    expect(client.retry.mock.calls).toEqual([[other]]);
    register([again]);
    expect(commands.isEnabled(RunsCommandIDs.retry, { id: again.id })).toBe(false);
  });

  it('deletes all, and says what kept one', async () => {
    register(runs);
    shown.showDialog.mockResolvedValueOnce({ button: { accept: true } });
    client.delete.mockRejectedValueOnce(new Error('sweep-r3 is busy')).mockResolvedValue(undefined);
    await commands.execute(RunsCommandIDs.delete, { id });

    expect(client.delete).toHaveBeenCalledTimes(3);
    expect(shown.showErrorMessage.mock.calls[0]?.[1]).toBe('sweep-r3 is busy');
  });

  it('follows them by the name of the group', async () => {
    register(runs);
    await commands.execute(RunsCommandIDs.attach, { id });

    expect(notebooks.insert).toHaveBeenCalledWith('%torchjob attach sweep', { run: true });
  });

  it('is for runs alone, and cancels none that have ended', () => {
    register([running, ...runs.map(run => ({ ...run, terminal: true }))]);

    expect(commands.isEnabled(RunsCommandIDs.delete, { id: running.id })).toBe(false);
    expect(commands.isEnabled(RunsCommandIDs.delete, { id })).toBe(true);
    expect(commands.isEnabled(RunsCommandIDs.cancel, { id })).toBe(false);
  });
});

describe('an id', () => {
  it('that the server doesn’t know is refused with the server’s words', async () => {
    client.job.mockRejectedValueOnce(new Error('There is no job local:gone.'));
    await commands.execute(CommandIDs.retry, { id: 'local:gone' });

    expect(client.retry).not.toHaveBeenCalled();
    expect(shown.showErrorMessage).toHaveBeenCalledWith(
      'Torch Jobs',
      'There is no job local:gone.'
    );
  });

  it('of a deleted job is not taken for that of a later job of its name', async () => {
    const refusal = 'calm-owl was deleted; another job has its name';
    client.job.mockRejectedValueOnce(new Error(refusal));
    const meant = { id: failed.id, created: 1 };
    await commands.execute(CommandIDs.retry, meant);

    expect(client.job).toHaveBeenCalledExactlyOnceWith(meant);
    expect(client.retry).not.toHaveBeenCalled();
    expect(shown.showErrorMessage).toHaveBeenCalledWith('Torch Jobs', refusal);

    client.retry.mockResolvedValueOnce(running);
    await commands.execute(CommandIDs.retry, { id: failed.id, created: failed.created });
    expect(client.retry).toHaveBeenCalledWith(failed);
  });

  it('that isn’t listed yet is asked for', async () => {
    client.job.mockResolvedValueOnce(failed);
    client.retry.mockResolvedValueOnce(running);
    register([]);
    await commands.execute(CommandIDs.retry, { id: failed.id });

    expect(client.retry).toHaveBeenCalledWith(failed);
    expect(shown.info.mock.calls[0]?.[0]).toBe('calm-owl runs again as brave-fox.');
    expect(retried).toHaveBeenCalledExactlyOnceWith(running);
  });

  it('resumes from a checkpoint where there is one, or may be', async () => {
    const saved = { ...failed, resumable: true };
    for (const [resumable, enabled] of [
      [true, true],
      [null, true],
      [false, false]
    ] as const) {
      register([{ ...failed, resumable }]);
      expect(commands.isEnabled(CommandIDs.continue, { id: failed.id })).toBe(enabled);
    }
    client.resumed.mockResolvedValueOnce(running);
    register([saved]);
    await commands.execute(CommandIDs.continue, { id: saved.id });

    expect(client.resumed).toHaveBeenCalledWith(saved);
    expect(retried).toHaveBeenCalledExactlyOnceWith(running);
  });

  it('shows its curves in a cell of the notebook', async () => {
    register([{ ...running, curves: true }]);
    await commands.execute(CommandIDs.tensorboard, { id: running.id });

    const line = '%torchjob tensorboard brave-fox';
    expect(notebooks.insert).toHaveBeenCalledExactlyOnceWith(line, { run: true });
  });

  it('of a job that has ended and isn’t to is refused', async () => {
    await commands.execute(CommandIDs.cancel, { id: failed.id });

    expect(shown.showDialog).not.toHaveBeenCalled();
    expect(shown.showErrorMessage.mock.calls[0]?.[1]).toBe(
      'Cancel doesn’t apply to calm-owl (Failed).'
    );
  });

  it('of a job that may have ended just now is left to the server', async () => {
    client.retry.mockRejectedValueOnce(new Error('brave-fox hasn’t ended'));
    await commands.execute(CommandIDs.retry, { id: running.id });

    expect(client.retry).toHaveBeenCalledWith(running);
    expect(shown.showErrorMessage.mock.calls[0]?.[1]).toBe('brave-fox hasn’t ended');
  });

  it('of a saved layout whose job is gone is passed over in silence', async () => {
    client.job.mockRejectedValueOnce(new Error('There is no job local:gone.'));
    await commands.execute(CommandIDs.logs, { id: 'local:gone', restored: true });

    expect(shown.showErrorMessage).not.toHaveBeenCalled();
    expect(openLogs).not.toHaveBeenCalled();
  });

  it('that isn’t given is asked for, newest job first', async () => {
    shown.getItem.mockImplementationOnce(({ items }) => Promise.resolve({ value: items[0] }));
    await commands.execute(CommandIDs.logs);

    expect(shown.getItem.mock.calls[0]?.[0].items[0]).toBe('calm-owl · FAILED · here');
    expect(openLogs).toHaveBeenCalledExactlyOnceWith(failed);
  });

  it('that isn’t given and isn’t chosen ends the command', async () => {
    shown.getItem.mockResolvedValueOnce({ value: null });
    await commands.execute(CommandIDs.logs);

    expect(openLogs).not.toHaveBeenCalled();
  });
});

describe('a job’s notebook', () => {
  it('gets a cell that attaches, which is run', async () => {
    await commands.execute(CommandIDs.attach, { id: remote.id });

    expect(notebooks.insert).toHaveBeenCalledWith('%torchjob attach kind/default/old-elk', {
      run: true
    });
  });

  it('is opened at the cell', async () => {
    await commands.execute(CommandIDs.goToCell, { id: remote.id });

    expect(notebooks.reveal).toHaveBeenCalledWith('c1', 'a.ipynb');
  });
});

describe('a job’s code', () => {
  it('is swapped in a cell that is to be written, or by what was edited', async () => {
    await commands.execute(CommandIDs.swap, { id: remote.id });
    await commands.execute(CommandIDs.swap, { id: running.id, edited: 'true' });

    expect(notebooks.insert.mock.calls).toEqual([
      ['%%torchjob --swap kind/default/old-elk\n', { run: false }],
      ['%torchjob swap brave-fox', { run: true }]
    ]);
  });

  it('is given the values that were changed in a dialog', async () => {
    client.values.mockResolvedValueOnce([
      { name: 'lr', value: '0.1' },
      { name: 'mode', value: "'a b'" }
    ]);
    client.set.mockResolvedValueOnce('brave-fox: swapped on all ranks\n  lr  replaced');
    shown.showDialog.mockImplementationOnce(({ body }: { body: ValuesForm }) => {
      const inputs = [...body.node.querySelectorAll('input')];
      expect(inputs.map(input => [input.labels?.[0]?.textContent, input.value])).toEqual([
        ['lr', '0.1'],
        ['mode', "'a b'"],
        ['Other values', '']
      ]);
      inputs.forEach(
        (input, at) => (input.value = [' 0.01', "'a b'", 'optimizer.lr=1e-4 x'][at] ?? '')
      );
      return Promise.resolve({ button: { accept: true }, value: body.getValue() });
    });
    await commands.execute(CommandIDs.set, { id: running.id });

    expect(client.set).toHaveBeenCalledExactlyOnceWith(running, [
      { name: 'lr', value: '0.01' },
      { name: 'optimizer.lr', value: '1e-4' },
      { name: 'x', value: '' }
    ]);
    expect(shown.success.mock.calls[0]?.[0]).toBe('brave-fox: swapped on all ranks');
  });

  it('stays where nothing was changed, or the dialog was closed', async () => {
    client.values.mockResolvedValue([{ name: 'lr', value: '0.1' }]);
    shown.showDialog.mockImplementation(({ body }: { body: ValuesForm }) =>
      Promise.resolve({ button: { accept: true }, value: body.getValue() })
    );
    await commands.execute(CommandIDs.set, { id: running.id });
    shown.showDialog.mockResolvedValue({ button: { accept: false }, value: null });
    await commands.execute(CommandIDs.set, { id: running.id });

    expect(client.set).not.toHaveBeenCalled();
  });
});

it('a manifest is copied', async () => {
  client.manifests.mockResolvedValueOnce('kind: Job\n');
  await commands.execute(CommandIDs.copyManifest, { id: remote.id });

  expect(shown.copied).toHaveBeenCalledWith('kind: Job\n');
});

it('a manifest that comes late is copied by a click of its own', async () => {
  vi.stubGlobal('navigator', { userActivation: { isActive: false } });
  client.manifests.mockResolvedValue('kind: Job\n');
  shown.showDialog.mockResolvedValueOnce({ button: { accept: false } });
  await commands.execute(CommandIDs.copyManifest, { id: remote.id });
  expect([shown.copied, shown.info].map(mock => mock.mock.calls)).toEqual([[], []]);

  shown.showDialog.mockResolvedValueOnce({ button: { accept: true } });
  await commands.execute(CommandIDs.copyManifest, { id: remote.id });
  vi.unstubAllGlobals();

  expect(shown.copied).toHaveBeenCalledWith('kind: Job\n');
});
