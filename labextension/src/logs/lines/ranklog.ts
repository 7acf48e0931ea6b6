import { Carry } from '../text/ansi';
import type { Written } from '../stream';
import { beginsTraceback, Level, Leveler } from '../text/levels';

import { LineBuffer } from './linebuffer';
import { Packed } from './packed';

// A longer line is split into several: it may never end.
const LONGEST = 1 << 20;

// For bytes whose times are unknown.
const UNKNOWN = { offset: 0, times: [] as readonly Written[] };

/** One rank's log: bytes in, lines out. */
export class RankLog {
  private readonly buffer = new LineBuffer();
  private readonly levels = new Packed(1);
  private readonly rounds: { readonly round: number; readonly line: number }[] = [];
  /** `times[i]` is when the lines from `timed[i]` up to the next entry were written. */
  private readonly timed = new Packed(4);
  private readonly times = new Packed(8);
  private decoder = decoder();
  private carry = new Carry();
  private leveler = new Leveler();
  private unfinished = new Unfinished();

  constructor(readonly rank: number) {}

  /** How many lines are finished. */
  get count(): number {
    return this.buffer.length;
  }

  /** How many characters are held in memory. */
  get size(): number {
    return this.buffer.size;
  }

  /** How many lines there are, including an unfinished one. */
  get length(): number {
    return this.count + (this.unfinished.line ? 1 : 0);
  }

  /** A line as it was written, escape sequences included; null if it was shed. */
  line(index: number): string | null {
    return index === this.count ? this.unfinished.line : this.buffer.line(index);
  }

  /** The level of a line; the text of a `mark` is the number of the round that it begins. */
  level(index: number): Level {
    return index === this.count ? Level.info : (this.levels.at(index) as Level);
  }

  /** When a line was written, in milliseconds since the epoch; never earlier than the line above it. */
  time(line: number): number {
    return this.times.at(Math.max(0, this.timed.floor(line)));
  }

  /** The first line from `line` on that was written after `time`. */
  after(time: number, line: number): number {
    const next = this.times.floor(time) + 1;
    return next < this.times.length
      ? Math.min(this.count, Math.max(line, this.timed.at(next)))
      : this.count;
  }

  /** Appends bytes that the rank wrote in a round, in order; the first is at `offset` of the round's log. */
  append(
    round: number,
    bytes: Uint8Array,
    { offset: start, times }: { offset: number; times: readonly Written[] } = UNKNOWN
  ): void {
    if (round !== this.rounds.at(-1)?.round) {
      this.begin(round, times[0]?.at ?? 0);
    }
    let from = 0;
    for (const { offset, at } of times) {
      const to = Math.min(bytes.length, offset - start);
      if (to > from) {
        this.recordTime(at);
        this.take(bytes.subarray(from, to));
        from = to;
      }
    }
    this.take(bytes.subarray(from));
  }

  private recordTime(at: number): void {
    const last = this.times.length - 1;
    // A clock that was set back must not reorder lines.
    if (at > this.times.at(last)) {
      if (last >= 0 && this.timed.at(last) === this.count) {
        this.timed.cut(last); // a line's time is that of its end
        this.times.cut(last);
      }
      this.timed.push(this.count);
      this.times.push(at);
    }
  }

  private take(bytes: Uint8Array): void {
    this.add(this.unfinished.take(this.decoder.decode(bytes, { stream: true })));
  }

  /** Finishes an unfinished line: nothing follows it. */
  end(): void {
    this.add(this.unfinished.take(this.decoder.decode()));
    this.add(this.unfinished.end());
  }

  /** Drops the oldest text. */
  shed(): void {
    this.buffer.shed();
  }

  /** Where a round failed: where its last traceback begins, else its last errors, else its last line. */
  failure(round: number): number {
    const [from, to] = this.range(round);
    let error = -1;
    for (let line = to - 1; line >= from; line--) {
      if (this.levels.at(line) === Level.error) {
        error = error < 0 || error === line + 1 ? line : error;
        if (beginsTraceback(this.line(line) ?? '')) {
          return line;
        }
      }
    }
    return error < 0 ? Math.max(from, to - 1) : error;
  }

  private range(round: number): [number, number] {
    const at = this.rounds.findIndex(start => start.round === round);
    return [this.rounds[at]?.line ?? 0, this.rounds[at + 1]?.line ?? this.count];
  }

  /** Begins a round, which is a new process: a line that the previous one left unfinished ends here. */
  private begin(round: number, at: number): void {
    this.end();
    [this.decoder, this.carry, this.leveler] = [decoder(), new Carry(), new Leveler()];
    this.rounds.push({ round, line: this.count });
    this.recordTime(at);
    if (this.rounds.length > 1) {
      this.buffer.push(`${this.rounds.length}\n`);
      this.levels.push(Level.mark);
    }
  }

  private add(lines: string): void {
    if (!lines) {
      return;
    }
    const shown = this.coloured(overwritten(lines).replace(/(?<![\r\b])[\r\b]+\n/g, '\n'));
    this.buffer.push(shown);
    for (let from = 0, end: number; (end = shown.indexOf('\n', from)) >= 0; from = end + 1) {
      this.levels.push(this.leveler.next(shown.slice(from, end)));
    }
  }

