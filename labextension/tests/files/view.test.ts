// @vitest-environment jsdom
import { MessageLoop } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import { afterEach, expect, it, vi } from 'vitest';

import { FileView } from '../../src/files/view';

import { aJob, english } from '../jobs';

// The real ones need a browser.
vi.mock('@jupyterlab/apputils', () => ({ Clipboard: {} }));
vi.mock('@jupyterlab/ui-components', () => import('../widget'));
vi.hoisted(() => vi.stubGlobal('DragEvent', class extends MouseEvent {}));

URL.revokeObjectURL = vi.fn(); // jsdom has none

const place = { path: 'artifacts/loss.txt', node: 1 };
const file = { path: place.path, size: 5, modified: 0, node: 0 };
const client = {
  files: vi.fn(),
  file: vi.fn(async () => new TextEncoder().encode('words')),
  fileUrl: () => ''
};
let shown: FileView;

function show(): void {
  shown = new FileView({ job: aJob(), name: 'fox', place, client, trans: english });
  Widget.attach(shown, document.body);
  MessageLoop.flush();
}

afterEach(() => shown.dispose());

it('says why a node has no list of files, not that the file is gone', async () => {
  client.files.mockResolvedValue({ files: [], trouble: ['node 1: no answer'], more: false });
  show();

  await vi.waitFor(() => expect(shown.node.textContent).toContain('node 1: no answer'));
});

it('is still that of its node where the first node’s equal one is listed', async () => {
  client.files.mockResolvedValue({ files: [file], trouble: [], more: false });
  show();

  await vi.waitFor(() => expect(shown.node.textContent).toContain('words'));
  expect(client.file).toHaveBeenCalledWith(expect.anything(), place, expect.anything());
});

it('says that a file is gone', async () => {
  client.files.mockResolvedValue({ files: [], trouble: [], more: false });
  show();

  await vi.waitFor(() => expect(shown.node.textContent).toContain('no longer exists'));
});
