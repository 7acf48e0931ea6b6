/** Messages that take the list's place or appear above it. */

import type { RequestError } from '../model/client';

import { usePage } from './context';

/** No job was ever submitted, or all were deleted. */
export function NoJobs() {
  const { offers, start, trans } = usePage();
  return (
    <div className="jp-nbtorchjob-jobs-message">
      <p>{trans.__('No torch jobs yet.')}</p>
      <p>
        {trans.__('In a notebook, load the extension once, then start a cell with the last line:')}
      </p>
      <pre tabIndex={0}>{'%load_ext nbtorchjob\n%%torchjob'}</pre>
      {offers('runCell') && (
        <button className="jp-nbtorchjob-jobs-button" onClick={() => start('runCell')}>
          {trans.__('Run cell as torch job')}
        </button>
      )}
    </div>
  );
}

/** There are jobs, but none matches the search. */
export function NothingFound({ onClear }: { onClear: () => void }) {
  const { trans } = usePage();
  return (
    <div className="jp-nbtorchjob-jobs-message">
      <p>{trans.__('No matching jobs.')}</p>
      <button className="jp-nbtorchjob-jobs-button" onClick={onClear}>
        {trans.__('Show all jobs')}
      </button>
    </div>
  );
}

export function Loading() {
  const { trans } = usePage();
  return <div className="jp-nbtorchjob-jobs-message">{trans.__('Loading jobs…')}</div>;
}

/** The list couldn't be loaded: why, and a button that tries again. */
export function Problem({ failure }: { failure: RequestError }) {
  const { refresh, trans } = usePage();
  const texts: Record<number, string> = {
    0: trans.__("The Jupyter server isn't responding; retrying automatically."),
    403: trans.__("You aren't allowed to see jobs on this Jupyter server."),
    404: trans.__(
      "This Jupyter server doesn't have nbtorchjob installed: run %1 there, then restart it.",
      "pip install 'nbtorchjob[server]'"
    )
  };
  return (
    <div className="jp-nbtorchjob-jobs-problem" role="alert">
      <span title={failure.message}>{texts[failure.status] ?? failure.message}</span>
      <button className="jp-nbtorchjob-jobs-button" onClick={refresh}>
        {trans.__('Retry')}
      </button>
    </div>
  );
}

/** Places whose jobs are missing from the list. */
export function Notes({ notes }: { notes: readonly string[] }) {
  const { trans } = usePage();
  if (notes.length === 0) {
    return null;
  }
  return (
    <details className="jp-nbtorchjob-jobs-notes">
      <summary>
        {trans._n(
          "Couldn't list the jobs in %1 place",
          "Couldn't list the jobs in %1 places",
          notes.length
        )}
      </summary>
      <ul>
        {notes.map(note => (
          <li key={note}>{note}</li>
        ))}
      </ul>
    </details>
  );
}
