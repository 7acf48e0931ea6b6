/** The base class of tabs whose content comes from the server. */

import { ReactWidget } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';

/** Refreshes whenever it comes to the front. */
export abstract class AskedPage extends ReactWidget {
  constructor() {
    super();
    this.addClass('jp-nbtorchjob-page');
    this.node.tabIndex = 0; // so that it scrolls by keyboard
  }

  protected abstract refresh(): Promise<void>;

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
    this.node.focus();
  }
}
