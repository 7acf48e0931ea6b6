import type { IDisposable } from '@lumino/disposable';

import { type Meant, RequestError } from '../model/client';
import type { Job } from '../model/record';

/** Bytes that a rank wrote in a round, from `offset` of the round's log on. */
export interface Chunk {
  readonly rank: number;
  readonly round: number;
  readonly offset: number;
  readonly bytes: Uint8Array;
  /** When the bytes were written, as far as known, in ascending order. */
  readonly times?: readonly Written[];
}

/** The bytes before `offset` were written by `at`, in milliseconds since the epoch. */
export interface Written {
  readonly offset: number;
  readonly at: number;
}

/** Where a job failed first. */
export interface Failed {
  readonly rank: number;
  readonly round: number;
}

/** A text message from the server. */
export type Message =
  | { readonly job: Job; readonly failed: Failed | null }
  | { readonly loaded: true }
  | { readonly end: true }
  | { readonly message: string }
  | Readonly<Record<string, never>>;

/** The state of the connection to the server; `reason` may be empty. */
export type Connection =
  | { readonly is: 'connecting' | 'open' | 'ended' }
  | { readonly is: 'waiting' | 'refused'; readonly reason: string };

/** Where logs come from. */
export interface Source {
  openLogs(job: Meant, since: string, ranks: readonly number[] | null): WebSocket;
  job(job: Meant): Promise<Job>;
}

/** What receives the logs. */
export interface Sink {
  wrote(chunk: Chunk): void;
  knows(job: Job, failed: Failed | null): void;
  connected(connection: Connection): void;
  /** All that was written before the stream was opened has arrived. */
  loaded(): void;
}

const NEWLINE = 10;
const FIRST_WAIT = 500;
const LONGEST_WAIT = 30_000;
// Milliseconds without a message before a connection counts as lost, as one cut by sleep or by a tunnel never
// closes by itself. The server sends something every 30 s.
const SILENCE = 75_000;
const MOST_NAMED = 200; // each takes up to 40 characters

/**
 * Parses `RANK.ROUND.OFFSET`, ` BYTES:TIME,…` if times are known, a newline, and the bytes after it.
 *
 * @throws Error if the message doesn't begin like that.
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
  return { rank, round, offset, bytes: bytes.subarray(end + 1), times: parseTimes(times, offset) };
}

/** Parses `BYTES:TIME,…`: each TIME counts from the one before, and the first from the epoch. */
function parseTimes(text: string, from: number): Written[] {
  let [offset, at] = [from, 0];
  return (text ? text.split(',') : []).map(part => {
    const [bytes = 0, later = 0] = part.split(':').map(Number);
    [offset, at] = [offset + bytes, at + later];
    return { offset, at };
  });
}

/** How much of each rank's rounds has arrived, so that nothing is taken twice. */
export class Offsets {
  private readonly ends = new Map<string, number>();

  /** Returns the bytes of the chunk that are new. */
  take({ rank, round, offset, bytes }: Chunk): Uint8Array {
    const key = `${rank}.${round}`;
    const end = this.ends.get(key) ?? 0;
    this.ends.set(key, Math.max(end, offset + bytes.length));
    return bytes.subarray(Math.max(0, end - offset));
  }

  /**
   * In the server's format: `RANK.ROUND.OFFSET,…`. Proxies accept URLs of 8 KB: if there are very many logs,
   * only the longest are named, and the bytes of the others that arrive again are ignored.
   */
  toString(): string {
    const longest = Array.from(this.ends).sort(([, a], [, b]) => b - a);
    return longest
      .slice(0, MOST_NAMED)
      .map(([key, offset]) => `${key}.${offset}`)
      .join(',');
  }
}

/** Reads a job's logs to their end, and reconnects whenever the connection is lost. */
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

  /** Starts reading these ranks' logs, or resumes where it stopped; null: all ranks. */
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
        this.receive(event.data as string | ArrayBuffer);
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
    this.socket = null; // its further messages are ignored
    socket?.close();
  }

  private receive(data: string | ArrayBuffer): void {
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

  /** Reconnects unless refused: a browser doesn't say why a socket failed to open, so this requests the job. */
  private async cut(opened: boolean): Promise<void> {
    const socket = this.socket;
    const refusal = opened ? null : await this.source.job(this.job).then(() => null, asError);
    if (socket !== this.socket) {
      return; // it was closed or reopened meanwhile
    }
    if (refusal && isFinal(refusal)) {
      this.close();
      this.sink.connected({ is: 'refused', reason: refusal.message });
      return;
    }
    if (this.heardOf && !this.reason) {
      this.wait = FIRST_WAIT; // only the connection was lost: an error that the server reports may last
    }
    this.sink.connected({ is: 'waiting', reason: this.reason || (refusal?.message ?? '') });
    this.timer = setTimeout(() => this.connect(), this.wait);
    this.wait = Math.min(LONGEST_WAIT, 2 * this.wait);
  }
}

function asError(error: unknown): Error {
  return error instanceof Error ? error : new Error(String(error));
}

/** Whether the error is our server's refusal of this job: asking again won't change it. */
function isFinal(error: Error): boolean {
  return error instanceof RequestError && error.ours && error.status >= 400 && error.status < 500;
}
