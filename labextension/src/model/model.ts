/** The jobs as this page knows them: one list from the server, then what is new whenever it says so. */

import type { Event } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';
import { Poll } from '@lumino/polling';
import { type ISignal, Signal } from '@lumino/signaling';

import { applied, endedBetween, isChange, stalledBetween } from './changes';
import { type Client, RequestError } from './client';
import type { Job, Jobs } from './record';
import { underWay } from './summary';

const CALM_MS = 60_000; // events tell of changes: this only finds what was lost on the way
const BUSY_MS = 10_000; // while a job runs: a socket of events that broke doesn't say what it missed
const FIRST_RETRY_MS = 5_000;
const LAST_RETRY_MS = 30_000;
// A connection that a sleep or a tunnel has cut gives no answer, for minutes; all that comes later would wait.
// The server itself always answers within 55 s (`TorchJobApp.patience_s`).
const ANSWER_MS = 60_000;
const GATHER_MS = 250;

export interface JobsModelOptions {
  readonly client: Pick<Client, 'jobs'>;
  /** The server's events: `app.serviceManager.events.stream`. */
  readonly events: ISignal<unknown, Event.Emission>;
  /** Others can't reach the server: `app.serviceManager.connectionFailure`. */
  readonly lost?: ISignal<unknown, Error>;
  /** Milliseconds; only differences count. */
  readonly now?: () => number;
}

/** What this page knows of all jobs. */
export class JobsModel implements IDisposable {
  constructor({ client, events, lost, now = () => Date.now() }: JobsModelOptions) {
    this.client = client;
    this.events = events;
    this.lost = lost;
    this.now = now;
    this.poll = new Poll({
      auto: false,
      factory: () => this.refresh(),
      frequency: { backoff: false, interval: CALM_MS, max: CALM_MS },
      name: 'nbtorchjob:jobs',
      standby: 'when-hidden'
    });
    events.connect(this.onEvent, this);
    lost?.connect(this.onLost, this);
    document.addEventListener('visibilitychange', this.onVisible);
    this.ready = this.refresh();
  }

  /** Settled once the first answer is there, a good one or not. */
  readonly ready: Promise<void>;

  /** Something about the model has changed; told a few times a second at most. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** A job that was seen before its end has ended. */
  get finished(): ISignal<this, Job> {
    return this._finished;
  }

  /** A job that was seen before has stopped reporting, or hangs. */
  get stalled(): ISignal<this, Job> {
    return this._stalled;
  }

  /** By id, in the order in which they were made. Another map after each change. */
  get jobs(): ReadonlyMap<string, Job> {
    return this._jobs;
  }

  /** Why some jobs may be missing, a line each. */
  get notes(): readonly string[] {
    return this._notes;
  }

  /** Whether a job that counts as under way may have ended: its place or the server doesn't answer. */
  get doubtful(): boolean {
    const remote = underWay(this._jobs.values()).some(job => job.backend !== 'local');
    return this._failure !== null || (this._notes.length > 0 && remote);
  }

  /** Why the list isn't up to date; null when it is. */
  get failure(): RequestError | null {
    return this._failure;
  }

  get error(): string | null {
    return this._failure?.message ?? null;
  }

  /** Whether the server has ever given the list. */
  get loaded(): boolean {
    return this._loaded;
  }

  get isDisposed(): boolean {
    return this.poll.isDisposed;
  }

  /** Seconds since a job was submitted, now or at its end; stands still while the server is silent. */
  elapsed(job: Job): number {
    const now = this.silent ?? this.now();
    const since = job.terminal ? 0 : (now - (this.received.get(job) ?? now)) / 1000;
    return job.elapsed + Math.max(0, since);
  }

