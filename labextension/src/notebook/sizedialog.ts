/** Asks once per notebook how many nodes and ranks its cells' jobs get. */

import { Dialog, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';

import type { Settings } from '../settings';

import { type Size, sizeOf, withSize } from './size';

/** The options for cells without a line, with the size that the user chose for their notebook. */
export class SizeDialog {
  constructor(
    private readonly settings: Settings,
    private readonly trans: TranslationBundle
  ) {}

  /** Asks, unless it has already for this notebook or the settings say not to; null: the user cancelled. */
  async options(notebook: string): Promise<string | null> {
    const { settings } = this;
    if (!settings.asksSize) {
      return settings.options;
    }
    const before = this.answered.get(notebook);
    if (before) {
      return withSize(settings.options, before);
    }
    const answer = await this.ask(this.last ?? sizeOf(settings.options));
    if (answer === null) {
      return null;
    }
    this.last = answer.size;
    this.answered.set(notebook, answer.size);
    const options = withSize(settings.options, answer.size);
    if (answer.forGood) {
      await settings.askNoSize(options);
    }
    return options;
  }

  private async ask(size: Size): Promise<{ size: Size; forGood: boolean } | null> {
    const { trans } = this;
    const { button, isChecked, value } = await showDialog({
      title: trans.__('Run Cell as Torch Job'),
      body: new SizeForm(size, trans),
      buttons: [Dialog.cancelButton(), Dialog.okButton({ label: trans.__('Run') })],
      checkbox: {
        label: trans.__('Don’t ask again'),
        caption: trans.__('Save this in the settings for all notebooks'),
        checked: false
      },
      focusNodeSelector: 'input'
    });
    return button.accept && value ? { size: value, forGood: isChecked ?? false } : null;
  }

  private last: Size | null = null;
  private readonly answered = new Map<string, Size>();
}

class SizeForm extends Widget implements Dialog.IBodyWidget<Size> {
  constructor(size: Size, trans: TranslationBundle) {
    super();
    this.addClass('jp-nbtorchjob-size');
    this.nodes = this.field(trans.__('Nodes'), size.nodes, trans);
    this.ranks = this.field(trans.__('Ranks per node'), size.ranks, trans);
    const more = document.createElement('p');
    more.textContent = trans.__('All other options go on the cell’s first line, after %1.', MAGIC);
    this.node.append(more);
  }

  getValue(): Size {
    return { nodes: word(this.nodes), ranks: word(this.ranks) };
  }

  private field(name: string, value: string, trans: TranslationBundle): HTMLInputElement {
    const label = document.createElement('label');
    const input = document.createElement('input');
    input.className = 'jp-mod-styled';
    input.placeholder = trans.__('default');
    input.spellcheck = false;
    input.value = value;
    label.append(name, input);
    this.node.append(label);
    return input;
  }

  private readonly nodes: HTMLInputElement;
  private readonly ranks: HTMLInputElement;
}

const MAGIC = '%%torchjob'; // translations treat a percent sign as a placeholder

/** The input as one word of the line; the magic checks whether it is a number. */
function word(input: HTMLInputElement): string {
  return input.value.replace(/\s+/g, '');
}
