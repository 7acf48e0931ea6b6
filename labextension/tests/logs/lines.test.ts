import { describe, expect, it } from 'vitest';

import { LineBuffer } from '../../src/logs/lines/linebuffer';
import { Level } from '../../src/logs/text/levels';
import { RankLog } from '../../src/logs/lines/ranklog';
import { levelOf, type Rows, Single, textOf } from '../../src/logs/lines/rows';
import { Packed } from '../../src/logs/lines/packed';
import { Folded, matching, pattern, ranges, Scan } from '../../src/logs/lines/search';
import { LogStore } from '../../src/logs/lines/store';

const never = () => false;
const bytes = (text: string) => new TextEncoder().encode(text);

/** A rank's log of these pieces, all of one round. */
function logOf(...parts: (string | Uint8Array)[]): RankLog {
  const log = new RankLog(0);
  parts.forEach(part => log.append(0, typeof part === 'string' ? bytes(part) : part));
  return log;
}

function linesOf(log: RankLog): (string | null)[] {
  return Array.from({ length: log.length }, (_, line) => log.line(line));
}

function textsOf(rows: Rows): (string | null)[] {
  return Array.from({ length: rows.length }, (_, index) => textOf(rows.at(index)));
}

describe('packed numbers', () => {
  it('grow, and find the last that is not above', () => {
    const packed = new Packed(4);
    for (let value = 0; value < 1000; value++) {
      packed.push(value * 2);
    }
    expect([packed.length, packed.at(999), packed.at(1000)]).toEqual([1000, 1998, 0]);
    expect([-1, 0, 1, 7, 1998, 9999].map(value => packed.floor(value))).toEqual([
      -1, 0, 0, 3, 999, 999
    ]);
  });
});

describe('a line buffer', () => {
  it('gives back each of many lines', () => {
    const buffer = new LineBuffer();
    for (let line = 0; line < 50_000; line += 2) {
      buffer.push(`line ${line}\n\n`);
    }
    expect(buffer.length).toBe(50_000);
    expect([0, 1, 2, 31_000, 49_998, 49_999].map(line => buffer.line(line))).toEqual([
      'line 0',
      '',
      'line 2',
      'line 31000',
      'line 49998',
      ''
    ]);
  });

  it('lets go of the oldest text, never of the newest', () => {
    const buffer = new LineBuffer();
    const block = `${'x'.repeat(1 << 18)}\n`;
    [block, block, 'new\n'].forEach(part => buffer.push(part));
    for (let turn = 0; turn < 9; turn++) {
      buffer.shed();
    }
    expect([buffer.line(0), buffer.line(1), buffer.line(2)]).toEqual([null, null, 'new']);
    expect([buffer.length, buffer.size]).toEqual([3, 4]);
  });
});

