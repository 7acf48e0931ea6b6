/** Actions on open notebooks: finding, inserting, changing and running cells. */

import { SessionContextDialogs } from '@jupyterlab/apputils';
import type { IDocumentManager } from '@jupyterlab/docmanager';
import { type INotebookTracker, NotebookActions, type NotebookPanel } from '@jupyterlab/notebook';
import type { ITranslator, TranslationBundle } from '@jupyterlab/translation';

import { asJob, canBeJob, lineOf, magicOf, placeOfLine, withLine } from './cells';

type Cell = NotebookPanel['content']['widgets'][number];

export interface NotebooksOptions {
  readonly tracker: INotebookTracker;
  /** Opens a notebook that isn't open; null if the page can't. */
  readonly documents: IDocumentManager | null;
  readonly translator: ITranslator;
}

/** The open notebooks. What can't be done throws or rejects with an Error, one line for the user. */
export class Notebooks {
  constructor(private readonly options: NotebooksOptions) {
    this.trans = options.translator.load('nbtorchjob');
  }

  /** Whether the active cell can be given to `%%torchjob`: it is code, in a Python notebook. */
  get hasCodeCell(): boolean {
    const panel = this.options.tracker.currentWidget;
    return this.isPython && panel?.content.activeCell?.model.type === 'code';
  }

  /** Whether there is a Python notebook that a line can be put into. */
  get isPython(): boolean {
    // A new notebook doesn't name its language until its kernel has.
    const language = this.options.tracker.currentWidget?.context.model.defaultKernelLanguage;
    return language !== undefined && ['', 'python', 'ipython'].includes(language);
  }

  /** The active cell's notebook; null if the cell has a line of its own. Throws if it can't run as a job. */
  activeWithoutLine(): string | null {
    const panel = this.current();
    return lineOf(this.codeOfActive(panel)) === null ? panel.context.path : null;
  }

  /** Runs the active cell as a torch job: with its own line, or one with these options. */
  async runActiveCell({ options, replace }: { options: string; replace: boolean }): Promise<void> {
    const panel = this.current();
    const cell = panel.content.activeCell;
    const before = this.codeOfActive(panel);
    if (cell === null) {
      return;
    }
    const line = `%%torchjob ${options}`.trimEnd();
    put(cell, replace ? withLine(before, line) : asJob(before, options));
    await this.run(panel, cell);
  }

  /** Puts a `%%torchjob` line where it belongs, on top of an existing cell or of a new one. */
  async putLine(line: string, path: string | null): Promise<void> {
    const panel = this.at(path);
    const { activeCell, widgets } = panel.content;
    const isPanel = Boolean(activeCell?.node.querySelector('.nbtorchjob-panel'));
    const before = this.lineCells.get(activeCell?.model.id ?? '');
    const lineCell = widgets.find(cell => cell.model.id === before?.id) ?? null;
    const source = codeOf(lineCell);
    const place = placeOfLine({
      active: codeOf(activeCell),
      isPanel,
      made: before && source !== null ? { source, line: before.line } : null
    });
    let cell = { active: activeCell, made: lineCell, new: null }[place];
    if (cell) {
      put(cell, withLine(cell.model.sharedModel.source, line));
    } else {
      cell = this.insertBelow(panel, `${line}\n`);
    }
    if (isPanel && activeCell) {
      this.lineCells.set(activeCell.model.id, { id: cell.model.id, line });
    }
    await this.load(panel);
  }

  /** Puts a cell below the active one, shows and selects it; runs it if `run`. */
  async insert(source: string, { run }: { run: boolean }): Promise<void> {
    const panel = this.current();
    if (!panel.isVisible) {
      this.options.documents?.openOrReveal(panel.context.path);
    }
    const cell = this.insertBelow(panel, source);
    void panel.content.scrollToItem(panel.content.activeCellIndex, 'smart');
    await (run ? this.run(panel, cell) : this.load(panel));
  }

  /** Shows a cell by its id, in whichever open notebook has it, else in the one at `path`. */
  async reveal(id: string, path: string): Promise<void> {
    const panel = this.holding(id) ?? (await this.open(path));
    if (panel === null) {
      return;
    }
    const index = panel.content.widgets.findIndex(cell => cell.model.id === id);
    if (index < 0) {
      throw new Error(this.trans.__('The cell isn’t in %1 any more.', panel.context.path));
    }
    panel.content.deselectAll();
    panel.content.activeCellIndex = index;
    await panel.content.scrollToItem(index, 'smart');
    panel.content.activate();
  }

