import { readFileSync } from 'node:fs';

import { describe, expect, it } from 'vitest';

import { Carry, channels, plain, restyle, RGB, spans, visible } from '../../src/logs/text/ansi';
import { Level, Leveler } from '../../src/logs/text/levels';
import { pieces } from '../../src/logs/view/pieces';

const ESC = '\u001b';

describe('colours', () => {
  it.each([
    ['31', { fg: 1 }],
    ['91', { fg: 9 }],
    ['44', { bg: 4 }],
    ['107', { bg: 15 }],
    ['1;2;3;4;7', { bold: true, dim: true, italic: true, underline: true, inverse: true }],
    ['38;5;208', { fg: 208 }],
    ['38;2;1;2;3', { fg: RGB | 0x010203 }],
    ['38:2::1:2:3', { fg: RGB | 0x010203 }],
    ['38:2::1:2:3;48:2::4:5:6', { fg: RGB | 0x010203, bg: RGB | 0x040506 }],
    ['4:3', { underline: true }],
    ['4;4:0', {}],
    ['58;5;1', {}],
    ['48;5;999;1', { bg: 255, bold: true }],
    ['38', {}],
    ['38;9;1', { bold: true }],
    ['', {}],
    ['31;0', {}],
    ['?25', {}]
  ])('SGR %j is %j', (parameters, style) => {
    expect(restyle({}, parameters)).toEqual(style);
  });

  it.each([
    ['22', { fg: 1, underline: true }],
    ['24;39', { bold: true }],
    ['0', {}],
    ['>4', { fg: 1, bold: true, underline: true }]
  ])('SGR %j ends what it ends', (parameters, style) => {
    expect(restyle({ fg: 1, bold: true, underline: true }, parameters)).toEqual(style);
  });

  it('of the palette are those of xterm', () => {
    expect([16, 21, 208, 231, 232, 255].map(channels)).toEqual([
      [0, 0, 0],
      [0, 0, 255],
      [255, 135, 0],
      [255, 255, 255],
      [8, 8, 8],
      [238, 238, 238]
    ]);
    expect(channels(RGB | 0x102030)).toEqual([16, 32, 48]);
  });

  it('cut a line into spans', () => {
    expect(spans(`a${ESC}[31mb${ESC}[0m${ESC}[1mc${ESC}[2K`)).toEqual([
      { text: 'a', style: {} },
      { text: 'b', style: { fg: 1 } },
      { text: 'c', style: { bold: true } }
    ]);
    expect(spans('')).toEqual([]);
  });

  it('go on in the next line, until they end', () => {
    const carry = new Carry();
    const lines = [`${ESC}[1;38;2;1;2;3mone`, 'two', `three${ESC}[0m`, 'four'];
    const drawn = lines.map(line => spans(carry.next(line))[0]?.style);
    const style = { bold: true, fg: RGB | 0x010203 };
    expect(drawn).toEqual([style, style, style, {}]);
  });
});

describe('text', () => {
  it.each([
    ['plain', 'plain'],
    [`${ESC}[2J${ESC}[?25lscreen${ESC}(B${ESC}M`, 'screen'],
    [`${ESC}]0;title\u0007after`, 'after'],
    [`${ESC}]8;;http://x${ESC}\\link${ESC}]8;;${ESC}\\`, 'link'],
    [`${ESC}]0;never ended`, `${ESC}]0;never ended`],
    [`${ESC}[31`, `${ESC}[31`]
  ])('%j reads %j', (text, read) => {
    expect(plain(text)).toBe(read);
  });

  it('shows a sign for what is invisible, and as many characters', () => {
    expect(visible('a\0\u0007\u001b\u007f\u0085\u202e\tb')).toBe(
      'a\u2400\u2407\u241b\u2421\ufffd\ufffd\tb'
    );
  });

  it('is read in linear time', () => {
    const hostile = [`${ESC}]`, `${ESC}[`, `${ESC}P`, `${ESC}[38;5;`].map(text =>
      text.repeat(100_000)
    );
    for (const text of hostile) {
      expect(plain(text).length).toBeGreaterThan(0);
    }
  });

  it('is cut where hits begin and end, across spans', () => {
    const parts = pieces(
      [
        { text: 'abc', style: {} },
        { text: 'def', style: { fg: 1 } }
      ],
      [
        [0, 1],
        [2, 4]
      ]
    );
    expect(parts.map(({ text, hit }) => [text, hit])).toEqual([
      ['a', true],
      ['b', false],
      ['c', true],
      ['d', true],
      ['ef', false]
    ]);
    expect(pieces([{ text: 'x', style: {} }], [])).toEqual([{ text: 'x', style: {}, hit: false }]);
  });
});

