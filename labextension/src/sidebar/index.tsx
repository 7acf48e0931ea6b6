/** The widget that holds the sidebar, and what ties it to the page. */

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
import { CommandIDs } from '../ids';
import type { Job } from '../model/record';
import type { ITorchJobs } from '../tokens';

import { Clock } from './clock';
import { type IconName, type Page, PageProvider } from './context';
import type { Wanted } from './list/wanted';
import { JobsView } from './view';

// Those of verbs are their commands'.
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
  /** Deletes these jobs, once that was confirmed. */
  readonly deleteAll?: (jobs: readonly Job[]) => Promise<void>;
  /** The active notebook's path, or null; call `update()` when it becomes another. */
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
              wanted={this.wanted}
            />
          )}
        </UseSignal>
      </PageProvider>
    );
  }

  /** Selects a job and brings it into view, as soon as it is listed. */
  point(id: string): void {
    this.wanted = { id, met: false };
    this.update();
  }

  private readonly page: Page;
  private wanted: Wanted | null = null;
}

function pageOf({ commands, deleteAll, model, trans }: SidebarOptions): Page {
  const execute = (id: string, args = {}) => void commands.execute(id, args);
  return {
    trans,
    clock: new Clock(),
    elapsed: job => model.elapsed(job),
    can: (verb, { id }) => can(commands, verb, id),
    run: (verb, { id }) => execute(CommandIDs[verb], { id }),
    label: (verb, { id }) => commands.label(CommandIDs[verb], { id }),
    icon: name => {
      const Icon = iconOf(commands, name);
      return Icon && <Icon.react tag="span" className="jp-nbtorchjob-jobs-icon" />;
    },
    menu: (job, x, y) => openMenu(commands, job, x, y),
    offers: name => commands.hasCommand(CommandIDs[name]),
    start: name => execute(CommandIDs[name]),
    refresh: () => void model.refresh(),
    comparable: jobs => commands.isEnabled(CommandIDs.compare, { ids: idsOf(jobs) }),
    compare: jobs => execute(CommandIDs.compare, { ids: idsOf(jobs) }),
    deleteAll: jobs => void deleteAll?.(jobs)
  };
}

function idsOf(jobs: readonly Job[]): string[] {
  return jobs.map(({ id }) => id);
}

function iconOf(commands: CommandRegistry, name: IconName): LabIcon | null {
  if (!isVerb(name)) {
    return ICONS[name];
  }
  const icon = commands.icon(CommandIDs[name], {});
  return icon instanceof LabIcon ? icon : null;
}

function can(commands: CommandRegistry, verb: Verb, id: string): boolean {
  return commands.hasCommand(CommandIDs[verb]) && commands.isEnabled(CommandIDs[verb], { id });
}

function openMenu(commands: CommandRegistry, { id }: Job, x: number, y: number): void {
  const menu = new MenuSvg({ commands });
  for (const verb of VERBS.filter(each => can(commands, each, id))) {
    menu.addItem({ command: CommandIDs[verb], args: { id } });
  }
  // The command runs after the menu has closed: it must not be disposed before.
  menu.aboutToClose.connect(() => void Promise.resolve().then(() => menu.dispose()));
  menu.open(x, y);
}
