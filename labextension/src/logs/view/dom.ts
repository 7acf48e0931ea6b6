/** Helpers that create elements; text is never parsed as HTML. */

import type { TranslationBundle } from '@jupyterlab/translation';

export const CSS = 'jp-nbtorchjob-log';

/** Creates an element with a class of this extension, properties, and children. */
export function make<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag,
  name: string,
  properties: Partial<HTMLElementTagNameMap[Tag]> = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[Tag] {
  const element = Object.assign(document.createElement(tag), properties);
  element.className = `${CSS}-${name}`;
  element.append(...children);
  return element;
}

/** A button; `caption` is its tooltip, and its accessible name if the label is a symbol. */
export function button(label: string, caption: string, pressed: () => void): HTMLButtonElement {
  const element = make('button', 'button', { type: 'button', textContent: label, title: caption });
  if (label && !/\p{Letter}{2}/u.test(label)) {
    element.setAttribute('aria-label', caption);
  }
  element.addEventListener('click', pressed);
  return element;
}

/** A button that is on or off; `switched` receives the new state. */
export class Toggle {
  readonly node: HTMLButtonElement;

  constructor(label: string, caption: string, switched: (on: boolean) => void) {
    this.node = button(label, caption, () => {
      this.on = !this.on;
      switched(this.on);
    });
    this.on = false;
  }

  get on(): boolean {
    return this.node.getAttribute('aria-pressed') === 'true';
  }

  set on(value: boolean) {
    this.node.setAttribute('aria-pressed', String(value));
  }
}

/** A link that saves a rank's whole log. */
export function download(rank: number, url: string, trans: TranslationBundle): HTMLElement {
  return make('a', 'download', {
    href: url,
    download: `rank-${rank}.log`,
    textContent: trans.__('Download'),
    title: trans.__('Download the full log of rank %1', rank)
  });
}
