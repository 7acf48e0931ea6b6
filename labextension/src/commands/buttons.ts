/** Buttons of a notification that act on a job. */

import type { Notification } from '@jupyterlab/apputils';
import type { CommandRegistry } from '@lumino/commands';

import { CommandIDs } from '../ids';
import { type Meant, meant } from '../model/client';

import type { Verb } from './verbs';

/** A button for each of these verbs for which this page has a command. */
export function jobButtons(
  commands: CommandRegistry,
  verbs: readonly Verb[],
  job: Meant
): Notification.IAction[] {
  const args = meant(job);
  return verbs
    .map(verb => CommandIDs[verb])
    .filter(command => commands.hasCommand(command))
    .map(command => ({
      label: commands.label(command, args),
      caption: commands.caption(command, args),
      callback: () => void commands.execute(command, args)
    }));
}
