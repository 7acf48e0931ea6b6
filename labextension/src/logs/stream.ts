import type { IDisposable } from '@lumino/disposable';

import { type Meant, RequestError } from '../model/client';
import type { Job } from '../model/record';

/** What a rank wrote from a byte of a round's log on. */
export interface Chunk {
  readonly rank: number;
  readonly round: number;
  readonly offset: number;
  readonly bytes: Uint8Array;
  /** When they were written, as far as that is known, in ascending order. */
  readonly times?: readonly Written[];
}

/** What lies before that offset was written by then, in milliseconds since the epoch. */
export interface Written {
  readonly offset: number;
  readonly at: number;
}

/** Where a job failed first. */
export interface Failed {
  readonly rank: number;
  readonly round: number;
}

/** What the server says in words. */
export type Message =
  | { readonly job: Job; readonly failed: Failed | null }
  | { readonly loaded: true }
  | { readonly end: true }
  | { readonly message: string }
  | Readonly<Record<string, never>>;

/** How it stands with the server; `reason` may be empty. */
export type Connection =
  | { readonly is: 'connecting' | 'open' | 'ended' }
  | { readonly is: 'waiting' | 'refused'; readonly reason: string };

/** Where logs come from. */
export interface Source {
  openLogs(job: Meant, since: string, ranks: readonly number[] | null): WebSocket;
  job(job: Meant): Promise<Job>;
}

/** Who takes them. */
export interface Sink {
  wrote(chunk: Chunk): void;
  knows(job: Job, failed: Failed | null): void;
  connected(connection: Connection): void;
  /** What was written before this was opened is all there. */
  loaded(): void;
}

const NEWLINE = 10;
const FIRST_WAIT = 500;
const LONGEST_WAIT = 30_000;
// The server says something every 30 s: a connection that a sleep or a tunnel has cut never ends by itself.
const SILENCE = 75_000;
const MOST_NAMED = 200; // each takes up to 40 characters

/**
 * Reads `RANK.ROUND.OFFSET`, ` BYTES:TIME,…` where times are known, a newline and the bytes behind it.
 *
 * @throws Error where it isn't that.
 */
export function chunk(data: ArrayBuffer): Chunk {
  const bytes = new Uint8Array(data);
  const end = bytes.indexOf(NEWLINE);
  const text = new TextDecoder().decode(bytes.subarray(0, Math.max(0, end)));
  const [head = '', times = ''] = text.split(' ', 2);
  const [rank, round, offset] = /^\d+\.\d+\.\d+$/.test(head) ? head.split('.').map(Number) : [];
  if (rank === undefined || round === undefined || offset === undefined) {
    throw new Error(`a log message must begin with RANK.ROUND.OFFSET, this one with '${head}'`);
  }
  return { rank, round, offset, bytes: bytes.subarray(end + 1), times: written(times, offset) };
}

/** Each tells how many bytes, and how long after the one before; the first since the epoch. */
function written(text: string, from: number): Written[] {
  let [offset, at] = [from, 0];
  return (text ? text.split(',') : []).map(part => {
    const [bytes = 0, later = 0] = part.split(':').map(Number);
    [offset, at] = [offset + bytes, at + later];
    return { offset, at };
  });
}

/** How much is known of each rank's rounds: nothing is taken twice. */
export class Offsets {
  private readonly known = new Map<string, number>();

  /** What of the chunk is new. */
  take({ rank, round, offset, bytes }: Chunk): Uint8Array {
    const key = `${rank}.${round}`;
    const known = this.known.get(key) ?? 0;
    this.known.set(key, Math.max(known, offset + bytes.length));
    return bytes.subarray(Math.max(0, known - offset));
  }

  /**
   * As the server wants it: `RANK.ROUND.OFFSET,…`. Proxies take URLs of 8 KB: of very many logs the
   * longest are named, and what comes again of the others isn't taken.
   */
  toString(): string {
    const longest = Array.from(this.known).sort(([, a], [, b]) => b - a);
    return longest
      .slice(0, MOST_NAMED)
      .map(([key, offset]) => `${key}.${offset}`)
      .join(',');
  }
}

