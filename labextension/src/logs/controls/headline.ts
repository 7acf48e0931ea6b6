import type { TranslationBundle } from '@jupyterlab/translation';

import { groupOf } from '../../model/groups';
import type { Job } from '../../model/record';
import { duration, ran, shape, status } from '../../model/words';
import type { Connection } from '../stream';
import { button, make } from '../view/dom';

export interface HeadlineOptions {
  readonly name: string;
  readonly trans: TranslationBundle;
  readonly toFailure: () => void;
  /** Cancels or retries the job; undefined: that can't be done from here. */
  readonly act?: ((verb: 'cancel' | 'retry') => void) | undefined;
  /** The time in seconds, from any origin. */
  readonly now?: () => number;
}

/** The line above the logs that shows the job's state. */
export class Headline {
  readonly node: HTMLElement;
  private readonly state = make('span', 'state');
  private readonly facts = make('span', 'facts');
  private readonly connection = make('span', 'connection');
  private readonly why = make('div', 'why');
  private readonly loading = make('span', 'connection', { hidden: true });
  private readonly missing = make('span', 'connection');
  private readonly failure: HTMLButtonElement;
  private readonly cancel: HTMLButtonElement;
  private readonly retry: HTMLButtonElement;
  private readonly now: () => number;
  private job: Job | null = null;
  private submitted = 0;
  private reasons = '';

  constructor(private readonly options: HeadlineOptions) {
    const { name, trans, toFailure } = options;
    this.now = options.now ?? (() => performance.now() / 1000);
    const caption = trans.__('Go to the traceback of the rank that failed first');
    this.failure = button(trans.__('Go to failure'), caption, toFailure);
    this.failure.hidden = true;
    const { act } = options;
    this.cancel = button(
      trans.__('Cancel'),
      trans.__('End this job; its record and logs are kept'),
      () => act?.('cancel')
    );
    this.retry = button(trans.__('Retry'), trans.__('Run this job again'), () => act?.('retry'));
    this.cancel.hidden = this.retry.hidden = true;
    this.loading.setAttribute('role', 'status');
    const live = make('span', 'live', {}, this.state, this.connection, this.missing);
    live.setAttribute('role', 'status');
    const title = make('strong', 'name', { textContent: name, title: name });
    const line = make(
      'div',
      'line',
      {},
      title,
      live,
      this.loading,
      this.facts,
      make('div', 'actions', {}, this.failure, this.cancel, this.retry)
    );
    this.node = make('div', 'headline', {}, line, this.why);
  }

  /** Shows the job, which was submitted `elapsed` seconds ago. */
  tell(job: Job, failed: boolean, elapsed = job.elapsed): void {
    [this.job, this.submitted] = [job, this.now() - elapsed];
    this.state.textContent = status(job, this.options.trans);
    this.state.dataset['nbtorchjobState'] = groupOf(job);
    this.failure.hidden = !failed;
    this.cancel.hidden = !this.options.act || job.terminal;
    this.retry.hidden = !this.options.act || !job.terminal;
    const why = [job.failure ?? [], job.terminal ? [] : job.pending].flat();
    if (why.join('\n') !== this.reasons) {
      this.reasons = why.join('\n');
      this.why.replaceChildren(...why.map(text => make('div', 'reason', { textContent: text })));
    }
    this.tick();
  }

  /** Shows that the job was deleted: what is on the page is all that is left, and no action is possible. */
  gone(): void {
    this.cancel.hidden = this.retry.hidden = true;
    const { job } = this;
    if (job) {
      const { trans } = this.options;
      this.state.textContent = trans.__('%1, deleted', status(job, trans));
    }
  }

  /** Shows the time that has passed. */
  tick(): void {
    const { job } = this;
    if (job) {
      const took = ran(job, job.terminal ? job.elapsed : this.now() - this.submitted);
      const { trans } = this.options;
      this.facts.textContent = `${duration(took, trans)} · ${shape(job, trans)} · ${job.where}`;
    }
  }

  /** Shows that earlier output is still loading, with `lines` lines so far; null: it is loaded. */
  reads(lines: number | null): void {
    this.loading.hidden = lines === null;
    if (lines !== null) {
      const { trans } = this.options;
      this.loading.textContent = trans._n(
        'Loading… %2 line so far',
        'Loading… %2 lines so far',
        lines,
        lines.toLocaleString()
      );
    }
  }

  /** Shows why the view isn't at the requested line; empty: it is. */
  misses(why: string): void {
    if (this.missing.textContent !== why) {
      this.missing.textContent = why;
    }
  }

  /** Shows the state of the connection, if it is worth mentioning. */
  connected(connection: Connection): void {
    const { trans } = this.options;
    const words: Record<Connection['is'], string> = {
      connecting: '',
      open: '',
      ended: '',
      waiting: trans.__('Connection lost, reconnecting'),
      refused: trans.__('No logs')
    };
    const reason = 'reason' in connection ? connection.reason : '';
    const text = [words[connection.is], reason].filter(Boolean).join(' · ');
    // Trying again isn't news: the text stays until that succeeds.
    if (connection.is !== 'connecting') {
      this.connection.textContent = text;
    }
  }
}
