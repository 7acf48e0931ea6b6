/** All that is known of a job, as the text that `%torchjob describe` prints. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

/** Text that is asked for anew whenever its tab comes to the front. */
export class Description extends Widget {
  constructor(
    private readonly ask: () => Promise<string>,
    private readonly trans: TranslationBundle
  ) {
    super();
    this.addClass('jp-nbtorchjob-description');
    this.text.tabIndex = 0; // so that it scrolls by keyboard
    this.text.textContent = trans.__('Asking…');
    this.node.append(this.text);
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    void this.refresh();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    void this.refresh();
  }

  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    this.text.focus();
  }

  private async refresh(): Promise<void> {
    try {
      this.text.textContent = await this.ask();
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      this.text.textContent = this.trans.__('Can’t describe it: %1', why);
    }
  }

  private readonly text = document.createElement('pre');
}