/** Reads a job's logs to their end, over every cut. */
export class LogStream implements IDisposable {
  private readonly offsets = new Offsets();
  private socket: WebSocket | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private silence: ReturnType<typeof setTimeout> | undefined;
  private ranks: readonly number[] | null = null;
  private wait = FIRST_WAIT;
  private heardOf = false;
  private reason = '';
  private disposed = false;

  constructor(
    private readonly source: Source,
    private readonly job: Meant,
    private readonly sink: Sink
  ) {}

  get isDisposed(): boolean {
    return this.disposed;
  }

  dispose(): void {
    this.disposed = true;
    this.close();
  }

  /** Begins, or begins again where it stopped, with these ranks' logs; null: all. */
  open(ranks: readonly number[] | null): void {
    this.ranks = ranks;
    this.connect();
  }

  private connect(): void {
    this.close();
    if (this.disposed) {
      return;
    }
    this.sink.connected({ is: 'connecting' });
    const socket = this.source.openLogs(this.job, String(this.offsets), this.ranks);
    socket.binaryType = 'arraybuffer';
    let opened = false;
    this.heardOf = false;
    const current = () => socket === this.socket;
    socket.onopen = () => {
      opened = true;
    };
    const listen = () => {
      clearTimeout(this.silence);
      this.silence = setTimeout(() => void this.cut(true), SILENCE);
    };
    socket.onmessage = event => {
      if (current()) {
        listen();
        this.heard(event.data as string | ArrayBuffer);
      }
    };
    socket.onclose = () => current() && void this.cut(opened);
    this.socket = socket;
    listen();
  }

  private close(): void {
    clearTimeout(this.timer);
    clearTimeout(this.silence);
    const socket = this.socket;
    this.socket = null; // whatever it still says isn't heard
    socket?.close();
  }

  private heard(data: string | ArrayBuffer): void {
    if (typeof data !== 'string') {
      const read = chunk(data);
      const bytes = this.offsets.take(read);
      if (bytes.length) {
        const offset = read.offset + read.bytes.length - bytes.length;
        this.sink.wrote({ ...read, offset, bytes });
      }
      return;
    }
    const message = JSON.parse(data) as Message;
    if ('job' in message) {
      [this.heardOf, this.reason] = [true, ''];
      this.sink.connected({ is: 'open' });
      this.sink.knows(message.job, message.failed);
    } else if ('loaded' in message) {
      this.sink.loaded();
    } else if ('end' in message) {
      this.close();
      this.sink.loaded();
      this.sink.connected({ is: 'ended' });
    } else if ('message' in message) {
      this.reason = message.message;
    }
  }

  /** A browser doesn't tell why a socket wasn't opened; the same question as a request does. */
  private async cut(opened: boolean): Promise<void> {
    const socket = this.socket;
    const refusal = opened ? null : await this.source.job(this.job).then(() => null, asError);
    if (socket !== this.socket) {
      return; // meanwhile it was closed, or opened anew
    }
    if (refusal && isFinal(refusal)) {
      this.close();
      this.sink.connected({ is: 'refused', reason: refusal.message });
      return;
    }
    if (this.heardOf && !this.reason) {
      this.wait = FIRST_WAIT; // it was only cut: an error that the server tells may last
    }
    this.sink.connected({ is: 'waiting', reason: this.reason || (refusal?.message ?? '') });
    this.timer = setTimeout(() => this.connect(), this.wait);
    this.wait = Math.min(LONGEST_WAIT, 2 * this.wait);
  }
}

function asError(error: unknown): Error {
  return error instanceof Error ? error : new Error(String(error));
}

/** Whether our server has said it of this job: it won't say otherwise when it is asked again. */
function isFinal(error: Error): boolean {
  return error instanceof RequestError && error.ours && error.status >= 400 && error.status < 500;
}
