/** The server's records of jobs. Made from its schema (`nbtorchjob/frontends/server/routes/__init__.py`) by a test. */

export type Phase = 'SUBMITTED' | 'PENDING' | 'RUNNING' | 'SUCCEEDED' | 'FAILED' | 'CANCELLED';

export type Change = 'stacks' | 'cancel' | 'suspend' | 'resume' | 'start' | 'end';

export interface Budget {
  readonly used: number;
  /** null: unlimited */
  readonly limit: number | null;
}

export interface Progress {
  /** what is counted: "step", "epoch", "percent" */
  readonly unit: string;
  readonly done: number;
  readonly total: number | null;
  /** seconds to go */
  readonly left: number | null;
}

export interface Still {
  /** seconds since the epoch: when it was last heard from */
  readonly since: number;
  /** what is overdue: "step", "epoch", "report"; null: it never reported any */
  readonly unit: string | null;
  /** the usual seconds for one */
  readonly usual: number | null;
}

export interface Strip {
  readonly of: 'CPU' | 'memory' | 'GPU';
  /** the newest, in words: "7.2 of 8 GB" */
  readonly newest: string;
  /** shares of the whole, from 0 to 1, oldest first */
  readonly parts: readonly number[];
}

export interface Use {
  readonly node: number;
  readonly strips: readonly Strip[];
}

export interface Lab {
  /** in a few words: "idle", "runs cell 4"; "" if it is starting or has ended */
  readonly doing: string;
  /** seconds since the epoch: unused since then */
  readonly since: number | null;
  /** seconds since the epoch: when it ends if it stays unused */
  readonly ends: number | null;
  /** bytes that its ranks hold, as far as is known */
  readonly memory: number;
  /** how many it has accepted */
  readonly cells: number;
  /** why it has ended: "asked", "idle" */
  readonly ended: string | null;
}

export interface Job {
  /** local:NAME or kubernetes:CONTEXT/NAMESPACE/NAME */
  readonly id: string;
  readonly name: string;
  /** what runs, in a few words: "cell", "train(lr=0.1)" */
  readonly label: string;
  readonly backend: 'local' | 'kubernetes';
  readonly where: string;
  readonly phase: Phase;
  /** the phase as a card shows it: also "QUEUED", "CANCELLING", "SUSPENDED", "STOPPED", "DELETED", and if a user should act "HUNG", "STALLED", "LEAVING", "DEBUGGING", "RETRYING", "WAITING" */
  readonly status: string;
  readonly terminal: boolean;
  /** the path for the contents API, "" where it isn't below the server's root */
  readonly notebook: string;
  /** the id of the cell that submitted it, or "" */
  readonly cell: string;
  /** seconds since the epoch */
  readonly created: number;
  /** when its first node started, in seconds since the epoch */
  readonly started: number | null;
  /** seconds since the epoch */
  readonly ended: number | null;
  /** seconds */
  readonly elapsed: number;
  /** asked: the fewest and the most */
  readonly nodes: { readonly asked: readonly [number, number]; readonly now: number };
  readonly nproc_per_node: number;
  readonly attempts: number;
  readonly restarts: { readonly used: number; readonly limit: number };
  readonly budgets: Readonly<Record<string, Budget>>;
  /** whether it is a lab: its ranks stay, and run further cells */
  readonly kept: boolean;
  /** null of a job that isn't kept */
  readonly lab: Lab | null;
  /** the lab whose cells it runs once more, or "" */
  readonly promoted: string;
  /** one line, by a person */
  readonly note: string;
  /** by a person */
  readonly tags: readonly string[];
  /** the name that it has in common with other runs, or "" */
  readonly group: string;
  /** its place in the group, from 1; 0 of a job in none */
  readonly run: number;
  /** why it waits, a line each */
  readonly pending: readonly string[];
  /** the first failure in one line */
  readonly failure: string | null;
  /** null where nothing was reported or the logs weren't read */
  readonly progress: Progress | null;
  /** its newest ones in words, at most a few: "loss 0.41" */
  readonly metrics: readonly string[];
  /** null unless it runs and has been silent for longer than usual */
  readonly still: Still | null;
  /** files that its ranks left; null where that isn't known */
  readonly artifacts: number | null;
  /** whether it left a checkpoint; null where that isn't known */
  readonly resumable: boolean | null;
  /** whether TensorBoard has something to show; null as above */
  readonly curves: boolean | null;
  /** of its first nodes, while it runs, as far as measured */
  readonly uses: readonly Use[];
}

export interface Jobs {
  /** oldest first; only those that are new or changed, if it isn't whole */
  readonly jobs: readonly Job[];
  /** ids of jobs that are gone */
  readonly removed: readonly string[];
  /** whether there are no other jobs */
  readonly whole: boolean;
  /** stands for this answer: pass it as `known` the next time */
  readonly mark: string;
  /** why some may be missing */
  readonly notes: readonly string[];
  /** prefixes of the ids of jobs that may be missing or outdated */
  readonly unseen: readonly string[];
}

export interface Artifact {
  /** relative */
  readonly path: string;
  /** bytes */
  readonly size: number;
  readonly node: number;
  readonly attempt: number;
}

export interface Artifacts {
  /** by path */
  readonly artifacts: readonly Artifact[];
}

export interface Value {
  readonly name: string;
  /** as Python writes it: 0.001, 'adam' */
  readonly value: string;
}

export interface Values {
  readonly values: readonly Value[];
}

export interface Note {
  readonly note: string;
  readonly tags: readonly string[];
}

export interface RunFile {
  /** artifacts/… or checkpoints/… */
  readonly path: string;
  /** bytes */
  readonly size: number;
  /** seconds since the epoch */
  readonly modified: number;
  readonly node: number;
}

export interface Files {
  /** by path and node */
  readonly files: readonly RunFile[];
  /** which nodes are missing, and why */
  readonly trouble: readonly string[];
  /** whether there are more files than are listed */
  readonly more: boolean;
}

export interface Chart {
  /** an image, for the page's colour scheme */
  readonly svg: string;
  /** its alternative text */
  readonly title: string;
  /** pixels */
  readonly width: number;
  /** pixels */
  readonly height: number;
}

export interface Part {
  readonly title: string;
  /** the table's; empty where its first column says what a row is */
  readonly head: readonly string[];
  readonly rows: readonly (readonly string[])[];
  /** sentences */
  readonly said: readonly string[];
  /** lines, as they were written */
  readonly wrote: readonly string[];
  /** spans: a kind to be coloured by, or "", and the text */
  readonly code: readonly (readonly [string, string])[];
  readonly charts: readonly Chart[];
}

export interface Page {
  readonly heading: string;
  readonly parts: readonly Part[];
}