describe('levels', () => {
  const { debug, info, warning, error } = Level;

  it.each([
    ['step 1 loss=0.5', info],
    ['2024-01-01 12:00:00,123 - ERROR - broken', error],
    ['[2024-01-01][WARNING] odd', warning],
    ['DEBUG:root:detail', debug],
    ['host:1:2 [0] NCCL WARN bad', warning],
    ['host:1:2 [0] NCCL INFO good', info],
    ['[rank3]:[E1121 12:00:00.123 ProcessGroupNCCL.cpp:1] Watchdog', error],
    ['W1121 12:00:00.000000 1 api.py:1] Sending SIGTERM', warning],
    ['I20241121 12:00:00.000000 1 a.cc:1] fine', info],
    ['/x/y.py:3: UserWarning: deprecated', warning],
    ['ValueError: no', error],
    ['torch.OutOfMemoryError: CUDA out of memory', error],
    ['main.c:3:1: error: expected ;', error],
    ['level=warn msg=odd', warning],
    ['{"level": "error", "msg": "x"}', error],
    [`${ESC}[31mERROR${ESC}[0m red`, error],
    ['no errors found, 0 warnings', info],
    ['TERROR of INFORMATION', info]
  ])('%j', (line, level) => {
    expect(new Leveler().next(line)).toBe(level);
  });

  it('see all of a traceback as an error, and no more', () => {
    const leveler = new Leveler();
    const lines = [
      'Traceback (most recent call last):',
      '  File "x.py", line 1, in f',
      '    g()',
      'KeyError',
      'info again',
      '',
      'During handling of the above exception, another exception occurred:',
      '[rank0]: Traceback (most recent call last):',
      '[rank0]:   File "y.py", line 2',
      '[rank0]: my.Odd: thing',
      'done'
    ];
    const levels = lines.map(line => leveler.next(line) === error);
    const yes = true;
    expect(levels).toEqual([yes, yes, yes, yes, false, false, yes, yes, yes, yes, false]);
  });
});

describe('the style sheet', () => {
  const css = readFileSync(new URL('../../style/logs.css', import.meta.url), 'utf8');
  const palettes = css.split('[data-jp-theme-light=').map(part => {
    const found = part.matchAll(/--jp-nbtorchjob-ansi-(\d+): #([0-9a-f]+)/g);
    return Array.from(found, ([, , hex = '']) => luminance(hex));
  });

  it.each([
    ['light', 0, 'fff'],
    ['dark', 1, '111111']
  ])('has 16 colours that read on a %s page', (_theme, palette, ground) => {
    const contrasts = (palettes[palette] ?? []).map(each => contrast(each, luminance(ground)));
    expect(contrasts).toHaveLength(16);
    // The grounds of warnings and errors take some of it: 4.5 must be left.
    expect(Math.min(...contrasts)).toBeGreaterThan(5.2);
  });
});

/** Relative luminance (WCAG 2.1). */
function luminance(hex: string): number {
  const full = hex.length === 3 ? hex.replace(/./g, '$&$&') : hex;
  const [red = 0, green = 0, blue = 0] = [0, 2, 4].map(at => {
    const value = parseInt(full.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function contrast(a: number, b: number): number {
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}
