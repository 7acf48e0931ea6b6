/** Terminal text (ECMA-48): its colours and its visible characters. */

/** A colour: 0–255 is xterm's palette; from `RGB` up, the low three bytes are red, green and blue. */
export type Colour = number;
export const RGB = 1 << 24;

/** How characters are drawn. */
export interface Style {
  readonly fg?: Colour;
  readonly bg?: Colour;
  readonly bold?: true;
  readonly dim?: true;
  readonly italic?: true;
  readonly underline?: true;
  readonly inverse?: true;
}

export interface Span {
  readonly text: string;
  readonly style: Style;
}

export const PLAIN: Style = {};

// A CSI sequence; a string that isn't displayed (OSC, DCS, …), if its terminator is there too; a short
// escape. The rest of a broken sequence is shown: a log must not be able to hide its lines.
const ESCAPE = new RegExp(
  [
    /\u001b\[([0-?]*)[ -/]*([@-~])/,
    /\u001b[\]PX^_][^\u0007\u001b]*(?:\u0007|\u001b\\)/,
    /\u001b(?:[ -/]+[0-~]|[0-OQ-WYZ\\`-~])/
  ]
    .map(({ source }) => source)
    .join('|'),
  'g'
);
// Control characters except the tab, and marks that change the writing direction and so can disguise text.
const HIDDEN =
  /[\0-\u0008\n-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;

/** The text without its escape sequences. */
export function plain(text: string): string {
  return text.includes('\u001b') ? text.replace(ESCAPE, '') : text;
}

/** The text with a visible symbol for each invisible character; the length stays the same. */
export function visible(text: string): string {
  return text.replace(HIDDEN, sign);
}

function sign(character: string): string {
  const code = character.charCodeAt(0);
  if (code < 0x20) {
    return String.fromCharCode(0x2400 + code);
  }
  return code === 0x7f ? '\u2421' : '\ufffd';
}

/** The text split into pieces of one style each, without its escape sequences. */
export function spans(text: string): Span[] {
  if (!text.includes('\u001b')) {
    return text ? [{ text, style: PLAIN }] : [];
  }
  const out: Span[] = [];
  let [style, at] = [PLAIN, 0];
  for (const match of text.matchAll(ESCAPE)) {
    if (match.index > at) {
      out.push({ text: text.slice(at, match.index), style });
    }
    style = restyled(style, match);
    at = match.index + match[0].length;
  }
  return at < text.length ? [...out, { text: text.slice(at), style }] : out;
}

/** Starts each line with the style that the lines before it left on, so that it can be drawn on its own. */
export class Carry {
  private style = PLAIN;

  next(line: string): string {
    const opened = this.style === PLAIN ? line : sgr(this.style) + line;
    if (line.includes('\u001b')) {
      for (const match of line.matchAll(ESCAPE)) {
        this.style = restyled(this.style, match);
      }
    }
    return opened;
  }

  /** Whether a line without an escape sequence stays as it is. */
  get idle(): boolean {
    return this.style === PLAIN;
  }
}

function restyled(style: Style, match: RegExpMatchArray): Style {
  return match[2] === 'm' ? restyle(style, match[1] ?? '') : style;
}

/** The style after an SGR sequence with these parameters; a private sequence changes nothing. */
export function restyle(style: Style, parameters: string): Style {
  if (!/^[\d;:]*$/.test(parameters)) {
    return style;
  }
  const codes = parameters.split(';').flatMap(numbers);
  let next = style;
  for (let at = 0; at < codes.length; at++) {
    const code = codes[at] ?? 0;
    if (code === 38 || code === 48 || code === 58) {
      const [colour, length] = extended(codes, at + 1);
      next = code === 58 ? next : painted(next, code === 38 ? 'fg' : 'bg', colour); // 58: underline, ignored
      at += length;
    } else {
      next = code === 0 ? PLAIN : simple(next, code);
    }
  }
  return Object.keys(next).length ? next : PLAIN;
}

/** A code with its subparameters: `4:3` is a style of underline, `38:2::R:G:B` leaves the colour space empty. */
function numbers(code: string): number[] {
  if (code.startsWith('4:')) {
    return [code === '4:0' ? 24 : 4];
  }
  return code.replace('::', ':').split(':').map(Number);
}

type Flag = 'bold' | 'dim' | 'italic' | 'underline' | 'inverse';

const ON: Readonly<Record<number, Flag>> = {
  1: 'bold',
  2: 'dim',
  3: 'italic',
  4: 'underline',
  7: 'inverse'
};
const OFF: Readonly<Record<number, readonly (keyof Style)[]>> = {
  22: ['bold', 'dim'],
  23: ['italic'],
  24: ['underline'],
  27: ['inverse'],
  39: ['fg'],
  49: ['bg']
};

function simple(style: Style, code: number): Style {
  const flag = ON[code];
  if (flag) {
    return { ...style, [flag]: true };
  }
  const [tens, unit] = [Math.floor(code / 10), code % 10];
  if (unit < 8 && (tens === 3 || tens === 4 || tens === 9 || tens === 10)) {
    return painted(style, tens === 3 || tens === 9 ? 'fg' : 'bg', tens > 4 ? unit + 8 : unit);
  }
  return without(style, OFF[code] ?? []);
}

function painted(style: Style, ground: 'fg' | 'bg', colour: Colour | null): Style {
  return colour === null ? without(style, [ground]) : { ...style, [ground]: colour };
}

function without(style: Style, names: readonly string[]): Style {
  return Object.fromEntries(Object.entries(style).filter(([name]) => !names.includes(name)));
}

/** The colour after a 38 or 48, and how many numbers encode it. */
function extended(codes: readonly number[], at: number): [Colour | null, number] {
  const byte = (index: number) => Math.min(255, codes[at + index] ?? 0);
  if (codes[at] === 5) {
    return [byte(1), 2];
  }
  return codes[at] === 2 ? [RGB | (byte(1) << 16) | (byte(2) << 8) | byte(3), 4] : [null, 1];
}

/** The SGR sequence that sets the style. */
function sgr(style: Style): string {
  const flags = Object.entries(ON).filter(([, flag]) => style[flag]);
  const colours = [style.fg === undefined ? [] : tell(38, style.fg)];
  colours.push(style.bg === undefined ? [] : tell(48, style.bg));
  return `\u001b[${[...flags.map(([code]) => code), ...colours.flat()].join(';')}m`;
}

function tell(code: number, colour: Colour): number[] {
  return colour < RGB ? [code, 5, colour] : [code, 2, ...channels(colour)];
}

/** Red, green and blue of a colour beyond the first 16 (xterm's: a 6×6×6 cube, 24 greys). */
export function channels(colour: Colour): [number, number, number] {
  if (colour >= RGB) {
    return [(colour >> 16) & 255, (colour >> 8) & 255, colour & 255];
  }
  if (colour >= 232) {
    const grey = 8 + 10 * (colour - 232);
    return [grey, grey, grey];
  }
  const step = (value: number) => (value === 0 ? 0 : 55 + 40 * value);
  const cube = colour - 16;
  return [step(Math.floor(cube / 36)), step(Math.floor(cube / 6) % 6), step(cube % 6)];
}
