import type { Level } from '../text/levels';

import { Packed } from './packed';
import type { RankLog } from './ranklog';

/** A line of a rank's log. */
export interface Row {
  readonly log: RankLog;
  readonly line: number;
}

/** Lines in the order in which they are shown. */
export interface Rows {
  /** How many won't change any more: all before those that aren't finished. */
  readonly settled: number;
  readonly length: number;
  at(index: number): Row;
  /** The index of a line; of the next one shown where it isn't. */
  find(row: Row): number;
}

/** What a row says; null where its text was let go of. */
export function textOf(row: Row): string | null {
  return row.log.line(row.line);
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
 * The lines of all ranks in the order of their arrival: ranks' clocks aren't in the log. Kept as
 * runs of lines of one rank; lines that aren't finished stand at the end.
 */
export class Merged implements Rows {
  private readonly logs: RankLog[] = [];
  private readonly places = new Map<RankLog, number>();
  /** Of each run: its first row, its log's place in `logs`, its first line there. */
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

  /** Takes the lines of a log that were finished since it had `from`. */
  arrived(log: RankLog, from: number): void {
    const place = this.placeOf(log);
    if (log.count === from) {
      return;
    }
    const last = this.firsts.length - 1;
    if (last < 0 || this.owners.at(last) !== place) {
      this.firsts.push(this.rows);
      this.owners.push(place);
      this.lines.push(from);
    }
    this.rows += log.count - from;
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

  private open(): RankLog[] {
    return this.logs.filter(log => log.length > log.count);
  }

  private placeOf(log: RankLog): number {
    let place = this.places.get(log);
    if (place === undefined) {
      place = this.logs.push(log) - 1;
      this.places.set(log, place);
    }
    return place;
  }
}
