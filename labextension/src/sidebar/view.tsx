/** The sidebar: the search, and the list of what it finds. */

import { useEffect, useMemo, useRef, useState } from 'react';

import type { RequestError } from '../model/client';
import { grouped, ordered } from '../model/groups';
import type { Job } from '../model/record';
import { groupIdOf, jobsOf } from '../model/runs';

import { useClosedGroups, useSort } from './choices';
import { usePage } from './context';
import { FilesPane } from './files';
import { flatten } from './list/layout';
import { JobList } from './list/list';
import { toggled } from './list/selecting';
import type { Wanted } from './list/wanted';
import { Loading, NoJobs, Notes, NothingFound, Problem } from './messages';
import { SearchField, Selection, SortField, Toolbar } from './toolbar';

const NONE: ReadonlySet<string> = new Set();

export interface JobsViewProps {
  readonly jobs: ReadonlyMap<string, Job>;
  readonly notes: readonly string[];
  readonly failure: RequestError | null;
  /** Whether the list was ever loaded. */
  readonly loaded: boolean;
  /** The active notebook's path; null: none. */
  readonly notebook: string | null;
  readonly destination?: Wanted | null;
  /** The id of the job whose files are shown; '': none. */
  readonly browsed?: string;
  readonly onBrowsed?: () => void;
}

export function JobsView(props: JobsViewProps) {
  const { jobs, notes, failure, loaded, notebook, destination = null } = props;
  const browsed = props.browsed ? jobs.get(props.browsed) : undefined;
  const [text, setText] = useState('');
  const [onlyNotebook, setOnlyNotebook] = useState(false);
  const [sort, setSort] = useSort();
  const [closed, toggle] = useClosedGroups();
  const { elapsed } = usePage();
  const only = onlyNotebook ? notebook : null;
  // Apart from the search, so that thousands of jobs aren't sorted again at each letter.
  const all = useMemo(() => ordered(jobs.values(), sort, elapsed), [jobs, sort, elapsed]);
  const groups = useMemo(
    () => grouped(all, { text, notebook: only }, sort),
    [all, text, only, sort]
  );
  const [unfolded, setUnfolded] = useState<ReadonlySet<string>>(NONE);
  const layout = useMemo(() => flatten(groups, closed, unfolded), [groups, closed, unfolded]);
  const listedJobs = useMemo(() => groups.flatMap(group => group.listed.flatMap(jobsOf)), [groups]);
  const ended = useMemo(() => listedJobs.filter(job => job.terminal), [listedJobs]);
  const goal = destination && !destination.met ? jobs.get(destination.id) : undefined;
  const hidden = goal ? groupIdOf(goal) : '';
  useEffect(() => {
    if (hidden) {
      setUnfolded(now => new Set([...now, hidden])); // else the job has no row to go to
    }
  }, [hidden]);
  const [picked, setPicked] = useState<ReadonlySet<string>>(NONE);
  const selected = useMemo(
    () => [...picked].flatMap(id => jobs.get(id) ?? []).sort((a, b) => a.created - b.created),
    [jobs, picked]
  );
  const view = useRef<HTMLDivElement>(null);
  const [returns, setReturns] = useState(0);
  useEffect(() => {
    if (returns > 0) {
      view.current?.querySelector<HTMLElement>('[role=treegrid]')?.focus();
    }
  }, [returns]);
  const toList = () => setReturns(now => now + 1); // the focus: the pressed button goes
  const showAll = () => {
    setText('');
    setOnlyNotebook(false);
    toList();
  };
  const clear = () => {
    setPicked(NONE);
    toList();
  };
  return (
    <div ref={view} className="jp-nbtorchjob-jobs-view">
      <Toolbar
        onlyNotebook={onlyNotebook}
        notebookOpen={notebook !== null}
        onOnlyNotebook={setOnlyNotebook}
        ended={ended}
      />
      {jobs.size > 0 && (
        <div className="jp-nbtorchjob-jobs-search">
          <SearchField text={text} count={listedJobs.length} onText={setText} />
          <SortField sort={sort} onSort={setSort} />
        </div>
      )}
      {failure && <Problem failure={failure} />}
      <Notes notes={notes} />
      {selected.length > 0 && <Selection selected={selected} onClear={clear} />}
      {listedJobs.length > 0 ? (
        // Another search or order starts at the top.
        <JobList
          key={`${only} ${sort} ${text}`}
          layout={layout}
          destination={destination}
          onToggle={row =>
            row.kind === 'group' ? toggle(row.key) : setUnfolded(now => toggled(now, row.key))
          }
          selected={picked}
          onSelect={setPicked}
        />
      ) : jobs.size > 0 ? (
        <NothingFound onClear={showAll} />
      ) : loaded ? (
        <NoJobs />
      ) : (
        !failure && <Loading />
      )}
      {browsed && (
        <FilesPane
          key={`${browsed.id} ${browsed.created}`}
          job={browsed}
          onClose={props.onBrowsed ?? (() => undefined)}
        />
      )}
    </div>
  );
}
