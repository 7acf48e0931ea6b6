/** A notification for each job that ends while the page looks on, and once for one that stalls, until it ends. */

import { Notification } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { CommandRegistry } from '@lumino/commands';

import { jobButtons } from '../commands/buttons';
import type { Verb } from '../commands/verbs';
import type { JobsModel } from '../model/model';
import type { Job } from '../model/record';
import { outcomeOf, stalledLine } from '../model/summary';
import type { Notified, Settings } from '../settings';

export interface NoticesOptions {
  readonly commands: CommandRegistry;
  readonly model: Pick<JobsModel, 'elapsed' | 'finished' | 'stalled'>;
  /** The jobs that this page has cancelled: nobody need be told. */
  readonly cancelled: Set<string>;
  /** Whether the user has the job's notebook, and with it its card, in view. */
  readonly inView: (job: Job) => boolean;
  readonly settings: Settings;
  readonly trans: TranslationBundle;
}

/** Tells of every job that ends from now on, as far as the settings want it. */
export function announceEnds(options: NoticesOptions): void {
  const { cancelled, commands, inView, model, settings, trans } = options;
  model.finished.connect((_, job) => {
    const byUser = cancelled.delete(job.id) && job.phase === 'CANCELLED';
    if (byUser || inView(job) || !isTold(job, settings.notifications)) {
      return;
    }
    const failed = job.phase === 'FAILED';
    const offered: readonly Verb[] = failed ? ['logs', 'retry'] : ['logs', 'attach'];
    Notification.emit(outcomeOf(job, model.elapsed(job), trans), failed ? 'error' : kindOf(job), {
      actions: jobButtons(commands, offered, job),
      autoClose: failed ? 10_000 : 5000
    });
  });
}

/** Tells once of every job that stalls from now on until it ends, unless no failures are to be told. */
export function announceStalls(options: NoticesOptions): void {
  const { commands, inView, model, settings, trans } = options;
  const notices = new Map<string, { readonly created: number; readonly notice: string }>(); // by job
  model.stalled.connect((_, job) => {
    const before = notices.get(job.id);
    const told = before?.created === job.created;
    if (told || inView(job) || settings.notifications === 'none') {
      return;
    }
    if (before) {
      Notification.dismiss(before.notice); // of a job that was deleted as it stalled
    }
    const notice = Notification.emit(stalledLine(job, model.elapsed(job), trans), 'warning', {
      actions: jobButtons(commands, ['logs', 'cancel'], job),
      autoClose: false
    });
    notices.set(job.id, { created: job.created, notice });
  });
  model.finished.connect((_, job) => {
    const before = notices.get(job.id);
    if (before) {
      Notification.dismiss(before.notice);
    }
  });
}

function isTold(job: Job, notified: Notified): boolean {
  return notified === 'all' || (notified === 'failures' && job.phase === 'FAILED');
}

function kindOf(job: Job): Notification.TypeOptions {
  return job.phase === 'SUCCEEDED' ? 'success' : 'warning';
}
