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
  private rest = '';

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
    return this.count + (this.rest ? 1 : 0);
  }

  /** A line as it was written, escape sequences included; null where it was shed. */
  line(index: number): string | null {
    return index === this.count ? this.rest.replace(/\r+$/, '') : this.buffer.line(index);
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
    const piece = this.decoder.decode(bytes, { stream: true });
    const cut = piece.lastIndexOf('\n') + 1;
    if (cut) {
      this.add(this.rest + piece.slice(0, cut));
      this.rest = '';
    }
    this.rest = overwritten(this.rest + piece.slice(cut));
    if (this.rest.length > LONGEST) {
      this.add(`${this.rest}\n`);
      this.rest = '';
    }
  }

  /** Takes what stands there without an end for a line: nothing follows it. */
  end(): void {
    const left = this.rest + this.decoder.decode();
    if (left) {
      this.add(`${left}\n`);
    }
    this.rest = '';
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
    const shown = this.coloured(overwritten(lines).replace(/(?<!\r)\r+\n/g, '\n'));
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

/** Lines without what a carriage return wrote over, as a progress bar does. */
function overwritten(lines: string): string {
  return lines.includes('\r') ? lines.replace(/(^|\n)[^\n]*\r(?=[^\r\n])/g, '$1') : lines;
}
