import { Carry } from '../text/ansi';
import { beginsTraceback, Level, Leveler } from '../text/levels';

import { LineBuffer } from './linebuffer';
import { Packed } from './packed';

// A line beyond this is taken as several: it may never end.
const LONGEST = 1 << 20;

/** One rank's log: bytes in, lines out. */
export class RankLog {
  private readonly buffer = new LineBuffer();
  private readonly levels = new Packed(1);
  private readonly rounds: { readonly round: number; readonly line: number }[] = [];
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

  /** Takes what the rank wrote in a round, in its order. */
  append(round: number, bytes: Uint8Array): void {
    if (round !== this.rounds.at(-1)?.round) {
      this.begin(round);
    }
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
  private begin(round: number): void {
    const left = this.rest + this.decoder.decode();
    if (left) {
      this.add(`${left}\n`);
    }
    [this.rest, this.decoder, this.carry, this.leveler] = [
      '',
      decoder(),
      new Carry(),
      new Leveler()
    ];
    this.rounds.push({ round, line: this.count });
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