describe('a rank’s log', () => {
  it.each([
    [
      ['a\nb', 'c\nd'],
      ['a', 'bc', 'd']
    ],
    [['a\r\nb\r\r\nc'], ['a', 'b', 'c']],
    [
      ['a\r', '\nb'],
      ['a', 'b']
    ],
    [['10%\r20%\r30%\ndone\n'], ['30%', 'done']],
    [['10%\r', '20%', '\r', '30%'], ['30%']],
    [['10%\r'], ['10%']],
    [['\n\n'], ['', '']],
    [['abc\b\bX\n'], ['aXc']],
    [['\b\bok'], ['ok']],
    [['1/3 [=  ]\b\b\b\b\b\b\b\b\b', '2/3 [== ]\b\b\b\b\b\b\b\b\b', '3/3 [===]'], ['3/3 [===]']],
    [['\u001b[32mab\b\u001b[0mc\n'], ['\u001b[32ma\u001b[0mc']],
    [['a\u2028b\rc\n'], ['c']],
    [[], []]
  ])('of %j shows %j', (parts, lines) => {
    expect(linesOf(logOf(...parts))).toEqual(lines);
  });

  it('joins characters that messages cut, and shows bytes that are none', () => {
    const text = bytes('é🎉\n');
    const cut = Array.from(text, byte => Uint8Array.of(byte));
    expect(linesOf(logOf(...cut, Uint8Array.of(0xff, 0xfe, 10)))).toEqual(['é🎉', '\ufffd\ufffd']);
  });

  it('is the same however it is cut', () => {
    const text = 'one\r\ntwo\r2\n\u001b[31mred\nstill\u001b[0m\n50%\r60%\n\nrest\r';
    const whole = linesOf(logOf(text));
    for (let size = 1; size < text.length; size++) {
      const parts = text.match(new RegExp(`[^]{1,${size}}`, 'g')) ?? [];
      expect(linesOf(logOf(...parts))).toEqual(whole);
    }
  });

  describe('with nested progress bars', () => {
    const inner = (done: number) => `\n\rbatch ${done}%\u001b[A`;
    const first = `\repoch 0%${inner(0)}`;
    const rest =
      `${inner(50)}${inner(99)}\n\r         \u001b[A\repoch 50%${inner(0)}${inner(99)}` +
      '\n\r         \u001b[A\repoch 100%\n';

    it('keeps each on its line', () => {
      const log = logOf(`begins\n${first}`);
      expect(linesOf(log)).toEqual(['begins', 'epoch 0%  batch 0%']);
      log.append(0, bytes(rest));
      log.append(0, bytes('done\nend'));
      expect(linesOf(log)).toEqual(['begins', 'epoch 100%', 'done', 'end']);
    });

    it.each(['done\n', ''])('leaves what they left, however it is cut, and then %j', last => {
      const text = rest + last;
      for (let size = 1; size < text.length; size++) {
        const log = logOf(first, ...(text.match(new RegExp(`[^]{1,${size}}`, 'g')) ?? []));
        log.end();
        expect(linesOf(log)).toEqual(['epoch 100%', ...(last ? ['done'] : [])]);
      }
    });

    it('keeps three of them on their lines', () => {
      const deep = (done: number) => `\n\n\rstep ${done}%\u001b[A\u001b[A`;
      const log = logOf(`\repoch 0%\n\rbatch 0%\u001b[A${deep(0)}${deep(50)}`, deep(99));
      expect(linesOf(log)).toEqual(['epoch 0%  batch 0%  step 99%']);
      log.end();
      expect(linesOf(log)).toEqual(['epoch 0%', 'batch 0%', 'step 99%']);
    });
  });

  it('takes a line without an end as several, and carriage returns in linear time', () => {
    const endless = logOf(...Array.from({ length: 12 }, () => 'x'.repeat(100_000)));
    expect(endless.count).toBe(1);
    expect(linesOf(logOf(`${'\r'.repeat(300_000)}x\n`))).toEqual(['x']);
    expect(linesOf(logOf(`x${'\r'.repeat(300_000)}\n`))).toEqual(['x']);
    expect(linesOf(logOf(`${'x\u001b[A'.repeat(100_000)}\n\n`))[0]).toHaveLength(100_000);
    expect(linesOf(logOf(`${'\rx\b\n\u001b[A'.repeat(50_000)}\n\n`))).toEqual(['x', '']);
  });

  it('marks where a round begins, and ends what the one before left open', () => {
    const log = logOf('Traceback (most recent call last):\n', 'cut o');
    log.append(7, bytes('again\n'));
    expect(linesOf(log)).toEqual(['Traceback (most recent call last):', 'cut o', '2', 'again']);
    expect([1, 2, 3].map(line => log.level(line))).toEqual([Level.error, Level.mark, Level.info]);
  });

  it.each([
    ['ok\nERROR one\nTraceback (most recent call last):\n  f\nE: x\nERROR late\nbye\n', 2],
    ['ok\n[rank0]: Traceback (most recent call last):\n[rank0]: E: x\n', 1],
    ['ERROR a\nok\nERROR b\nERROR c\nbye\n', 2],
    ['ok\nbye\n', 1],
    ['', 0]
  ])('of %j failed in line %i', (text, line) => {
    const log = logOf(text);
    log.append(1, bytes('Traceback (most recent call last):\n'));
    expect(log.failure(0)).toBe(line);
  });
});

