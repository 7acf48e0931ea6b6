import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { RequestError } from '../../src/model/client';
import { chunk, type Connection, LogStream, Offsets, type Sink } from '../../src/logs/stream';

import { aJob } from '../jobs';

/** A socket that a test speaks through. */
class FakeSocket {
  binaryType = '';
  closed = false;
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: unknown }) => void) | null = null;
  onclose: (() => void) | null = null;

  constructor(
    readonly since: string,
    readonly ranks: readonly number[] | null
  ) {}

  close(): void {
    this.closed = true;
  }

  says(message: object): void {
    this.onopen?.();
    this.onmessage?.({ data: JSON.stringify(message) });
  }

  wrote(head: string, text: string): void {
    this.onmessage?.({ data: message(head, text) });
  }
}

function message(head: string, text: string): ArrayBuffer {
  return new TextEncoder().encode(`${head}\n${text}`).buffer as ArrayBuffer;
}

let sockets: FakeSocket[];
let connections: Connection[];
let text: string;
let answer: () => Promise<never>;
let stream: LogStream;

const last = () => sockets.at(-1) as FakeSocket;

beforeEach(() => {
  vi.useFakeTimers();
  [sockets, connections, text] = [[], [], ''];
  answer = () => Promise.reject(new RequestError(0, 'no network'));
  const sink: Sink = {
    wrote: ({ rank, round, bytes }) => {
      text += `${rank}.${round}:${new TextDecoder().decode(bytes)} `;
    },
    knows: job => {
      text += `${job.name} `;
    },
    connected: connection => connections.push(connection),
    loaded: () => {}
  };
  const openLogs = (_job: unknown, since: string, ranks: readonly number[] | null) => {
    sockets.push(new FakeSocket(since, ranks));
    return last() as unknown as WebSocket;
  };
  stream = new LogStream({ openLogs, job: () => answer() }, { id: 'local:a' }, sink);
  stream.open(null);
});

afterEach(() => {
  stream.dispose();
  vi.useRealTimers();
});

describe('a message', () => {
  it('says where its bytes belong', () => {
    const read = chunk(message('3.1700000000.12', 'a\nb'));
    expect([read.rank, read.round, read.offset]).toEqual([3, 1700000000, 12]);
    expect(new TextDecoder().decode(read.bytes)).toBe('a\nb');
  });

  it.each(['', '1.2', '1.2.x', '-1.2.3'])('that begins with %j is refused', head => {
    expect(() => chunk(message(head, 'x'))).toThrow('RANK.ROUND.OFFSET');
  });
});

describe('offsets', () => {
  it('take each byte once', () => {
    const offsets = new Offsets();
    const take = (offset: number, written: string) => {
      const bytes = new TextEncoder().encode(written);
      return new TextDecoder().decode(offsets.take({ rank: 0, round: 1, offset, bytes }));
    };
    expect([take(0, 'abc'), take(1, 'bcd'), take(0, 'ab'), take(4, 'e')]).toEqual([
      'abc',
      'd',
      '',
      'e'
    ]);
    expect(String(offsets)).toBe('0.1.5');
  });

  it('name the longest logs, as many as a URL holds', () => {
    const offsets = new Offsets();
    for (let rank = 0; rank < 1000; rank++) {
      offsets.take({ rank, round: 0, offset: rank, bytes: new Uint8Array(1) });
    }
    const named = String(offsets).split(',');
    expect([named.length, named[0], named.at(-1)]).toEqual([200, '999.0.1000', '800.0.801']);
  });
});

/** Holds the next connection to come no sooner, and no later. */
async function comesBackAfter(wait: number): Promise<void> {
  const before = sockets.length;
  await vi.advanceTimersByTimeAsync(wait - 1);
  expect(sockets).toHaveLength(before);
  await vi.advanceTimersByTimeAsync(1);
  expect(sockets).toHaveLength(before + 1);
}