  /** The active cell's source; throws if it can't run as a job. */
  private codeOfActive(panel: NotebookPanel): string {
    const source = codeOf(panel.content.activeCell);
    if (source === null) {
      throw new Error(this.trans.__('Only code cells can run as torch jobs: select one.'));
    }
    this.refuseOtherMagic(source);
    return source;
  }

  private current(): NotebookPanel {
    const panel = this.options.tracker.currentWidget;
    if (panel === null) {
      throw new Error(this.trans.__('No notebook is open: open one and try again.'));
    }
    return panel;
  }

  private at(path: string | null): NotebookPanel {
    const named = path && this.options.tracker.find(panel => panel.context.path === path);
    return named || this.current();
  }

  private holding(id: string): NotebookPanel | undefined {
    const has = (panel: NotebookPanel) => panel.content.widgets.some(cell => cell.model.id === id);
    const panel = this.options.tracker.find(has);
    if (panel) {
      this.options.documents?.openOrReveal(panel.context.path);
    }
    return panel;
  }

  /** Opens a notebook; null if it opens on a page of its own, as in Notebook. */
  private async open(path: string): Promise<NotebookPanel | null> {
    if (!path) {
      throw new Error(this.trans.__('The job’s notebook is outside the server’s root folder.'));
    }
    const panel = this.options.documents?.openOrReveal(path) as NotebookPanel | undefined;
    if (!panel || panel.isDisposed) {
      return null;
    }
    await panel.revealed;
    return panel;
  }

  private insertBelow(panel: NotebookPanel, source: string): Cell {
    const notebook = panel.content;
    NotebookActions.insertBelow(notebook);
    const cell = notebook.activeCell;
    if (cell === null) {
      throw new Error(this.trans.__('Can’t add a cell to %1.', panel.context.path));
    }
    if (cell.model.type !== 'code') {
      NotebookActions.changeCellType(notebook, 'code', this.options.translator);
    }
    const codeCell = notebook.activeCell ?? cell;
    put(codeCell, source);
    return codeCell;
  }

  private refuseOtherMagic(source: string): void {
    if (canBeJob(source)) {
      return;
    }
    const magic = magicOf(source);
    throw new Error(
      magic === null
        ? this.trans.__('This cell is a torchjob command: select a cell with code.')
        : this.trans.__(
            'This cell is run by %1: remove that line, or select another cell.',
            `%%${magic}`
          )
    );
  }

  private async run(panel: NotebookPanel, cell: Cell): Promise<void> {
    const { sessionContext } = panel;
    const dialogs = new SessionContextDialogs({ translator: this.options.translator });
    await sessionContext.ready;
    if (sessionContext.hasNoKernel && (await sessionContext.startKernel())) {
      await dialogs.selectKernel(sessionContext);
    }
    // Both at once: a kernel handles requests in the order in which they arrive.
    await Promise.all([
      this.load(panel),
      NotebookActions.runCells(
        panel.content,
        [cell],
        sessionContext,
        dialogs,
        this.options.translator
      )
    ]);
  }

  /** Loads the magics into a notebook's kernel; loading them again does nothing. */
  private async load(panel: NotebookPanel): Promise<void> {
    const kernel = panel.sessionContext.session?.kernel;
    if (!kernel) {
      return;
    }
    const code = '%load_ext nbtorchjob';
    const reply = await kernel
      .requestExecute({ code, silent: true, store_history: false, stop_on_error: false })
      .done.catch(() => null); // the kernel is gone: whatever runs next reports that
    if (reply?.content.status === 'error') {
      const why = reply.content.evalue;
      throw new Error(
        this.trans.__(
          'The kernel can’t load nbtorchjob (%1): install it in the kernel’s environment.',
          why
        )
      );
    }
  }

  private readonly trans: TranslationBundle;
  /** By the id of a panel's cell: the cell that its line was put into, and the line. */
  private readonly lineCells = new Map<string, { readonly id: string; readonly line: string }>();
}

/** A code cell's source; null for any other cell. */
function codeOf(cell: Cell | null): string | null {
  return cell?.model.type === 'code' ? cell.model.sharedModel.source : null;
}

function put(cell: Cell, source: string): void {
  // As one undo step, and only if something changes.
  if (cell.model.sharedModel.source !== source) {
    cell.model.sharedModel.setSource(source);
  }
}