  private coloured(lines: string): string {
    if (this.carry.idle && !lines.includes('\u001b')) {
      return lines;
    }
    const texts = lines.slice(0, -1).split('\n');
    return texts.map(line => `${this.carry.next(line)}\n`).join('');
  }
}

function decoder(): TextDecoder {
  return new TextDecoder('utf-8', { ignoreBOM: true });
}

// A cursor move up or down by rows; moves and newlines, to split at; an incomplete move at the end.
const MOVE = /\u001b\[(\d{0,4})([AB])/;
const MOVES = /(\n|\u001b\[\d{0,4}[AB])/;
const BEGUN = /\u001b(\[\d{0,4})?$/;
// Progress bars nested deeper than this leave a line at each update.
const DEEPEST = 32;

/**
 * What a rank has written since its last finished line. A row stays open as long as a nested
 * progress bar may return to it: a bar below another moves down a row, writes, and moves up again.
 */
class Unfinished {
  private rows = [''];
  private at = 0; // the row being written to
  private reach = 0; // how many rows above the lowest may be written to again
  private downs = 0; // how many rows down since the last move up
  private begun = ''; // what may be the beginning of a move

  /** The unfinished rows, as one line. */
  get line(): string {
    return this.rows
      .map(row => row.replace(/[\r\u0008]+$/, ''))
      .filter(row => row.trim())
      .join('  ');
  }

  /** Takes text; returns the lines that are finished now. */
  take(text: string): string {
    const whole = this.begun + text;
    this.begun = BEGUN.exec(whole)?.[0] ?? '';
    const piece = whole.slice(0, whole.length - this.begun.length);
    if (this.rows.length === 1 && this.reach === 0 && !MOVE.test(piece)) {
      const cut = piece.lastIndexOf('\n') + 1; // by far the usual case
      const lines = cut ? `${this.rows[0] ?? ''}${piece.slice(0, cut)}` : '';
      this.rows = cut ? [''] : this.rows;
      this.write(piece.slice(cut));
      return lines + this.finished();
    }
    piece.split(MOVES).forEach(part => this.move(part));
    return this.finished();
  }

  /** Returns everything as finished lines: nothing follows it. */
  end(): string {
    this.write(this.begun);
    const { rows } = this;
    while (rows.length > 1 && !rows.at(-1)?.trim()) {
      rows.pop(); // left empty by a bar that has ended
    }
    [this.rows, this.at, this.reach, this.downs, this.begun] = [[''], 0, 0, 0, ''];
    return rows.join('') && rows.map(row => `${row}\n`).join('');
  }

  private move(part: string): void {
    const [, rows, way] = MOVE.exec(part) ?? [];
    const count = Number(rows || 1);
    if (part === '\n') {
      this.down();
      this.write(this.rows[this.at] ? '\r' : '');
    } else if (way === 'B') {
      Array.from({ length: Math.min(count, this.rows.length - 1 - this.at) }, () => this.down());
    } else if (way === 'A') {
      this.at = Math.max(0, this.at - count);
      this.reach = Math.min(DEEPEST, Math.max(this.reach, this.rows.length - 1 - this.at));
      this.downs = 0;
    } else {
      this.write(part);
    }
  }

  private down(): void {
    this.at++;
    this.downs++;
    this.rows[this.at] ??= '';
  }

  private write(text: string): void {
    this.rows[this.at] = `${this.rows[this.at] ?? ''}${text}`;
  }

  /** Removes the rows that no bar returns to, and returns them as lines. */
  private finished(): string {
    this.rows = this.rows.map(overwritten); // once for all moves, as rows may be long
    if ((this.rows[this.at] ?? '').length > LONGEST) {
      return this.end();
    }
    // Bars go down no further than they went up.
    this.reach = this.downs > this.reach ? 0 : this.reach;
    const kept = Math.max(this.rows.length - this.at, this.reach + 1);
    const rows = this.rows.splice(0, Math.max(0, this.rows.length - kept));
    this.at -= rows.length;
    return rows.map(row => `${row}\n`).join('');
  }
}

/** Lines without the text that was overwritten after carriage returns and backspaces, as by progress bars. */
function overwritten(lines: string): string {
  const shown = lines.includes('\r') ? lines.replace(/(^|\n)[^\n]*\r(?=[^\r\n])/g, '$1') : lines;
  const back = (line: string) => (line.includes('\b') ? backspaced(line) : line);
  return shown.includes('\b') ? shown.split('\n').map(back).join('\n') : shown;
}

/** Applies a line's backspaces; keeps those at its end, so that the next text continues at the right place. */
function backspaced(line: string): string {
  const cells: string[] = [];
  let [at, styles] = [0, ''];
  for (const [part] of line.matchAll(/\u001b\[[0-?]*[ -/]*[@-~]|[^]/gu)) {
    if (part === '\b') {
      at = Math.max(0, at - 1);
    } else if (part.length > 2) {
      styles += part; // has no width
    } else {
      cells[at++] = styles + part;
      styles = '';
    }
  }
  return cells.join('') + styles + '\b'.repeat(cells.length - at);
}
