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

  /** Begins a request. Its answer counts, unless one to a later request has come before. */
  protected begun(): () => boolean {
    const turn = ++this.newest;
    return () => {
      const counts = !this.isDisposed && turn > this.shownTurn;
      this.shownTurn = counts ? turn : this.shownTurn;
      return counts;
    };
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
    this.node.focus();
  }

  private newest = 0;
  private shownTurn = 0;
}
