/** Asks for the values that a running job's code is to go on with, and sets them. */

import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';

import type { Client } from '../model/client';
import type { Job, Value } from '../model/record';

type Asked = Pick<Client, 'values' | 'set'>;

/** Sets the values that the user changes in a dialog; rejects with the reason if none was set. */
export async function setValues(
  job: Pick<Job, 'id' | 'created' | 'name'>,
  client: Asked,
  trans: TranslationBundle
): Promise<void> {
  const values = await client.values(job);
  const { button, value } = await showDialog({
    title: trans.__('Set Values of %1', job.name),
    body: new ValuesForm(values, trans),
    buttons: [Dialog.cancelButton(), Dialog.okButton({ label: trans.__('Set') })],
    focusNodeSelector: 'input'
  });
  if (button.accept && value && value.length > 0) {
    const answer = await client.set(job, value);
    Notification.success(answer.split('\n', 1)[0] ?? answer, { autoClose: 5000 });
  }
}

/** A field for each known value, and one for others. */
export class ValuesForm extends Widget implements Dialog.IBodyWidget<readonly Value[]> {
  constructor(values: readonly Value[], trans: TranslationBundle) {
    super();
    this.addClass('jp-nbtorchjob-size');
    this.addClass('jp-nbtorchjob-values');
    this.fields = values.map(({ name, value }) => ({
      name,
      value,
      input: this.field(name, value)
    }));
    this.others = this.field(trans.__('Other values'), '', 'optimizer.lr=1e-4');
    const more = document.createElement('p');
    more.textContent = trans.__('All ranks switch to these values at the same step, or none does.');
    this.node.append(more);
  }

  /** The values that were changed. */
  getValue(): readonly Value[] {
    const changed = this.fields
      .map(({ name, value, input }) => ({ name, value: input.value.trim(), before: value }))
      .filter(({ value, before }) => value !== before)
      .map(({ name, value }) => ({ name, value }));
    return [...changed, ...pairs(this.others.value)];
  }

  private field(name: string, value: string, placeholder = ''): HTMLInputElement {
    const label = document.createElement('label');
    const input = document.createElement('input');
    input.className = 'jp-mod-styled';
    Object.assign(input, { value, placeholder, spellcheck: false });
    label.append(name, input);
    this.node.append(label);
    return input;
  }

  private readonly fields: readonly (Value & { readonly input: HTMLInputElement })[];
  private readonly others: HTMLInputElement;
}

/** `NAME=VALUE` pairs, separated by spaces. */
function pairs(text: string): Value[] {
  return text
    .split(/\s+/)
    .filter(word => word !== '')
    .map(word => {
      const at = word.indexOf('=');
      return at < 0
        ? { name: word, value: '' }
        : { name: word.slice(0, at), value: word.slice(at + 1) };
    });
}
