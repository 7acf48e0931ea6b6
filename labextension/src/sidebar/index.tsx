/** The widget that holds the sidebar, and its connection to the page. */

import type { TranslationBundle } from '@jupyterlab/translation';
import {
  LabIcon,
  MenuSvg,
  ReactWidget,
  UseSignal,
  caretDownIcon,
  caretRightIcon,
  checkIcon,
  clearIcon,
  closeIcon,
  ellipsesIcon,
  filterIcon,
  refreshIcon,
  settingsIcon
} from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';

import { isVerb, VERBS, type Verb } from '../commands/verbs';
import { CommandIDs, RunsCommandIDs } from '../ids';
import { nameOf } from '../model/client';
import type { Job, RunFile } from '../model/record';
import { type Listed, isRuns } from '../model/runs';
import type { ITorchJobs } from '../tokens';

import { Clock } from './clock';
import { type IconName, type Page, PageProvider } from './context';
import type { Wanted } from './list/wanted';
import { JobsView } from './view';

// A verb's icon is that of its command.
const ICONS: Readonly<Record<Exclude<IconName, Verb>, LabIcon>> = {
  menu: ellipsesIcon,
  openPanel: settingsIcon,
  refresh: refreshIcon,
  notebook: filterIcon,
  clear: closeIcon,
  deleteEnded: clearIcon,
  open: caretDownIcon,
  closed: caretRightIcon,
  select: checkIcon
};

export interface SidebarOptions {
  readonly model: ITorchJobs['model'];
  readonly commands: CommandRegistry;
  readonly trans: TranslationBundle;
  readonly client: Pick<ITorchJobs['client'], 'files'>;
  readonly openFile: (job: Job, file: RunFile) => void;
  /** Deletes these jobs once the user has confirmed it. */
  readonly deleteAll?: (jobs: readonly Job[]) => Promise<void>;
  /** The active notebook's path, or null; call `update()` when it changes. */
  readonly notebook?: () => string | null;
}

/** Every job, in a sidebar. */
export class JobsSidebar extends ReactWidget {
  constructor(private readonly options: SidebarOptions) {
    super();
    this.addClass('jp-nbtorchjob-sidebar');
    this.page = pageOf(options);
  }

  protected override render() {
    const { model, notebook } = this.options;
    return (
      <PageProvider value={this.page}>
        <UseSignal signal={model.changed}>
          {() => (
            <JobsView
              jobs={model.jobs}
              notes={model.notes}
              failure={model.failure}
              loaded={model.loaded}
              notebook={notebook?.() ?? null}
              destination={this.destination}
              browsed={this.browsed}
              onBrowsed={() => {
                this.browse('');
                this.node.querySelector<HTMLElement>('[role=treegrid]')?.focus();
              }}
            />
          )}
        </UseSignal>
      </PageProvider>
    );
  }

  /** Selects a job and brings it into view, as soon as it is listed. */
  point(id: string): void {
    this.destination = { id, met: false };
    this.update();
  }

  /** Shows the files of a job below the list; '' hides them. */
  browse(id: string): void {
    this.browsed = id;
    this.update();
  }

  private readonly page: Page;
  private browsed = '';
  private destination: Wanted | null = null;
}

function pageOf({ client, commands, deleteAll, model, openFile, trans }: SidebarOptions): Page {
  const execute = (id: string, args = {}) => void commands.execute(id, args);
  return {
    trans,
    clock: new Clock(),
    elapsed: job => model.elapsed(job),
    can: (verb, listed) => can(commands, verb, listed),
    run: (verb, listed) => execute(commandOf(verb, listed) ?? '', argsOf(listed)),
    label: (verb, listed) => commands.label(commandOf(verb, listed) ?? '', argsOf(listed)),
    icon: name => {
      const Icon = iconOf(commands, name);
      return Icon && <Icon.react tag="span" className="jp-nbtorchjob-jobs-icon" />;
    },
    menu: (listed, x, y) => openMenu(commands, listed, x, y),
    offers: name => commands.hasCommand(CommandIDs[name]),
    start: name => execute(CommandIDs[name]),
    refresh: () => void model.refresh(),
    comparable: jobs => commands.isEnabled(CommandIDs.compare, { ids: idsOf(jobs) }),
    compare: jobs => execute(CommandIDs.compare, { ids: idsOf(jobs) }),
    files: job => client.files(job),
    openFile,
    deleteAll: jobs => void deleteAll?.(jobs)
  };
}

function idsOf(jobs: readonly Job[]): string[] {
  return jobs.map(nameOf);
}

function iconOf(commands: CommandRegistry, name: IconName): LabIcon | null {
  if (!isVerb(name)) {
    return ICONS[name];
  }
  const icon = commands.icon(CommandIDs[name], {});
  return icon instanceof LabIcon ? icon : null;
}

/** The id of a verb's command; null for a group's runs if there is none for all of them. */
function commandOf(verb: Verb, listed: Listed): string | null {
  const ids: Readonly<Partial<Record<Verb, string>>> = isRuns(listed) ? RunsCommandIDs : CommandIDs;
  return ids[verb] ?? null;
}

/** A command's arguments; any run of a group stands for all of its runs. */
function argsOf(listed: Listed): Pick<Job, 'id' | 'created'> {
  const { id, created } = isRuns(listed) ? listed.jobs[0] : listed;
  return { id, created };
}

function can(commands: CommandRegistry, verb: Verb, listed: Listed): boolean {
  const command = commandOf(verb, listed);
  return (
    command !== null && commands.hasCommand(command) && commands.isEnabled(command, argsOf(listed))
  );
}

function openMenu(commands: CommandRegistry, listed: Listed, x: number, y: number): void {
  const menu = new MenuSvg({ commands });
  for (const verb of VERBS.filter(verb => can(commands, verb, listed))) {
    menu.addItem({ command: commandOf(verb, listed) ?? '', args: argsOf(listed) });
  }
  // The command runs after the menu has closed: the menu must not be disposed before that.
  menu.aboutToClose.connect(() => void Promise.resolve().then(() => menu.dispose()));
  menu.open(x, y);
}
