/** Asks for a job's note and tags. */

import { Dialog, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';

import type { Job, Note } from '../model/record';

/** The note and tags to put on a job, at first those given; null: the user cancelled. */
export async function askNote(
  job: Pick<Job, 'name'>,
  first: Note,
  trans: TranslationBundle
): Promise<Note | null> {
  const { button, value } = await showDialog({
    title: trans.__('Note and Tags of %1', job.name),
    body: new NoteForm(first, trans),
    buttons: [Dialog.cancelButton(), Dialog.okButton({ label: trans.__('Save') })],
    focusNodeSelector: 'textarea'
  });
  return button.accept ? value : null;
}

class NoteForm extends Widget implements Dialog.IBodyWidget<Note> {
  constructor({ note, tags }: Note, trans: TranslationBundle) {
    super();
    this.addClass('jp-nbtorchjob-note');
    this.note = document.createElement('textarea');
    this.note.rows = 4;
    this.note.maxLength = 2000; // the same as `backends/naming.MOST_NOTE`
    this.note.value = note;
    this.tags = document.createElement('input');
    this.tags.value = tags.join(' ');
    this.tags.spellcheck = false;
    this.tags.placeholder = trans.__('words, separated by spaces');
    this.add(trans.__('Note'), this.note);
    this.add(trans.__('Tags'), this.tags);
  }

  getValue(): Note {
    const tags = this.tags.value.split(/[\s,]+/).map(tag => tag.replace(/^#/, ''));
    return { note: this.note.value.trim(), tags: tags.filter(Boolean) };
  }

  private add(name: string, field: HTMLElement): void {
    const label = document.createElement('label');
    field.className = 'jp-mod-styled';
    label.append(name, field);
    this.node.append(label);
  }

  private readonly note: HTMLTextAreaElement;
  private readonly tags: HTMLInputElement;
}