describe('a store', () => {
  const write = (store: LogStore, rank: number, text: string, at = 0) => {
    const times = at ? [{ offset: bytes(text).length, at }] : [];
    store.write({ rank, round: 0, offset: 0, bytes: bytes(text), times });
    store.merged.settle();
  };

  it('merges ranks by the times of their lines, in whatever order they arrive', () => {
    const store = new LogStore();
    write(store, 0, 'a\n', 10);
    write(store, 0, 'd\ne\n', 40);
    write(store, 0, 'g\n', 60);
    const odd = new Scan(store.merged, row => 'aceg'.includes(textOf(row) ?? ''));
    odd.step(never);
    write(store, 1, 'b\n', 20);
    write(store, 1, 'c\n', 30);
    write(store, 1, 'f\n', 50);
    odd.step(never);
    expect(textsOf(store.merged)).toEqual(['a', 'b', 'c', 'd', 'e', 'f', 'g']);
    expect(textsOf(odd)).toEqual(['a', 'c', 'e', 'g']);
    expect(store.merged.find({ log: store.log(1), line: 2 })).toBe(5);
    expect(store.start).toBe(10);
  });

  it('gives a line the time of its end, and no line an earlier one than the line before', () => {
    const store = new LogStore();
    write(store, 0, 'half', 10);
    write(store, 0, ' a line\nnext\n', 20);
    write(store, 0, 'set back\n', 5);
    expect([0, 1, 2].map(line => store.log(0).time(line))).toEqual([20, 20, 20]);
  });

  it('merges ranks as lines arrive where no times are known, those not finished last', () => {
    const store = new LogStore();
    write(store, 1, 'a1\nb');
    write(store, 0, 'a0\n');
    write(store, 1, '1\nc1\nopen');
    write(store, 1, '');
    expect(store.ranks).toEqual([0, 1]);
    expect(textsOf(store.merged)).toEqual(['a1', 'a0', 'b1', 'c1', 'open']);
    expect([store.merged.settled, store.merged.length]).toEqual([4, 5]);
  });

  it('finds a line of a rank among all', () => {
    const store = new LogStore();
    write(store, 0, 'a\nb\n');
    write(store, 1, 'c\n');
    write(store, 0, 'd\n');
    const row = { log: store.log(0), line: 2 };
    expect(store.merged.find(row)).toBe(3);
    expect(store.merged.find({ log: store.log(1), line: 0 })).toBe(2);
    expect(store.merged.find({ log: store.log(5), line: 0 })).toBe(0);
  });

  it('holds no more than it may', () => {
    const store = new LogStore(600_000);
    for (let turn = 0; turn < 40; turn++) {
      write(store, turn % 2, `${'x'.repeat(50_000)}\n`);
    }
    expect(store.log(0).size + store.log(1).size).toBeLessThan(900_000);
    expect([store.log(0).line(0), store.log(0).line(19)?.length]).toEqual([null, 50_000]);
  });
});

describe('a search', () => {
  const query = { regex: false, matchCase: false };

  it.each([
    [{ ...query, text: 'a.b' }, ['A.B']],
    [{ ...query, text: 'a.b', regex: true }, ['A.B', 'axb']],
    [{ regex: true, matchCase: true, text: '^a' }, ['axb']],
    [{ ...query, text: 'red' }, ['\u001b[31mr\u001b[0med']]
  ])('for %j', (wanted, lines) => {
    const log = logOf('A.B\naxb\n\u001b[31mr\u001b[0med\n');
    const scan = new Scan(new Single(log), matching(pattern(wanted) ?? /$^/));
    expect(scan.step(never)).toBe(true);
    expect(textsOf(scan)).toEqual(lines);
  });

  it('for nothing is none, and for what is no expression an error', () => {
    expect(pattern({ ...query, text: '' })).toBeNull();
    expect(() => pattern({ ...query, text: '(', regex: true })).toThrow(SyntaxError);
  });

  it('goes on in slices, and when more has come', () => {
    const log = logOf('x\n'.repeat(1000));
    const scan = new Scan(new Single(log), matching(/x/));
    let looks = 0;
    expect(scan.step(() => looks++ > 0)).toBe(false);
    const first = scan.length;
    expect([first > 0, first < 1000]).toEqual([true, true]);
    scan.step(never);
    log.append(0, bytes('y\nx\nx'));
    expect([scan.done, scan.step(never), scan.length, scan.source(1000)]).toEqual([
      false,
      true,
      1001,
      1001
    ]);
  });

  it('finds its way between found lines and all lines', () => {
    const rows = new Single(logOf('x\ny\nx\ny\n'));
    const scan = new Scan(rows, matching(/y/));
    scan.step(never);
    expect([0, 1, 2, 3, 4].map(index => scan.from(index))).toEqual([0, 0, 1, 1, 2]);
    expect(scan.find(rows.at(3))).toBe(1);
    expect(levelOf(scan.at(0))).toBe(Level.info);
  });

  it('leaves marks alone', () => {
    const log = logOf('2\n');
    log.append(1, bytes('2\n'));
    const scan = new Scan(new Single(log), matching(/2/));
    scan.step(never);
    expect(scan.length).toBe(2);
  });

  it('folds lines that repeat the one above them, and counts on as more come', () => {
    const log = logOf('x\nx\ny\nx\n');
    const folded = new Folded(new Single(log));
    folded.step(never);
    const counts = () => textsOf(folded).map((text, index) => [text, folded.count(index)]);
    expect(counts()).toEqual([
      ['x', 2],
      ['y', 1],
      ['x', 1]
    ]);
    log.append(0, bytes('x\nx\n'));
    folded.step(never);
    expect(counts().at(-1)).toEqual(['x', 3]);
    expect([0, 1, 2, 5].map(line => folded.find({ log, line }))).toEqual([0, 0, 1, 2]);
  });

  it('tells where the text matches, so often as can be drawn', () => {
    expect(ranges(/a/i, 'aBA')).toEqual([
      [0, 1],
      [2, 3]
    ]);
    expect(ranges(/x*/, 'axx')).toEqual([[1, 3]]);
    expect(ranges(/a/, 'a'.repeat(50), 10)).toHaveLength(10);
  });
});
