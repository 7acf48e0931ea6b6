/** The command that opens a log at a line, for links to such lines. */

import type { IRouter, JupyterFrontEnd } from '@jupyterlab/application';
import type { TranslationBundle } from '@jupyterlab/translation';

import { reportErrors, strings } from '../commands/register';
import { CommandIDs } from '../ids';
import { type Client, isMeant, meant } from '../model/client';
import type { JobsModel } from '../model/model';
import type { Job } from '../model/record';

import { LINKED, linked, type Place, place, unlinked } from './links';

export interface OpenLineOptions {
  readonly app: Pick<JupyterFrontEnd, 'commands' | 'restored'>;
  /** null: the page follows no links. */
  readonly router: IRouter | null;
  readonly client: Pick<Client, 'job'>;
  readonly model: Pick<JobsModel, 'jobs'>;
  readonly openLogs: (job: Job, at: Place) => void;
  readonly trans: TranslationBundle;
}

/** Adds the command that opens a log at a line, and runs it if the page's address is such a link. */
export function addOpenLine(options: OpenLineOptions): void {
  const { app, router, client, model, openLogs, trans } = options;
  app.commands.addCommand(CommandIDs.openLine, {
    label: trans.__('Open Logs of Torch Job at a Line'),
    describedBy: strings(
      { id: trans.__('The id of a job'), line: trans.__('RANK.LINE, the line counted from 1') },
      ['id', 'line']
    ),
    execute: args =>
      reportErrors(trans, async () => {
        const at = linked(typeof args.search === 'string' ? args.search : '');
        const target = at ?? place(args.id, args.line, args.created);
        if (target) {
          await app.restored;
          if (at) {
            leave(router);
          }
          const listed = model.jobs.get(target.id);
          const isListed = listed !== undefined && isMeant(target, listed);
          openLogs(isListed ? listed : await client.job(meant(target)), target);
        }
      })
  });
  router?.register({ command: CommandIDs.openLine, pattern: LINKED });
}

/** Removes the link from the page's address, so that a reload doesn't jump back to the line. */
function leave(router: IRouter | null): void {
  if (router) {
    const { path, search, hash } = router.current;
    router.navigate(path + unlinked(search ?? '') + hash, { skipRouting: true });
  }
}
