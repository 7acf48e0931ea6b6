/** The level of a line, recognised in the formats of Python, torch, NCCL and glog. */

import { plain } from './ansi';

/** In ascending order; a line that states no level is `info`. */
export const Level = { debug: 0, info: 1, warning: 2, error: 3, mark: 4 } as const;
export type Level = (typeof Level)[keyof typeof Level];

// Only the head is examined: that is where the level is, and a line may be megabytes long.
const HEAD = 160;
const RANK = /^\[(?:rank|default)\d+\]: ?/;
const TRACEBACK = /^[\s|+]*(?:Exception Group )?Traceback \(most recent call last\):/;
const CHAINED =
  /^(?:During handling of the above exception, another|The above exception was the direct cause)/;
// "E1121 12:00:00.000000", with or without the year, in brackets if torch's C++ code writes it.
const GLOG = /^\[?([DIWEF])\d{4}(?:\d{4})? \d\d:/;
// A word in capitals, or a Python exception or warning; a compiler's word before a colon; logfmt and JSON.
const WORD = new RegExp(
  [
    /\b(?<e>(?:ERROR|CRITICAL|FATAL|PANIC)\b|[A-Z]\w*(?:Error|Exception|Interrupt)(?=:|$))/,
    /\b(?<w>WARN(?:ING)?\b|[A-Z]\w*Warning(?=:))/,
    /\b(?<i>INFO|NOTICE)\b/,
    /\b(?<d>DEBUG|TRACE)\b/,
    /(?:^|[\s:])(?:(?<e2>error|fatal)|(?<w2>warning)): /,
    /\blevel["']?[=:] ?["']?(?:(?<e3>err|crit|fatal)|(?<w3>warn)|(?<i3>info)|(?<d3>debug|trace))/
  ]
    .map(({ source }) => source)
    .join('|')
);
const LETTERS: Readonly<Record<string, Level>> = {
  D: Level.debug,
  I: Level.info,
  W: Level.warning,
  E: Level.error,
  F: Level.error
};

/** The head of a line, without colours and without the prefix that names its rank. */
function headOf(line: string): string {
  return plain(line.length > HEAD ? line.slice(0, HEAD) : line).replace(RANK, '');
}

/** Whether a traceback begins with this line. */
export function beginsTraceback(line: string): boolean {
  return TRACEBACK.test(headOf(line));
}

/** Determines the levels of a log's lines, in order: all lines of a traceback are errors. */
export class Leveler {
  private inside = false;

  next(line: string): Level {
    const text = headOf(line);
    if (TRACEBACK.test(text) || CHAINED.test(text)) {
      this.inside = TRACEBACK.test(text);
      return Level.error;
    }
    if (this.inside) {
      // A traceback's frames are indented; the first line that isn't names the exception and ends it.
      this.inside = /^(?:\s|$)/.test(text);
      return Level.error;
    }
    return stated(text);
  }
}

function stated(text: string): Level {
  const letter = GLOG.exec(text)?.[1];
  if (letter) {
    return LETTERS[letter] ?? Level.info;
  }
  const groups = WORD.exec(text)?.groups;
  if (!groups) {
    return Level.info;
  }
  if (groups.e ?? groups.e2 ?? groups.e3) {
    return Level.error;
  }
  if (groups.w ?? groups.w2 ?? groups.w3) {
    return Level.warning;
  }
  return (groups.d ?? groups.d3) ? Level.debug : Level.info;
}
