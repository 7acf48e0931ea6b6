/** Notifications about each job that ends while the page is open, and about stalled ones while they are. */

import { Notification } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { CommandRegistry } from '@lumino/commands';

import { jobButtons } from '../commands/buttons';
import type { Verb } from '../commands/verbs';
import { jobIn, stillnessOf } from '../model/changes';
import type { JobsModel } from '../model/model';
import type { Job } from '../model/record';
import { outcomeOf, stalledLine } from '../model/summary';
import type { Notified, Settings } from '../settings';

export interface NoticesOptions {
  readonly commands: CommandRegistry;
  readonly model: Pick<JobsModel, 'changed' | 'elapsed' | 'finished' | 'jobs' | 'stalled'>;
  /** Whether this page has cancelled the job: its end needs no notice. */
  readonly cancelled: (job: Job) => boolean;
  /** Whether the user has the job's notebook, and with it its card, in view. */
  readonly inView: (job: Job) => boolean;
  readonly settings: Settings;
  readonly trans: TranslationBundle;
}

/** Announces every job that ends from now on, as far as the settings ask for it. */
export function announceEnds(options: NoticesOptions): void {
  const { cancelled, commands, inView, model, settings, trans } = options;
  model.finished.connect((_, job) => {
    const byUser = job.phase === 'CANCELLED' && cancelled(job);
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

/**
 * Announces every job that stalls or hangs from now on, for as long as it does, unless the settings turn
 * notices off. A job is announced as stalled only once: it may stall at each checkpoint.
 */
export function announceStalls(options: NoticesOptions): void {
  const { commands, inView, model, settings, trans } = options;
  const announcements = new Map<string, { job: Job; grave: number; notice: string }>(); // by id
  model.stalled.connect((_, job) => {
    const before = announcements.get(job.id);
    const lastStillness = before?.job.created === job.created ? before.grave : 0;
    if (stillnessOf(job) <= lastStillness || inView(job) || settings.notifications === 'none') {
      return;
    }
    if (before) {
      Notification.dismiss(before.notice);
    }
    const notice = Notification.emit(stalledLine(job, model.elapsed(job), trans), 'warning', {
      actions: jobButtons(commands, ['logs', 'cancel'], job),
      autoClose: false
    });
    announcements.set(job.id, { job, grave: stillnessOf(job), notice });
  });
  model.changed.connect(() => {
    for (const [id, announcement] of announcements) {
      const now = jobIn(model.jobs, announcement.job);
      if (!now || stillnessOf(now) === 0) {
        Notification.dismiss(announcement.notice);
        announcement.grave = 1;
      }
      if (!now || now.terminal) {
        announcements.delete(id);
      }
    }
  });
}

function isTold(job: Job, notified: Notified): boolean {
  return notified === 'all' || (notified === 'failures' && job.phase === 'FAILED');
}

function kindOf(job: Job): Notification.TypeOptions {
  return job.phase === 'SUCCEEDED' ? 'success' : 'warning';
}
