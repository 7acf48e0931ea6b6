/** A row of the list: a group's heading, runs folded into one, or a job. */

import { type MouseEvent, memo, useSyncExternalStore } from 'react';

import { quick } from '../../commands/verbs';
import { type GroupName, groupOf, needsAttention } from '../../model/groups';
import type { Job } from '../../model/record';
import { type Listed, type Runs, elapsedOf, shares } from '../../model/runs';
import { duration, phase, ran, status, stillness } from '../../model/words';
import { usePage } from '../context';

import type { GroupRow, JobRow, RunsRow } from './layout';
import { type Selected, toggled } from './selecting';
import { Uses } from './uses';
import { ago, details, gist, heading, origin, runsGist, runsOrigin } from './words';

export const GroupCells = memo(function GroupCells({ row }: { row: GroupRow }) {
  const { trans, icon } = usePage();
  return (
    <div role="gridcell" className="jp-nbtorchjob-jobs-group-cell">
      <span className="jp-nbtorchjob-jobs-caret" aria-hidden>
        {icon(row.open ? 'open' : 'closed')}
      </span>
      <span>{heading(row.key, trans)}</span>
      <span className="jp-nbtorchjob-jobs-count">{row.count}</span>
    </div>
  );
});

interface RunsProps {
  readonly runs: Runs;
  readonly open: boolean;
  readonly pointed: boolean;
  /** Whether it stands below the heading of its group. */
  readonly headed: boolean;
}

/** A state in one word; only for screen readers if the heading above says the same. */
function Word({ text, of, headed }: { text: string; of: GroupName; headed: boolean }) {
  const { trans } = usePage();
  const isRepeated = headed && text === heading(of, trans);
  return (
    <span
      className="jp-nbtorchjob-jobs-word"
      data-nbtorchjob-state={of}
      data-told={isRepeated || undefined}
    >
      {text}
    </span>
  );
}

/** Whether a row stands below the heading of its group. */
export function isHeaded({ parent }: JobRow | RunsRow): boolean {
  return parent?.kind === 'group';
}

/** The runs of a group in two lines, like a job. */
export const RunsCells = memo(function RunsCells({ runs, open, pointed, headed }: RunsProps) {
  const { icon, trans } = usePage();
  const summary = runsGist(runs, trans);
  return (
    <>
      <div
        role="gridcell"
        className="jp-nbtorchjob-jobs-job-cell"
        title={pointed ? `${runs.name}\n${phase(runs.phase, trans)}\n${summary}` : undefined}
      >
        <div className="jp-nbtorchjob-jobs-line">
          <span className="jp-nbtorchjob-jobs-dot" data-nbtorchjob-state={groupOf(runs)} />
          <span className="jp-nbtorchjob-jobs-name">{runs.name}</span>
          <span className="jp-nbtorchjob-jobs-caret" aria-hidden>
            {icon(open ? 'open' : 'closed')}
          </span>
          <span className="jp-nbtorchjob-jobs-label">{runsOrigin(runs)}</span>
          <RunsElapsed runs={runs} />
        </div>
        <div className="jp-nbtorchjob-jobs-line">
          <Word text={phase(runs.phase, trans)} of={groupOf(runs)} headed={headed} />
          <span className="jp-nbtorchjob-jobs-gist">{summary}</span>
        </div>
        <RunsBar runs={runs} />
      </div>
      {pointed && <Actions listed={runs} />}
    </>
  );
});

const LOOK_OF_RUNS = {
  SUCCEEDED: 'succeeded',
  RUNNING: 'running',
  FAILED: 'failed',
  STOPPED: 'cancelled',
  CANCELLED: 'cancelled',
  PENDING: 'waiting',
  SUBMITTED: 'waiting'
} as const;

/** The counts that the words beside it give, each as its share of the width. */
function RunsBar({ runs }: { runs: Runs }) {
  return (
    <div className="jp-nbtorchjob-jobs-bar" aria-hidden>
      {shares(runs).map(([stand, count]) => (
        <div key={stand} data-nbtorchjob-state={LOOK_OF_RUNS[stand]} style={{ flexGrow: count }} />
      ))}
    </div>
  );
}

function RunsElapsed({ runs }: { runs: Runs }) {
  const { clock, elapsed, trans } = usePage();
  const text = useSyncExternalStore(clock.subscribe, () =>
    duration(elapsedOf(runs, elapsed), trans)
  );
  return <span className="jp-nbtorchjob-jobs-elapsed">{text}</span>;
}

