/** What the server says of jobs: its own words (`nbtorchjob/ui/record.py`), times in seconds. */

export interface Budget {
  readonly used: number;
  /** null: unlimited. */
  readonly limit: number | null;
}

export interface Progress {
  /** What is counted: "step", "epoch". */
  readonly unit: string;
  readonly done: number;
  readonly total: number | null;
  /** Seconds to go. */
  readonly left: number | null;
}

export type Phase = 'SUBMITTED' | 'PENDING' | 'RUNNING' | 'SUCCEEDED' | 'FAILED' | 'CANCELLED';

export interface Job {
  /** `local:NAME` or `kubernetes:CONTEXT/NAMESPACE/NAME`. */
  readonly id: string;
  readonly name: string;
  /** What runs, in a few words: "cell", "train(lr=0.1)". */
  readonly label: string;
  readonly backend: string;
  readonly where: string;
  readonly phase: Phase;
  /** The phase in the word that a card shows: also "CANCELLING", "SUSPENDED". */
  readonly status: string;
  readonly terminal: boolean;
  /** The notebook's path for the contents manager, "" where it isn't below the server's root. */
  readonly notebook: string;
  /** The id of the cell that submitted it, or "". */
  readonly cell: string;
  /** Seconds since the epoch. */
  readonly created: number;
  readonly ended: number | null;
  readonly elapsed: number;
  readonly nodes: { readonly asked: readonly [number, number]; readonly now: number };
  readonly nproc_per_node: number;
  readonly attempts: number;
  readonly restarts: { readonly used: number; readonly limit: number };
  readonly budgets: Readonly<Record<string, Budget>>;
  /** Why it waits, a line each. */
  readonly pending: readonly string[];
  /** The first failure in a line. */
  readonly failure: string | null;
  readonly progress: Progress | null;
}
