// What tests put in the place of `@jupyterlab/ui-components`, which needs a browser: its widget of React.
import { Widget } from '@lumino/widgets';
import type { ReactElement } from 'react';
import { createRoot } from 'react-dom/client';

export class ReactWidget extends Widget {
  private readonly root = createRoot(this.node);

  protected override onUpdateRequest(): void {
    this.root.render((this as unknown as { render: () => ReactElement }).render());
  }

  protected override onAfterAttach(): void {
    this.update();
  }
}
