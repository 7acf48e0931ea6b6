/** The jobs as this page knows them: one list from the server, then updates whenever it announces any. */

import type { Event } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';
import { Poll } from '@lumino/polling';
import { type ISignal, Signal } from '@lumino/signaling';

import { applied, endedBetween, isChange, stalledBetween } from './changes';
import { type Client, RequestError } from './client';
import type { Job, Jobs } from './record';
import { underWay } from './summary';

const CALM_MS = 60_000; // events announce changes: this only finds those that were lost
const BUSY_MS = 10_000; // while a job is under way: an event socket that broke doesn't report what it missed
const FIRST_RETRY_MS = 5_000;
const LAST_RETRY_MS = 30_000;
// A connection that was cut, by sleep or by a tunnel, may hang for minutes, and later requests would wait.
// The server itself always answers within 55 s (`TorchJobApp.patience_s`).
const ANSWER_MS = 60_000;
const GATHER_MS = 250;

export interface JobsModelOptions {
  readonly client: Pick<Client, 'jobs'>;
  /** The server's events: `app.serviceManager.events.stream`. */
  readonly events: ISignal<unknown, Event.Emission>;
  /** Other requests can't reach the server: `app.serviceManager.connectionFailure`. */
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

  /** Settles once the first request has succeeded or failed. */
  readonly ready: Promise<void>;

  /** Something in the model has changed; emitted a few times a second at most. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** A job that the page knew before its end has ended. */
  get finished(): ISignal<this, Job> {
    return this._finished;
  }

  /** A job that the page knew before has stopped reporting, or hangs. */
  get stalled(): ISignal<this, Job> {
    return this._stalled;
  }

  /** By id, in the order in which they were created. A new map after each change. */
  get jobs(): ReadonlyMap<string, Job> {
    return this._jobs;
  }

  /** Why some jobs may be missing, one reason per line. */
  get notes(): readonly string[] {
    return this._notes;
  }

  /** Whether a job shown as under way may have ended, as its place or the server doesn't answer. */
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

  /** Seconds from a job's submission to now or to its end; doesn't grow while the server is silent. */
  elapsed(job: Job): number {
    const now = this.silent ?? this.now();
    const since = job.terminal ? 0 : (now - (this.received.get(job) ?? now)) / 1000;
    return job.elapsed + Math.max(0, since);
  }

  /** Asks for what is new; never rejects, see {@link failure}. */
  refresh(): Promise<void> {
    // One request at a time and one that waits: each caller gets an answer to a request made after its call.
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
      const isRequestError = error instanceof RequestError;
      this._failure = isRequestError ? error : new RequestError(0, String(error));
      this.silent ??= this.now();
    } finally {
      clearTimeout(alarm);
    }
    this.comeAgain();
    this.announce();
  }

  private take(listing: Jobs): void {
    this.become(applied(this._jobs, listing));
    // A server that has just started can't report later which of the jobs it hasn't seen yet are gone.
    this.mark = listing.whole && listing.unseen.length > 0 ? '' : listing.mark;
    this._notes = listing.notes;
    this._loaded = true;
  }

  /** Asks again soon while something is missing, at growing intervals. */
  private comeAgain(): void {
    const interval = this.missing ? this.retry : this.patience;
    this.retry = this.missing ? Math.min(2 * this.retry, LAST_RETRY_MS) : FIRST_RETRY_MS;
    this.poll.frequency = { backoff: false, interval, max: CALM_MS };
    void this.poll.schedule();
  }

  private get missing(): boolean {
    return this._failure !== null || this._notes.length > 0;
  }

  /** How many milliseconds may pass without an event before it asks anyway. */
  private get patience(): number {
    return underWay(this._jobs.values()).length > 0 ? BUSY_MS : CALM_MS;
  }

  private onEvent(_: unknown, emission: Event.Emission): void {
    // Any event shows that the server is back; it may have announced changes that this page missed.
    if (isChange(emission) || this._failure) {
      void this.refresh();
    }
  }

  private onLost(): void {
    void this.refresh();
  }

  /** A page that slept may have missed events although its socket never closed. */
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
  /** Since when the server hasn't answered; null: it does. */
  private silent: number | null = null;
  private flight: Promise<void> = Promise.resolve();
  private waiting: Promise<void> | null = null;
  /** The mark of the newest answer, which limits the next one to changes; '': asks for all jobs. */
  private mark = '';
  private retry = FIRST_RETRY_MS;
  private announcing: ReturnType<typeof setTimeout> | undefined;
}