interface JobProps {
  readonly job: Job;
  /** Whether mouse or keyboard is on it: only then can its buttons and tooltip be seen. */
  readonly pointed: boolean;
  readonly selected: boolean;
  /** Whether it stands below the heading of its group. */
  readonly headed: boolean;
  /** The same function at each rendering. */
  readonly onCheck: (change: (selected: Selected) => Selected) => void;
}

/** A job in two lines, with its actions. Rendered again only when its record or another prop changes. */
export const JobCells = memo(function JobCells(props: JobProps) {
  const { job, pointed, selected, headed, onCheck } = props;
  const { icon, trans } = usePage();
  const check = (event: MouseEvent) => {
    event.stopPropagation();
    onCheck(now => toggled(now, job.id));
  };
  return (
    <>
      <div
        role="gridcell"
        className="jp-nbtorchjob-jobs-job-cell"
        title={pointed ? details(job, trans) : undefined}
      >
        <div className="jp-nbtorchjob-jobs-line">
          {/* The dot, or a checkbox in its place. The row says what they show, and Space selects, too. */}
          <span
            className="jp-nbtorchjob-jobs-check"
            title={trans.__('Select for comparison')}
            aria-hidden
            onClick={check}
          >
            <span className="jp-nbtorchjob-jobs-dot" data-nbtorchjob-state={groupOf(job)} />
            <span className="jp-nbtorchjob-jobs-box">{selected && icon('select')}</span>
          </span>
          <span className="jp-nbtorchjob-jobs-name">{job.name}</span>
          <span className="jp-nbtorchjob-jobs-label">{origin(job)}</span>
          <Elapsed job={job} />
        </div>
        <div className="jp-nbtorchjob-jobs-line">
          <Word text={status(job, trans)} of={groupOf(job)} headed={headed} />
          <span className="jp-nbtorchjob-jobs-gist">
            {!needsAttention(job) && <Stillness job={job} />}
            {gist(job, trans)}
          </span>
          {job.terminal && <Ended job={job} />}
        </div>
        <Uses job={job} />
        <Bar job={job} />
      </div>
      {pointed && <Actions listed={job} />}
    </>
  );
});

function Elapsed({ job }: { job: Job }) {
  const { clock, elapsed, trans } = usePage();
  const text = useSyncExternalStore(clock.subscribe, () => duration(ran(job, elapsed(job)), trans));
  return <span className="jp-nbtorchjob-jobs-elapsed">{text}</span>;
}

/** How long ago a job ended. */
function Ended({ job: { created, elapsed } }: { job: Job }) {
  const { clock, trans } = usePage();
  const end = created + elapsed;
  const text = useSyncExternalStore(clock.subscribe, () => ago(Date.now() / 1000 - end, trans));
  const time = new Date(end * 1000).toLocaleString();
  return (
    <span className="jp-nbtorchjob-jobs-ended" title={trans.__('ended %1', time)}>
      {text}
    </span>
  );
}

/** How long a job has been silent, if that is unusual. */
function Stillness({ job }: { job: Job }) {
  const { clock, elapsed, trans } = usePage();
  const text = useSyncExternalStore(clock.subscribe, () => stillness(job, elapsed(job), trans));
  return text ? <>{`${text} · `}</> : null;
}

/** The progress that the words beside it give, as a bar. */
function Bar({ job }: { job: Job }) {
  const { progress, terminal } = job;
  if (terminal || !progress?.total) {
    return null;
  }
  const width = `${Math.min(100, (100 * progress.done) / progress.total)}%`;
  return (
    <div className="jp-nbtorchjob-jobs-bar" aria-hidden>
      <div data-nbtorchjob-state={groupOf(job)} style={{ width }} />
    </div>
  );
}

function Actions({ listed }: { listed: Listed }) {
  const { can, icon, label, menu, run, trans } = usePage();
  const openMenu = ({ currentTarget }: MouseEvent) => {
    const { left, bottom } = currentTarget.getBoundingClientRect();
    menu(listed, left, bottom);
  };
  // Out of the tab order: by keyboard the list is one stop, and its keys and menu do the same.
  return (
    <div
      role="gridcell"
      className="jp-nbtorchjob-jobs-actions"
      onClick={event => event.stopPropagation()}
    >
      {quick(listed)
        .filter(verb => can(verb, listed))
        .map(verb => (
          <button
            key={verb}
            tabIndex={-1}
            title={label(verb, listed)}
            aria-label={label(verb, listed)}
            onClick={() => run(verb, listed)}
          >
            {icon(verb)}
          </button>
        ))}
      <button
        tabIndex={-1}
        title={trans.__('More actions')}
        aria-label={trans.__('More actions')}
        onClick={openMenu}
      >
        {icon('menu')}
      </button>
    </div>
  );
}
