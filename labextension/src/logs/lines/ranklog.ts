import { Carry } from '../text/ansi';
import type { Written } from '../stream';
import { beginsTraceback, Level, Leveler } from '../text/levels';

import { LineBuffer } from './linebuffer';
import { Packed } from './packed';

// A line beyond this is taken as several: it may never end.
const LONGEST = 1 << 20;

// What nobody has told the times of.
const UNKNOWN = { offset: 0, times: [] as readonly Written[] };

/** One rank's log: bytes in, lines out. */
export class RankLog {
  private readonly buffer = new LineBuffer();
  private readonly levels = new Packed(1);
  private readonly rounds: { readonly round: number; readonly line: number }[] = [];
  /** From which line on what was written when: lines of one time are named once. */
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

  /** How many lines there are, with one that isn't finished. */
  get length(): number {
    return this.count + (this.unfinished.line ? 1 : 0);
  }

  /** A line as it was written, escape sequences included; null where it was shed. */
  line(index: number): string | null {
    return index === this.count ? this.unfinished.line : this.buffer.line(index);
  }

  /** How grave a line is; a `mark`'s text is the number of the round that it begins. */
  level(index: number): Level {
    return index === this.count ? Level.info : (this.levels.at(index) as Level);
  }

  /** When a line was written, in milliseconds since the epoch; never before the one above it. */
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

  /** Takes what the rank wrote in a round, in its order, from byte `offset` of that on. */
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
        this.written(at);
        this.take(bytes.subarray(from, to));
        from = to;
      }
    }
    this.take(bytes.subarray(from));
  }

  private written(at: number): void {
    const last = this.times.length - 1;
    // A clock that was set back turns no lines round.
    if (at > this.times.at(last)) {
      if (last >= 0 && this.timed.at(last) === this.count) {
        this.timed.cut(last); // a line has the time of its end
        this.times.cut(last);
      }
      this.timed.push(this.count);
      this.times.push(at);
    }
  }

  private take(bytes: Uint8Array): void {
    this.add(this.unfinished.take(this.decoder.decode(bytes, { stream: true })));
  }

  /** Takes what stands there without an end for a line: nothing follows it. */
  end(): void {
    this.add(this.unfinished.take(this.decoder.decode()));
    this.add(this.unfinished.end());
  }

  /** Lets go of the oldest text. */
  shed(): void {
    this.buffer.shed();
  }

  /** Where a round failed: the line of its last traceback, its last error, or its end. */
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
    const at = this.rounds.findIndex(each => each.round === round);
    return [this.rounds[at]?.line ?? 0, this.rounds[at + 1]?.line ?? this.count];
  }

  /** A round is a process of its own: what an earlier one left open ends here. */
  private begin(round: number, at: number): void {
    this.end();
    [this.decoder, this.carry, this.leveler] = [decoder(), new Carry(), new Leveler()];
    this.rounds.push({ round, line: this.count });
    this.written(at);
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
    const each = lines.slice(0, -1).split('\n');
    return each.map(line => `${this.carry.next(line)}\n`).join('');
  }
}

function decoder(): TextDecoder {
  return new TextDecoder('utf-8', { ignoreBOM: true });
}

// Up or down so many rows; what may become that.
const MOVE = /\u001b\[(\d{0,4})([AB])/;
const MOVES = /(\n|\u001b\[\d{0,4}[AB])/;
const BEGUN = /\u001b(\[\d{0,4})?$/;
// Nested progress bars beyond this leave a line each time.
const DEEPEST = 32;

/**
 * What a rank has written since its last finished line. A row may be written to again as long as a nested
 * progress bar may come back to it: one below another goes down a row, writes, and goes up again.
 */
class Unfinished {
  private rows = [''];
  private at = 0; // the row that is written to
  private reach = 0; // how many rows above the lowest may be written to again
  private downs = 0; // rows that were gone down since the last move up
  private begun = ''; // what may be the beginning of a move

  /** What is there, as one line. */
  get line(): string {
    return this.rows
      .map(row => row.replace(/[\r\u0008]+$/, ''))
      .filter(row => row.trim())
      .join('  ');
  }

  /** Takes text; gives the lines that are finished now. */
  take(text: string): string {
    const whole = this.begun + text;
    this.begun = BEGUN.exec(whole)?.[0] ?? '';
    const piece = whole.slice(0, whole.length - this.begun.length);
    if (this.rows.length === 1 && this.reach === 0 && !MOVE.test(piece)) {
      const cut = piece.lastIndexOf('\n') + 1; // so it is nearly always
      const lines = cut ? `${this.rows[0] ?? ''}${piece.slice(0, cut)}` : '';
      this.rows = cut ? [''] : this.rows;
      this.write(piece.slice(cut));
      return lines + this.finished();
    }
    piece.split(MOVES).forEach(part => this.move(part));
    return this.finished();
  }

  /** Gives all as finished lines: nothing follows it. */
  end(): string {
    this.write(this.begun);
    const { rows } = this;
    while (rows.length > 1 && !rows.at(-1)?.trim()) {
      rows.pop(); // a bar that has ended has left it empty
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

  /** Lets go of the rows that nobody comes back to. */
  private finished(): string {
    this.rows = this.rows.map(overwritten); // once for all moves: rows may be long
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

/** Lines without what carriage returns and backspaces wrote over, as a progress bar does. */
function overwritten(lines: string): string {
  const shown = lines.includes('\r') ? lines.replace(/(^|\n)[^\n]*\r(?=[^\r\n])/g, '$1') : lines;
  const back = (line: string) => (line.includes('\b') ? backspaced(line) : line);
  return shown.includes('\b') ? shown.split('\n').map(back).join('\n') : shown;
}

/** A line as it is where backspaces went back over its characters; it goes on where it was left. */
function backspaced(line: string): string {
  const cells: string[] = [];
  let [at, styles] = [0, ''];
  for (const [part] of line.matchAll(/\u001b\[[0-?]*[ -/]*[@-~]|[^]/gu)) {
    if (part === '\b') {
      at = Math.max(0, at - 1);
    } else if (part.length > 2) {
      styles += part; // takes no room
    } else {
      cells[at++] = styles + part;
      styles = '';
    }
  }
  return cells.join('') + styles + '\b'.repeat(cells.length - at);
}