  /** Asks for what isn't known yet; never rejects, see {@link failure}. */
  refresh(): Promise<void> {
    // One request at a time and one that waits: the answer is newer than the question.
    this.waiting ??= this.flight.then(() => {
      this.waiting = null;
      return (this.flight = this.fetch());
    });
    return this.waiting;
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this.poll.dispose();
    this.events.disconnect(this.onEvent, this);
    this.lost?.disconnect(this.onLost, this);
    document.removeEventListener('visibilitychange', this.onVisible);
    clearTimeout(this.announcing);
    Signal.clearData(this);
  }

  private async fetch(): Promise<void> {
    if (this.isDisposed) {
      return;
    }
    const control = new AbortController();
    const alarm = setTimeout(() => control.abort(), ANSWER_MS);
    try {
      this.take(await this.client.jobs(this.mark, control.signal));
      this._failure = this.silent = null;
    } catch (error) {
      const known = error instanceof RequestError;
      this._failure = known ? error : new RequestError(0, String(error));
      this.silent ??= this.now();
    } finally {
      clearTimeout(alarm);
    }
    this.comeAgain();
    this.announce();
  }

  private take(listing: Jobs): void {
    this.become(applied(this._jobs, listing));
    // A server that has just started can't say later which of those that it hasn't seen are gone.
    this.mark = listing.whole && listing.unseen.length > 0 ? '' : listing.mark;
    this._notes = listing.notes;
    this._loaded = true;
  }

  /** Looks again soon while something is missing, and less and less often. */
  private comeAgain(): void {
    const interval = this.missing ? this.retry : this.patience;
    this.retry = this.missing ? Math.min(2 * this.retry, LAST_RETRY_MS) : FIRST_RETRY_MS;
    this.poll.frequency = { backoff: false, interval, max: CALM_MS };
    void this.poll.schedule();
  }

  private get missing(): boolean {
    return this._failure !== null || this._notes.length > 0;
  }

  /** How many milliseconds without an event are as they should be. */
  private get patience(): number {
    return underWay(this._jobs.values()).length > 0 ? BUSY_MS : CALM_MS;
  }

  private onEvent(_: unknown, emission: Event.Emission): void {
    // Whatever comes, the server is there again, and has told others what this page missed.
    if (isChange(emission) || this._failure) {
      void this.refresh();
    }
  }

  private onLost(): void {
    void this.refresh();
  }

  /** A page that slept may have missed events without its socket's end. */
  private readonly onVisible = (): void => {
    if (!document.hidden) {
      void this.refresh();
    }
  };

  private become(jobs: ReadonlyMap<string, Job>): void {
    const before = this._jobs;
    this._jobs = jobs;
    for (const job of jobs.values()) {
      if (!this.received.has(job)) {
        this.received.set(job, this.now());
      }
    }
    for (const job of endedBetween(before, jobs)) {
      this._finished.emit(job);
    }
    for (const job of stalledBetween(before, jobs)) {
      this._stalled.emit(job);
    }
  }

  private announce(): void {
    this.announcing ??= setTimeout(() => {
      this.announcing = undefined;
      this._changed.emit();
    }, GATHER_MS);
  }

  private readonly client: Pick<Client, 'jobs'>;
  private readonly events: ISignal<unknown, Event.Emission>;
  private readonly lost: ISignal<unknown, Error> | undefined;
  private readonly now: () => number;
  private readonly poll: Poll<void>;
  private readonly received = new WeakMap<Job, number>();
  private readonly _changed = new Signal<this, void>(this);
  private readonly _finished = new Signal<this, Job>(this);
  private readonly _stalled = new Signal<this, Job>(this);
  private _jobs: ReadonlyMap<string, Job> = new Map();
  private _notes: readonly string[] = [];
  private _failure: RequestError | null = null;
  private _loaded = false;
  /** Since when the server doesn't answer; null: it does. */
  private silent: number | null = null;
  private flight: Promise<void> = Promise.resolve();
  private waiting: Promise<void> | null = null;
  /** What the newest answer told; '': nothing is known. */
  private mark = '';
  private retry = FIRST_RETRY_MS;
  private announcing: ReturnType<typeof setTimeout> | undefined;
}
