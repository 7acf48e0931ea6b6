import { channels, type Span, type Style, visible } from '../text/ansi';

import { CSS } from './dom';

/** A span or a part of one, and whether it matches the search. */
export interface Piece extends Span {
  readonly hit: boolean;
}

/** Cuts spans where search hits begin and end. */
export function pieces(
  spans: readonly Span[],
  hits: readonly (readonly [number, number])[]
): Piece[] {
  const edges = hits.flat();
  const out: Piece[] = [];
  let [start, edge] = [0, 0];
  for (const { text, style } of spans) {
    const end = start + text.length;
    for (let at = start; at < end;) {
      while (edge < edges.length && (edges[edge] ?? 0) <= at) {
        edge++;
      }
      const next = Math.min(end, edges[edge] ?? end);
      // Edges alternate: after an odd number of them the text is inside a hit.
      out.push({ text: text.slice(at - start, next - start), style, hit: edge % 2 === 1 });
      at = next;
    }
    start = end;
  }
  return out;
}

// What becomes a link: only web addresses, and without invisible characters.
const LINK = /\bhttps?:\/\/[^\s"'<>`\p{Cc}\p{Cf}]+/giu;
const BEHIND = /[.,;:!?)\]}]+$/;

/** Draws pieces of a line, with web addresses as links. */
export function linked(parts: readonly Piece[]): Node[] {
  const text = parts.map(part => part.text).join('');
  const links = Array.from(text.matchAll(LINK), ({ 0: match, index }) => {
    const url = match.replace(BEHIND, '');
    return { url, from: index, to: index + url.length };
  });
  const out: Node[] = [];
  let [start, next] = [0, 0];
  let open: HTMLAnchorElement | null = null;
  for (const part of parts) {
    const end = start + part.text.length;
    for (let at = start; at < end;) {
      const link = links[next];
      const inside = link !== undefined && link.from <= at;
      const to = Math.min(end, (inside ? link.to : link?.from) ?? end);
      const drawn = draw({ ...part, text: visible(part.text.slice(at - start, to - start)) });
      if (inside) {
        open ??= out[out.push(anchor(link.url)) - 1] as HTMLAnchorElement;
        open.append(drawn);
      } else {
        out.push(drawn);
      }
      at = to;
      if (link && at >= link.to) {
        [open, next] = [null, next + 1];
      }
    }
    start = end;
  }
  return out;
}

function anchor(href: string): HTMLAnchorElement {
  const element = document.createElement('a');
  return Object.assign(element, { href, target: '_blank', rel: 'noopener noreferrer' });
}

/** Draws a piece; only a text node if it has no style. */
function draw({ text, style, hit }: Piece): Node {
  const inner = Object.keys(style).length ? styled(text, style) : document.createTextNode(text);
  if (!hit) {
    return inner;
  }
  const mark = document.createElement('mark');
  mark.append(inner);
  return mark;
}

function styled(text: string, style: Style): HTMLElement {
  const element = document.createElement('span');
  element.textContent = text;
  for (const name of ['bold', 'dim', 'italic', 'underline'] as const) {
    element.classList.toggle(`${CSS}-${name}`, style[name] ?? false);
  }
  const { fg, bg } = style.inverse ? { fg: style.bg, bg: style.fg } : style;
  if (style.inverse && bg === undefined) {
    element.classList.add(`${CSS}-inverse`);
  }
  ground(element, bg);
  ink(element, fg, bg !== undefined);
  return element;
}

/** The first 16 colours are the theme's, so that they are legible on it. */
function ground(element: HTMLElement, colour: number | undefined): void {
  if (colour === undefined) {
    return;
  }
  if (colour < 16) {
    element.classList.add(`${CSS}-bg-${colour}`);
    return;
  }
  const [red, green, blue] = channels(colour);
  element.style.backgroundColor = `rgb(${red} ${green} ${blue})`;
  // Either black or white is legible on any colour.
  element.style.color = 0.3 * red + 0.59 * green + 0.11 * blue > 128 ? 'black' : 'white';
}

/** Other colours keep their hue; the style sheet makes them dark or light enough for the theme. */
function ink(element: HTMLElement, colour: number | undefined, grounded: boolean): void {
  if (colour === undefined) {
    return;
  }
  if (colour < 16) {
    element.classList.add(`${CSS}-fg-${colour}`);
    return;
  }
  const value = `rgb(${channels(colour).join(' ')})`;
  if (grounded) {
    element.style.color = value;
  } else {
    element.classList.add(`${CSS}-rgb`);
    element.style.setProperty('--jp-nbtorchjob-ink', value);
  }
}
