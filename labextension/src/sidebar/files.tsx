/** Below the list: the files that a job's ranks have written, as a tree. */

import {
  type KeyboardEvent,
  useCallback,
  useEffect,
  useId,
  useMemo,
  useRef,
  useState
} from 'react';

import { sizeOf } from '../files/shown';
import { type Branch, type TreeRow, isOneOfSeveral, keyed, rowsOf, treeOf } from '../files/tree';
import type { Files, Job } from '../model/record';

import { usePage } from './context';
import { ago } from './list/words';
import { toggled } from './list/selecting';
import { IconButton } from './toolbar';

const EACH_MS = { local: 10_000, kubernetes: 30_000 }; // each request goes to all nodes
const MOST_ROWS = 2000; // rendered at once
const NONE: ReadonlySet<string> = new Set();

interface FilesPaneProps {
  readonly job: Job;
  readonly onClose: () => void;
}

export function FilesPane({ job, onClose }: FilesPaneProps) {
  const { trans } = usePage();
  const { files, note, refresh } = useFiles(job);
  const [closed, setClosed] = useState<ReadonlySet<string>>(NONE);
  const tree = useMemo(() => treeOf(files?.files ?? []), [files]);
  const rows = useMemo(() => rowsOf(tree, closed), [tree, closed]);
  const title = trans.__('Files of %1', job.name);
  const toggle = (branch: Branch) => setClosed(now => toggled(now, branch.key));
  return (
    <section className="jp-nbtorchjob-files" aria-label={title}>
      <div className="jp-nbtorchjob-jobs-toolbar">
        <h2 title={title}>{title}</h2>
        <IconButton icon="refresh" label={trans.__('Refresh the files')} onClick={refresh} />
        <IconButton icon="clear" label={trans.__('Close the files')} onClick={onClose} />
      </div>
      {note && (
        <p className="jp-nbtorchjob-files-note" role="status">
          {note}
        </p>
      )}
      {files?.trouble.map(line => (
        <p key={line} className="jp-nbtorchjob-files-note">
          {line}
        </p>
      ))}
      {rows.length > 0 && (
        <Tree
          job={job}
          rows={rows.slice(0, MOST_ROWS)}
          title={title}
          onToggle={toggle}
          onClose={onClose}
        />
      )}
      {files && (files.more || rows.length > MOST_ROWS) && (
        <p className="jp-nbtorchjob-files-note">{trans.__('Not all files are shown.')}</p>
      )}
    </section>
  );
}

/** Asks for a job's files, again and again until it has ended; if that fails, the last ones stay. */
function useFiles(job: Job) {
  const { files: ask, trans } = usePage();
  const [files, setFiles] = useState<Files | null>(null);
  const [note, setNote] = useState(trans.__('Loading…'));
  const { backend, created, id, terminal } = job;
  const isMounted = useRef(true);
  const turns = useRef({ newest: 0, shown: 0 });
  const refresh = useCallback(() => {
    const turn = ++turns.current.newest;
    const tell = (listing: Files | null, why: string) => {
      // An answer from before the job's end may come after the one from after it.
      if (isMounted.current && turn > turns.current.shown) {
        turns.current.shown = turn;
        setFiles(now => listing ?? now);
        setNote(why);
      }
    };
    ask({ id, created })
      .then(listing => tell(listing, listing.files.length === 0 ? trans.__('No files yet.') : ''))
      .catch((error: unknown) =>
        tell(null, error instanceof Error ? error.message : String(error))
      );
  }, [ask, created, id, trans]);
  useEffect(() => {
    isMounted.current = true;
    refresh();
    const again = () => document.hidden || refresh(); // on a cluster it is a request to each pod
    const alarm = terminal ? undefined : setInterval(again, EACH_MS[backend]);
    return () => {
      isMounted.current = false;
      clearInterval(alarm);
    };
  }, [backend, refresh, terminal]);
  return { files, note, refresh };
}

interface TreeProps {
  readonly job: Job;
  readonly rows: readonly TreeRow[];
  readonly title: string;
  readonly onToggle: (branch: Branch) => void;
  readonly onClose: () => void;
}

function Tree({ job, rows, title, onToggle, onClose }: TreeProps) {
  const { openFile } = usePage();
  const [spot, setSpot] = useState('');
  const view = useRef<HTMLDivElement>(null);
  const prefix = useId();
  const active = Math.max(
    0,
    rows.findIndex(({ branch }) => branch.key === spot)
  );
  useEffect(() => view.current?.focus({ preventScroll: true }), []); // the user has just opened it
  const act = ({ branch }: TreeRow) =>
    branch.file ? openFile(job, branch.file) : onToggle(branch);
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    const meant = event.key === 'Escape' ? 'close' : keyed(event.key, rows, active);
    const row = rows[active];
    if (meant === null || !row) {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
    if (meant === 'close') {
      onClose();
    } else if (typeof meant === 'object') {
      setSpot(rows[meant.to]?.branch.key ?? '');
      view.current?.children[meant.to]?.scrollIntoView({ block: 'nearest' });
    } else {
      act(row);
    }
  };
  return (
    <div
      ref={view}
      className="jp-nbtorchjob-files-tree"
      role="tree"
      aria-label={title}
      aria-activedescendant={prefix + String(active)}
      tabIndex={0}
      onKeyDown={onKeyDown}
    >
      {rows.map((row, index) => (
        <Row
          key={row.branch.key}
          id={prefix + String(index)}
          row={row}
          active={index === active}
          onClick={() => {
            setSpot(row.branch.key);
            act(row);
          }}
        />
      ))}
    </div>
  );
}

interface RowProps {
  readonly id: string;
  readonly row: TreeRow;
  readonly active: boolean;
  readonly onClick: () => void;
}

function Row({ id, row, active, onClick }: RowProps) {
  const { icon, trans } = usePage();
  const { branch, level, open, position, size } = row;
  const { file, name } = branch;
  const node = file && isOneOfSeveral(branch) ? trans.__('node %1', file.node) : '';
  const age = file && ago(Date.now() / 1000 - file.modified, trans);
  return (
    <div
      id={id}
      className="jp-nbtorchjob-files-row"
      role="treeitem"
      aria-level={level}
      aria-posinset={position}
      aria-setsize={size}
      aria-expanded={file ? undefined : open}
      aria-selected={active}
      data-active={active || undefined}
      style={{ paddingLeft: 4 + 14 * (level - 1) }}
      title={file ? `${file.path}\n${trans.__('node %1', file.node)} · ${age ?? ''}` : branch.key}
      onClick={onClick}
    >
      <span className="jp-nbtorchjob-jobs-caret" aria-hidden>
        {!file && icon(open ? 'open' : 'closed')}
      </span>
      <span className="jp-nbtorchjob-files-name">{name}</span>
      {node && <span className="jp-nbtorchjob-files-size">{node}</span>}
      {file && <span className="jp-nbtorchjob-files-size">{sizeOf(file.size, trans)}</span>}
    </div>
  );
}
