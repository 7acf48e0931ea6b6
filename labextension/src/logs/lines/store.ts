import type { Chunk } from '../stream';

import { RankLog } from './ranklog';
import { Merged } from './rows';

// Characters kept of all logs together, of one or two bytes: a browser's tab has some 4 GB.
const MOST = 400e6;

/** The logs of a job's ranks, each by itself and all in the order of their times. */
export class LogStore {
  readonly merged = new Merged();
  private readonly logs = new Map<number, RankLog>();

  constructor(private readonly most = MOST) {}

  /** The ranks whose logs were asked for or have come, in ascending order. */
  get ranks(): number[] {
    return [...this.logs.keys()].sort((a, b) => a - b);
  }

  /** When the first line of all was written, in milliseconds since the epoch. */
  get start(): number {
    const starts = [...this.logs.values()].map(log => log.time(0)).filter(Boolean);
    return Math.min(...starts);
  }

  /** How many lines there are. */
  get count(): number {
    return [...this.logs.values()].reduce((sum, log) => sum + log.count, 0);
  }

  /** A rank's log; an empty one of a rank that hasn't written. */
  log(rank: number): RankLog {
    const log = this.logs.get(rank) ?? new RankLog(rank);
    this.logs.set(rank, log);
    return log;
  }

  write({ rank, round, offset, bytes, times = [] }: Chunk): void {
    const log = this.log(rank);
    log.append(round, bytes, { offset, times });
    this.merged.add(log);
    this.shed();
  }

  /** Takes lines without an end for whole ones: nothing more is written. */
  end(): void {
    this.logs.forEach(log => log.end());
  }

  /** Lets go of the oldest text of the longest log, once for each write, where all don't fit. */
  private shed(): void {
    const logs = [...this.logs.values()];
    const size = logs.reduce((sum, log) => sum + log.size, 0);
    if (size > this.most) {
      logs.reduce((longest, log) => (log.size > longest.size ? log : longest)).shed();
    }
  }
}
