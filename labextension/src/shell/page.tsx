/** A tab with a page that the server has made about one job, or comparing several. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { CommandRegistry } from '@lumino/commands';
import type { ReactElement } from 'react';

import { VERBS } from '../commands/verbs';
import { CommandIDs } from '../ids';
import { type Meant, RequestError, isMeant, meant } from '../model/client';
import type { JobsModel } from '../model/model';
import type { Job, Page } from '../model/record';

import { AskedPage } from './asked';
import { PartBox } from './part';

const EACH_MS = 3000; // a job that reports changes every second

export interface JobsPageOptions {
  /** The jobs on the page, which is requested again when one of them has changed. */
  readonly jobs: readonly Meant[];
  readonly ask: () => Promise<Page>;
  readonly commands: CommandRegistry;
  readonly model: Pick<JobsModel, 'jobs' | 'changed'>;
  readonly trans: TranslationBundle;
}

/** Refreshes whenever its tab comes to the front, and when its jobs change while it is visible. */
export class JobsPage extends AskedPage {
  constructor(private readonly options: JobsPageOptions) {
    super();
    options.model.changed.connect(this.onChanged, this);
  }

  protected override render(): ReactElement {
    const { trans } = this.options;
    return (
      <>
        {this.note && (
          <p className="jp-nbtorchjob-page-note" role="status">
            {this.note}
          </p>
        )}
        {this.page ? (
          <>
            <div className="jp-nbtorchjob-page-head">
              <h1>{this.page.heading}</h1>
              <div>{this.buttons()}</div>
            </div>
            {this.page.parts.map((part, index) => (
              <PartBox key={`${part.title} ${index}`} part={part} trans={trans} />
            ))}
          </>
        ) : (
          !this.note && <p className="jp-nbtorchjob-page-note">{trans.__('Loading…')}</p>
        )}
      </>
    );
  }

  shows(job: Meant): boolean {
    return this.options.jobs.some(other => isMeant(other, job));
  }

  override dispose(): void {
    this.options.model.changed.disconnect(this.onChanged, this);
    clearTimeout(this.alarm);
    super.dispose();
  }

  /** The actions on the job of a page about one job. */
  private buttons(): ReactElement[] {
    const { commands, jobs } = this.options;
    const args = jobs[0] && meant(jobs[0]);
    const verbs = jobs.length === 1 ? VERBS.filter(verb => verb !== 'describe') : [];
    return verbs
      .map(verb => CommandIDs[verb])
      .filter(command => commands.hasCommand(command) && commands.isEnabled(command, args))
      .map(command => (
        <button
          key={command}
          className="jp-nbtorchjob-page-button"
          title={commands.caption(command, args)}
          onClick={() => void commands.execute(command, args)}
        >
          {commands.label(command, args)}
        </button>
      ));
  }

  private onChanged(): void {
    const { jobs, model } = this.options;
    const now = jobs.map(({ id }) => model.jobs.get(id));
    if (this.isVisible && now.some((job, at) => job !== this.seen[at])) {
      this.update(); // which actions apply is known without the server
      this.alarm ??= setTimeout(() => void this.refresh(), EACH_MS);
    }
  }

  protected async refresh(): Promise<void> {
    const { ask, jobs, model, trans } = this.options;
    clearTimeout(this.alarm);
    this.alarm = undefined;
    this.seen = jobs.map(({ id }) => model.jobs.get(id));
    const counts = this.begun();
    try {
      const page = await ask();
      if (!counts()) {
        return;
      }
      [this.page, this.note] = [page, ''];
    } catch (error) {
      if (!counts()) {
        return;
      }
      const isDeleted =
        error instanceof RequestError && error.ours && error.status === 404 && this.page;
      const why = error instanceof Error ? error.message : String(error);
      this.note = isDeleted
        ? trans.__('Deleted in the meantime; showing what was last known: %1', why)
        : trans.__('Can’t load this page: %1', why);
    }
    this.update();
  }

  private page: Page | null = null;
  private note = '';
  private seen: readonly (Job | undefined)[] = [];
  private alarm: ReturnType<typeof setTimeout> | undefined;
}
