import type { Chunk } from '../stream';

import { RankLog } from './ranklog';
import { Merged } from './rows';

// The most characters kept of all logs together, one or two bytes each: a browser tab has about 4 GB.
const MOST = 400e6;

/** The logs of a job's ranks, both separately and merged in the order of their times. */
export class LogStore {
  readonly merged = new Merged();
  private readonly logs = new Map<number, RankLog>();

  constructor(private readonly most = MOST) {}

  /** The ranks whose logs were requested or have arrived, in ascending order. */
  get ranks(): number[] {
    return [...this.logs.keys()].sort((a, b) => a - b);
  }

  /** When the earliest line was written, in milliseconds since the epoch. */
  get start(): number {
    const starts = [...this.logs.values()].map(log => log.time(0)).filter(Boolean);
    return Math.min(...starts);
  }

  /** How many lines there are. */
  get count(): number {
    return [...this.logs.values()].reduce((sum, log) => sum + log.count, 0);
  }

  /** A rank's log; empty if the rank hasn't written anything. */
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

  /** Finishes the unfinished lines: nothing more is written. */
  end(): void {
    this.logs.forEach(log => log.end());
  }

  /** Drops the oldest text of the longest log if the logs have grown too large; called for each write. */
  private shed(): void {
    const logs = [...this.logs.values()];
    const size = logs.reduce((sum, log) => sum + log.size, 0);
    if (size > this.most) {
      logs.reduce((longest, log) => (log.size > longest.size ? log : longest)).shed();
    }
  }
}
