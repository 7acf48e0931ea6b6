/** What a cell's source says about how it is run, and the same source run as a torch job. */

const MAGIC = /^%%(\S*)/;
// What a reader would still take for the cell's first line; IPython drops blank lines, but not comments.
const PREAMBLE = /^(?:[ \t]*(?:#.*)?\r?\n)*/;
// A line that ends in a backslash was meant to go on, though IPython takes one line only.
const TORCHJOB = /^%%torchjob(?!\S)(?:[^\n]*\\\r?\n)*[^\n]*(?:\n|$)/;
const LINE_VERB = /^\s*%torchjob(?!\S)/;

/** The cell magic that a source is given to, such as "torchjob" or "bash"; null without one. */
export function magicOf(source: string): string | null {
  return MAGIC.exec(afterPreamble(source))?.[1] ?? null;
}

/** Whether a source can run as a torch job: no other cell magic has it, and it acts on no job itself. */
export function canBeJob(source: string): boolean {
  const magic = magicOf(source);
  return magic === 'torchjob' || (magic === null && !LINE_VERB.test(source));
}

/** The `%%torchjob` line that a source has; null without one. */
export function lineOf(source: string): string | null {
  return TORCHJOB.exec(afterPreamble(source))?.[0].trimEnd() ?? null;
}

/** What is there for a `%%torchjob` line to go to. */
export interface Around {
  /** What the active cell says; null: it is no code, or there is none. */
  readonly active: string | null;
  /** Whether the active cell shows the panel: who presses a button there makes it the active one. */
  readonly isPanel: boolean;
  /** What the cell that this panel made before says now, and the line that it was given. */
  readonly made: { readonly source: string; readonly line: string } | null;
}

/** Where a `%%torchjob` line goes: never in the place of one that its user wrote or changed. */
export function placeOfLine({ active, isPanel, made }: Around): 'active' | 'made' | 'new' {
  if (isPanel) {
    return made && lineOf(made.source) === made.line ? 'made' : 'new';
  }
  return active !== null && canBeJob(active) && lineOf(active) === null ? 'active' : 'new';
}

/** The source with this `%%torchjob` line on top, in the place of the one that it has. */
export function withLine(source: string, line: string): string {
  const { preamble, rest } = split(source);
  const body = preamble + rest.replace(TORCHJOB, '');
  return `${line}\n${body.replace(/^\s*\n/, '')}`;
}

/** The source as a job: its own `%%torchjob` line comes to the top, or one with these options. */
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
  /** It names the backend first. */
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

/** What changes a job's code: a cell to be written, or the line that swaps in its own, as `edited`. */
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