describe('a stream', () => {
  it('hands on what comes, and ends quietly', () => {
    last().says({ job: aJob({ name: 'a' }), failed: null });
    last().wrote('0.0.0', 'x');
    last().says({ end: true });
    last().onclose?.();
    expect(text).toBe('a 0.0:x ');
    expect(connections.map(({ is }) => is)).toEqual(['connecting', 'open', 'ended']);
    expect([sockets.length, vi.getTimerCount()]).toEqual([1, 0]);
  });

  it('goes on after a cut where it stopped', async () => {
    last().says({ job: aJob({ name: 'a' }), failed: null });
    last().wrote('0.0.0', 'abc');
    last().says({ message: 'the cluster is slow' });
    last().onclose?.();
    await vi.advanceTimersByTimeAsync(500);
    expect(connections.at(-2)).toEqual({ is: 'waiting', reason: 'the cluster is slow' });
    expect(last().since).toBe('0.0.3');
    last().wrote('0.0.1', 'bcd');
    expect(text).toBe('a 0.0:abc 0.0:d ');
  });

  it('waits longer each time', async () => {
    for (const wait of [500, 1000, 2000]) {
      last().onclose?.();
      await comesBackAfter(wait);
    }
  });

  it('waits longer each time for an error that the server tells, too', async () => {
    for (const wait of [500, 1000, 2000]) {
      last().says({ job: aJob({ name: 'a' }), failed: null });
      last().says({ message: 'pods may not be listed' });
      last().onclose?.();
      await comesBackAfter(wait);
    }
  });

  it('is soon back after a mere cut', async () => {
    for (let cut = 0; cut < 3; cut++) {
      last().says({ job: aJob({ name: 'a' }), failed: null });
      last().onclose?.();
      await vi.advanceTimersByTimeAsync(500);
      expect(sockets).toHaveLength(cut + 2);
    }
  });

  it.each([
    [424, 'your server isn’t running'],
    [429, '429 Too Many Requests'],
    [403, 'Forbidden'],
    [404, '404 Not Found']
  ])('comes again where a hub or a proxy says %i', async (status, said) => {
    answer = () => Promise.reject(new RequestError(status, said));
    last().onclose?.();
    await vi.advanceTimersByTimeAsync(0);
    expect(connections.at(-1)).toEqual({ is: 'waiting', reason: said });
    await comesBackAfter(500);
  });

  it('gives up when the server will say the same again, and tells why', async () => {
    answer = () => Promise.reject(new RequestError(404, 'there is no job a', true));
    last().onclose?.();
    await vi.advanceTimersByTimeAsync(60_000);
    expect(connections.at(-1)).toEqual({ is: 'refused', reason: 'there is no job a' });
    expect(sockets).toHaveLength(1);
  });

  it('comes again where nothing was heard for long, not where there is only nothing new', async () => {
    last().says({ job: aJob({ name: 'a' }), failed: null });
    last().wrote('0.0.0', 'abc');
    const silent = last();
    for (let beat = 0; beat < 10; beat++) {
      await vi.advanceTimersByTimeAsync(30_000);
      silent.says({});
    }
    expect([sockets.length, connections.at(-1)?.is]).toEqual([1, 'open']);

    await vi.advanceTimersByTimeAsync(75_500);
    expect([sockets.length, last().since, silent.closed]).toEqual([2, '0.0.3', true]);
  });

  it('comes again where a server doesn’t even open it', async () => {
    await vi.advanceTimersByTimeAsync(75_500);
    expect(sockets).toHaveLength(2);
  });

  it('opens anew for other ranks, and hears no more of the old one', () => {
    const old = last();
    old.wrote('1.0.0', 'ab');
    stream.open([1, 2]);
    old.wrote('1.0.2', 'lost');
    old.onclose?.();
    expect([old.closed, last().since, last().ranks]).toEqual([true, '1.0.2', [1, 2]]);
    expect(text).toBe('1.0:ab ');
  });

  it('does nothing once it is disposed', async () => {
    last().onclose?.();
    stream.dispose();
    await vi.advanceTimersByTimeAsync(60_000);
    expect(sockets).toHaveLength(1);
  });
});
