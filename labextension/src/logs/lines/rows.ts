import type { Level } from '../text/levels';

import { Packed } from './packed';
import type { RankLog } from './ranklog';

/** A line of a rank's log. */
export interface Row {
  readonly log: RankLog;
  readonly line: number;
}

// A reader that missed more changes than this starts over.
const REMEMBERED = 64;

/** Records from which row on an order has changed, for readers that check now and then. */
export class Turned {
  count = 0;
  private readonly rows: number[] = [];

  from(row: number): void {
    this.count++;
    this.rows.push(row);
    this.rows.splice(0, this.rows.length - REMEMBERED);
  }

  /** How many leading rows are unchanged since `count` had this value. */
  kept(count: number): number {
    const missed = this.count - count;
    if (missed > this.rows.length) {
      return 0;
    }
    return Math.min(...this.rows.slice(this.rows.length - missed), Infinity);
  }
}

/** Lines in the order in which they are shown. */
export interface Rows {
  /** How many rows won't change any more: all before the unfinished ones. */
  readonly settled: number;
  readonly length: number;
  /** Records which rows have changed; undefined: they never do. */
  readonly turned?: Turned;
  at(index: number): Row;
  /** The index of a line, or of the next one that is shown if it isn't. */
  find(row: Row): number;
}

/** The text of a row; null if it was shed. */
export function textOf(row: Row): string | null {
  return row.log.line(row.line);
}

/** Whether a row is unfinished: more of it may come. */
export function isOpen({ log, line }: Row): boolean {
  return line === log.count;
}

export function levelOf(row: Row): Level {
  return row.log.level(row.line);
}

/** The lines of one rank. */
export class Single implements Rows {
  constructor(private readonly log: RankLog) {}

  get settled(): number {
    return this.log.count;
  }

  get length(): number {
    return this.log.length;
  }

  at(index: number): Row {
    return { log: this.log, line: index };
  }

  find(row: Row): number {
    return row.line;
  }
}

/**
 * The lines of all ranks in the order of their times, kept as runs of lines of one rank; unfinished lines are at
 * the end. Lines that come late, such as those of a rank whose log is read after another's, are inserted where
 * they belong: the rows from there on are rebuilt, which `turned` records.
 */
export class Merged implements Rows {
  readonly turned = new Turned();
  private readonly logs: RankLog[] = [];
  private readonly places = new Map<RankLog, number>();
  /** How many lines of each log are rows. */
  private readonly lineCounts: number[] = [];
  /** For each run: its first row, the index of its log in `logs`, its first line in that log. */
  private readonly firsts = new Packed(4);
  private readonly owners = new Packed(4);
  private readonly lines = new Packed(4);
  private rows = 0;

  get settled(): number {
    return this.rows;
  }

  get length(): number {
    return this.rows + this.open().length;
  }

  /** Includes a log from now on. */
  add(log: RankLog): void {
    this.placeOf(log);
  }

  /** Takes the lines finished since the last call, each where it belongs. */
  settle(): void {
    const first = this.earliest();
    if (first && this.rows && first.time < this.timeOf(this.rows - 1)) {
      this.cut(this.later(first.time));
    }
    for (let next = this.earliest(); next; next = this.earliest()) {
      this.take(next.place);
    }
  }

  at(index: number): Row {
    if (index >= this.rows) {
      const log = this.open()[index - this.rows] as RankLog;
      return { log, line: log.count };
    }
    const run = this.firsts.floor(index);
    const log = this.logs[this.owners.at(run)] as RankLog;
    return { log, line: this.lines.at(run) + index - this.firsts.at(run) };
  }

  find({ log, line }: Row): number {
    const place = this.placeOf(log);
    for (let run = this.firsts.length - 1; run >= 0; run--) {
      if (this.owners.at(run) === place && this.lines.at(run) <= line) {
        return this.firsts.at(run) + line - this.lines.at(run);
      }
    }
    return 0;
  }

  /** The log whose next line is the earliest, ignoring the log at `but`. */
  private earliest(but?: number): { place: number; time: number } | null {
    let earliest: { place: number; time: number } | null = null;
    this.logs.forEach((log, place) => {
      const next = this.lineCounts[place] ?? 0;
      const time = log.time(next);
      if (place !== but && next < log.count && !(earliest && earliest.time <= time)) {
        earliest = { place, time };
      }
    });
    return earliest;
  }

  /** Takes lines of one log until another log has an earlier one. */
  private take(place: number): void {
    const log = this.logs[place] as RankLog;
    const from = this.lineCounts[place] ?? 0;
    const rival = this.earliest(place);
    const end = rival ? log.after(rival.time, from) : log.count;
    const last = this.firsts.length - 1;
    if (last < 0 || this.owners.at(last) !== place) {
      this.firsts.push(this.rows);
      this.owners.push(place);
      this.lines.push(from);
    }
    this.rows += end - from;
    this.lineCounts[place] = end;
  }

  /** The first row that was written after a time. */
  private later(time: number): number {
    let [low, high] = [0, this.rows];
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (this.timeOf(middle) <= time) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  /** Removes the rows from `row` on; their lines are taken again. */
  private cut(row: number): void {
    while (this.firsts.length) {
      const run = this.firsts.length - 1;
      const first = this.firsts.at(run);
      this.lineCounts[this.owners.at(run)] = this.lines.at(run) + Math.max(0, row - first);
      if (first < row) {
        break;
      }
      [this.firsts, this.owners, this.lines].forEach(array => array.cut(run));
    }
    this.rows = row;
    this.turned.from(row);
  }

  private timeOf(index: number): number {
    const { log, line } = this.at(index);
    return log.time(line);
  }

  private open(): RankLog[] {
    return this.logs.filter(log => log.length > log.count);
  }

  private placeOf(log: RankLog): number {
    let place = this.places.get(log);
    if (place === undefined) {
      place = this.logs.push(log) - 1;
      this.lineCounts.push(0);
      this.places.set(log, place);
    }
    return place;
  }
}
