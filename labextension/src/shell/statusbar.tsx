/** The status bar's item: how many jobs are under way. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget, UseSignal } from '@jupyterlab/ui-components';
import type { ReactElement } from 'react';

import { needsAttention } from '../model/groups';
import type { JobsModel } from '../model/model';
import { countsOf } from '../model/summary';

export interface JobsStatusOptions {
  readonly model: Pick<JobsModel, 'jobs' | 'changed' | 'doubtful' | 'failure' | 'notes'>;
  readonly show: () => void;
  readonly trans: TranslationBundle;
}

/** A text button that shows the sidebar. */
export class JobsStatus extends ReactWidget {
  constructor(private readonly options: JobsStatusOptions) {
    super();
  }

  protected override render(): ReactElement {
    const { model, show, trans } = this.options;
    return (
      <UseSignal signal={model.changed}>
        {() => (
          <button
            className="jp-nbtorchjob-status"
            data-nbtorchjob-state={[...model.jobs.values()].some(needsAttention) && 'attention'}
            onClick={show}
            title={[trans.__('Show torch jobs'), ...reasons(model)].join('\n')}
            type="button"
          >
            {countsOf(model.jobs.values(), trans, model.doubtful)}
          </button>
        )}
      </UseSignal>
    );
  }
}

function reasons({ doubtful, failure, notes }: JobsStatusOptions['model']): readonly string[] {
  return doubtful ? [...(failure ? [failure.message] : []), ...notes] : [];
}
