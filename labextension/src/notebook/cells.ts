/** How a cell's source says it is run, and the same source as a torch job. */

const MAGIC = /^%%(\S*)/;
// A magic below this still looks like the cell's first line; IPython drops blank lines, but not comments.
const PREAMBLE = /^(?:[ \t]*(?:#.*)?\r?\n)*/;
// A line that ends in a backslash was meant to continue, although IPython takes only one line.
const TORCHJOB = /^%%torchjob(?!\S)(?:[^\n]*\\\r?\n)*[^\n]*(?:\n|$)/;
const LINE_VERB = /^\s*%torchjob(?!\S)/;

/** The cell magic that runs a source, such as "torchjob" or "bash"; null if it has none. */
export function magicOf(source: string): string | null {
  return MAGIC.exec(afterPreamble(source))?.[1] ?? null;
}

/** Whether a source can run as a torch job: it has no other cell magic, and doesn't start with `%torchjob`. */
export function canBeJob(source: string): boolean {
  const magic = magicOf(source);
  return magic === 'torchjob' || (magic === null && !LINE_VERB.test(source));
}

/** The `%%torchjob` line of a source; null if it has none. */
export function lineOf(source: string): string | null {
  return TORCHJOB.exec(afterPreamble(source))?.[0].trimEnd() ?? null;
}

/** The cells that a `%%torchjob` line may go to. */
export interface Around {
  /** The active cell's source; null: it isn't code, or no cell is active. */
  readonly active: string | null;
  /** Whether the active cell shows the panel: pressing a button there makes it the active one. */
  readonly isPanel: boolean;
  /** The cell that this panel made before: its source now, and the line that it was given. */
  readonly made: { readonly source: string; readonly line: string } | null;
}

/** Where a `%%torchjob` line goes: it never replaces a line that the user wrote or changed. */
export function placeOfLine({ active, isPanel, made }: Around): 'active' | 'made' | 'new' {
  if (isPanel) {
    return made && lineOf(made.source) === made.line ? 'made' : 'new';
  }
  return active !== null && canBeJob(active) && lineOf(active) === null ? 'active' : 'new';
}

/** The source with this `%%torchjob` line on top, in place of its own. */
export function withLine(source: string, line: string): string {
  const { preamble, rest } = split(source);
  const body = preamble + rest.replace(TORCHJOB, '');
  return `${line}\n${body.replace(/^\s*\n/, '')}`;
}

/** The source as a job: with its own `%%torchjob` line moved to the top, or else one with these options. */
export function asJob(source: string, options: string): string {
  const own = lineOf(source);
  if (own !== null) {
    return withLine(source, own);
  }
  return withLine(source, `%%torchjob ${options.trim()}`.trimEnd());
}

/** Whether a line is `%%torchjob` and its options, and nothing else. */
export function isJobLine(line: string): boolean {
  return /^%%torchjob(?: [^\n\r]*)?$/.test(line);
}

interface Addressed {
  /** It begins with the backend's name. */
  readonly id: string;
  readonly backend: string;
}

/** The line that follows a job again. */
export function attachLine(job: Addressed): string {
  return `%torchjob attach ${addressOf(job)}`;
}

/** The line that shows a job in TensorBoard. */
export function boardLine(job: Addressed): string {
  return `%torchjob tensorboard ${addressOf(job)}`;
}

/** Source that swaps a job's code: a line that swaps in its own `edited` cell, or the start of a new cell. */
export function swapLine(job: Addressed, edited: boolean): string {
  return edited ? `%torchjob swap ${addressOf(job)}` : `%%torchjob --swap ${addressOf(job)}\n`;
}

function addressOf({ id, backend }: Addressed): string {
  const address = id.slice(backend.length + 1);
  const plain = /^[\w@%+=:,./-]+$/.test(address);
  return plain ? address : `'${address.replaceAll("'", `'"'"'`)}'`;
}

function split(source: string): { preamble: string; rest: string } {
  const preamble = PREAMBLE.exec(source)?.[0] ?? '';
  return { preamble, rest: source.slice(preamble.length) };
}

function afterPreamble(source: string): string {
  return split(source).rest;
}
