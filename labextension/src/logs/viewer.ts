import type { TranslationBundle } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import { jobIn } from '../model/changes';
import { type Meant, isMeant } from '../model/client';
import type { JobsModel } from '../model/model';
import type { Job } from '../model/record';

import { Finder } from './controls/finder';
import { Headline } from './controls/headline';
import { keys } from './controls/keys';
import { Toolbar } from './controls/toolbar';
import type { RankLog } from './lines/ranklog';
import type { Row } from './lines/rows';
import { LogStore } from './lines/store';
import { type Connection, type Failed, LogStream, type Source } from './stream';
import { Level } from './text/levels';
import { Columns, type View } from './view/columns';
import { copied } from './view/copied';
import { CSS } from './view/dom';

/** What the viewer requests from the server. */
export interface LogClient extends Source {
  logUrl(job: Meant, rank: number): string;
  archiveUrl(job: Meant, times: boolean): string;
}

export interface LogViewerOptions {
  readonly client: LogClient;
  readonly job: Pick<Job, 'id' | 'name' | 'created'>;
  readonly trans: TranslationBundle;
  /** Knows the job even if its logs are unavailable. */
  readonly model?: Pick<JobsModel, 'jobs' | 'notes' | 'changed' | 'elapsed' | 'refresh'>;
  /** Whether the view opens at the line where the job failed, if it has. */
  readonly openAtFailure?: boolean;
  /** Copies text to the clipboard, and shows `message` to the user. */
  readonly copy?: (text: string, message: string) => void;
  /** A link that opens this log at a line, counted from 1. */
  readonly link?: (rank: number, line: number) => string;
  /** Cancels the job, or runs it again. */
  readonly act?: (verb: 'cancel' | 'retry') => void;
}

// If a job has more ranks than this, only some are read at first: a rank's log may have gigabytes.
const FEW = 16;
const FIRST = 8;
// Milliseconds after which lines are shown even if earlier output hasn't arrived yet.
const PATIENCE = 3000;
// Milliseconds per frame that filters and searches may take.
const BUDGET = 8;
// Milliseconds between redraws of the end of a log that is still loading.
const SELDOM = 250;

/** A line to go to. */
interface Wanted {
  readonly rank: number;
  /** Counted from 0. */
  readonly line: (log: RankLog) => number;
  /** Whether the user named the line, and so is told if it doesn't exist. */
  readonly named: boolean;
}

/** The logs of a job's ranks, while it runs and after. */
export class LogViewer extends Widget {
  private readonly store = new LogStore();
  private readonly stream: LogStream;
  private readonly headline: Headline;
  private readonly toolbar: Toolbar;
  private readonly finder: Finder;
  private readonly columns: Columns;
  private view: View = {
    merged: true,
    chosen: null,
    level: Level.debug,
    filter: '',
    fold: false,
    wrap: false,
    times: 'none'
  };
  private connection: Connection['is'] = 'connecting';
  private world = 0;
  /** The ranks whose logs are read; null: all. */
  private read: ReadonlySet<number> | null = null;
  /** Whether all that was written before the stream was opened has arrived. */
  private whole = false;
  private failed: Failed | null = null;
  private isKnown = false;
  private listed = false;
  /** Whether the view goes to the failure as its rank's log comes in. */
  private seeking: boolean;
  private sought = 0;
  /** The line that the view goes to once it has arrived. */
  private target: Wanted | null = null;
  private frame = 0;
  /** When a loading log was last drawn, and whether filters and searches have examined all rows. */
  private drawn = -Infinity;
  private done = true;
  private waiting: ReturnType<typeof setTimeout> | undefined;
  private clock: ReturnType<typeof setInterval> | undefined;

  constructor(private readonly options: LogViewerOptions) {
    super();
    const { client, job, trans, model } = options;
    const url = (rank: number) => client.logUrl(job, rank);
    this.seeking = options.openAtFailure ?? false;
    this.stream = new LogStream(client, job, {
      wrote: chunk => {
        this.store.write(chunk);
        this.schedule();
      },
      knows: (record, failed) => this.knows(record, failed),
      connected: connection => this.connected(connection),
      loaded: () => {
        this.whole = true;
        this.schedule();
      }
    });
    const [changed, nothing] = [() => this.schedule(), () => this.nothing()];
    this.columns = new Columns({ store: this.store, trans, url, changed, nothing });
    this.headline = new Headline({
      name: job.name,
      trans,
      toFailure: () => this.toFailure(),
      act: options.act
    });
    this.finder = new Finder({
      trans,
      columns: this.columns,
      closed: () => this.columns.focus()
    });
    this.toolbar = new Toolbar({
      trans,
      url,
      changed: change => this.change(change),
      archive: times => client.archiveUrl(job, times),
      follow: on => this.follow(on),
      search: () => this.finder.open(),
      copy: () => this.copy(),
      copyLink: () => this.copyLink()
    });
    this.addClass(`${CSS}-viewer`);
    this.node.append(this.headline.node, this.toolbar.node, this.finder.node, this.columns.node);
    const [copy, copyLink] = [() => this.copy(), () => this.copyLink()];
    const { columns, finder } = this;
    this.node.addEventListener('keydown', event =>
      keys(event, { columns, finder, copy, copyLink })
    );
    for (const moved of ['wheel', 'pointerdown', 'keydown'] as const) {
      this.columns.node.addEventListener(moved, () => this.moved(), { passive: true });
    }
    model?.changed.connect(this.remembered, this);
    this.remembered();
    this.arrange();
  }

  /** Whether these are the job's logs, and not those of a deleted job of the same name. */
  shows(job: Meant): boolean {
    return isMeant(this.options.job, job);
  }

  /** Goes to a line of a rank's log, counted from 1, now or once it arrives; tells the user if there is none. */
  goTo(rank: number, line: number): void {
    this.moved();
    this.target = { rank, line: () => Math.max(0, line - 1), named: true };
    this.schedule();
  }

  override dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this.options.model?.changed.disconnect(this.remembered, this);
    this.stream.dispose();
    this.columns.dispose();
    cancelAnimationFrame(this.frame);
    clearInterval(this.clock);
    clearTimeout(this.waiting);
    super.dispose();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    if (!this.clock) {
      this.clock = setInterval(() => this.isVisible && this.headline.tick(), 1000);
      this.stream.open(null);
      this.columns.node.dataset['waits'] = 'true';
      this.waiting = setTimeout(() => {
        this.unveil();
        this.schedule();
      }, PATIENCE);
    }
    this.schedule();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.schedule();
  }

  protected override onActivateRequest(): void {
    this.columns.focus();
    if (this.connection === 'refused') {
      this.reopen();
    }
  }

  private get ranks(): number[] {
    const ranks = Array.from({ length: this.world }, (_, rank) => rank);
    return [...ranks, ...this.store.ranks.filter(rank => rank >= this.world)];
  }

  private knows(job: Job, failed: Failed | null): void {
    if (!this.shows(job)) {
      this.stream.dispose(); // the connection was lost, and meanwhile another job got the name
      this.deleted();
      return;
    }
    this.failed = failed;
    // The stream reports the end after the whole log: the model may know earlier how the job ended.
    const listed = this.options.model && jobIn(this.options.model.jobs, job);
    this.headline.tell(listed?.terminal ? listed : job, failed !== null);
    this.world = job.nodes.asked[1] * job.nproc_per_node;
    // The first record of a failed job may come before the one that says where it failed.
    const early = this.seeking && !failed && !job.terminal;
    if (!this.isKnown && !early) {
      this.isKnown = true;
      this.first(failed);
    }
    this.schedule();
  }

  /** Chooses what is read and shown at first, now that the job's size is known. */
  private first(failed: Failed | null): void {
    const some = new Set(this.ranks.slice(0, FIRST));
    const named = [failed?.rank, this.target?.rank];
    this.ranks.filter(rank => named.includes(rank)).forEach(rank => some.add(rank));
    this.seeking &&= failed !== null;
    if (this.seeking && failed) {
      this.change({ merged: this.world === 1, chosen: this.only(failed.rank) });
    } else if (this.world > FEW) {
      this.change({ chosen: some });
    }
    if (this.world > FEW) {
      this.reads(some);
    }
  }

  private only(rank: number): ReadonlySet<number> | null {
    return this.world === 1 ? null : new Set([rank]);
  }

  private connected(connection: Connection): void {
    if (this.connection === 'connecting' && connection.is === 'open') {
      void this.options.model?.refresh(); // the model may still be waiting for the server to come back
    }
    this.connection = connection.is;
    if (connection.is === 'ended') {
      this.store.end();
    }
    this.headline.connected(connection);
    this.schedule();
  }

  /** Shows the model's record if the job has ended or the stream isn't connected; notices a deletion. */
  private remembered(): void {
    const { model, job } = this.options;
    const record = model && jobIn(model.jobs, job);
    const upToDate = this.connection === 'open' || this.connection === 'ended';
    if (record && (record.terminal || !upToDate)) {
      this.headline.tell(record, this.failed !== null, model.elapsed(record));
    }
    if (this.listed && !record && !model?.notes.length) {
      this.deleted();
    }
    this.listed = record !== undefined || this.listed;
  }

  /** Stops offering links: they name the job, and another one may have its name. */
  private deleted(): void {
    this.headline.gone();
    this.node.dataset['deleted'] = 'true';
    this.schedule();
  }

  private get linked(): boolean {
    return this.node.dataset['deleted'] === undefined;
  }

  private change(change: Partial<View>): void {
    this.view = { ...this.view, ...change };
    this.readMore();
    this.arrange();
    this.schedule();
  }

  /** Reads the chosen ranks that aren't read yet. */
  private readMore(): void {
    const { read } = this;
    const ranks = [...(this.view.chosen ?? this.ranks)];
    if (read && ranks.some(rank => !read.has(rank))) {
      this.reads(new Set([...read, ...ranks]));
    }
  }

  private reads(ranks: ReadonlySet<number>): void {
    this.whole = false;
    this.read = this.ranks.every(rank => ranks.has(rank)) ? null : ranks;
    this.reopen();
  }

  private reopen(): void {
    this.stream.open(this.read && [...this.read]);
  }

  /** The text shown for a log without lines; if the server refuses logs, the headline says why. */
  private nothing(): string {
    const { trans } = this.options;
    if (this.connection === 'refused') {
      return '';
    }
    const empty = this.connection === 'ended' ? trans.__('No output.') : trans.__('No output yet.');
    return this.whole ? empty : trans.__('Loading…');
  }

  private arrange(): void {
    if (this.columns.show(this.view, this.ranks)) {
      this.finder.renew();
    }
  }

  private follow(on: boolean): void {
    this.columns.panes.forEach(pane => pane.follow(on));
  }

  private toFailure(): void {
    if (this.failed) {
      const { rank, round } = this.failed;
      this.target = { rank, line: log => log.failure(round), named: false };
      this.schedule();
    }
  }

  private moved(): void {
    this.seeking = false;
    this.target = null;
    this.headline.misses('');
  }

  /** Shows the rank that the view is to go to; goes to the failure again when more of its log has come. */
  private seek(): void {
    const lines = this.failed ? this.store.log(this.failed.rank).count : 0;
    if (this.seeking && lines !== this.sought) {
      this.sought = lines;
      this.toFailure();
    }
    this.seeking &&= this.connection !== 'ended';
    const rank = this.isKnown ? this.target?.rank : undefined;
    if (rank !== undefined && this.ranks.includes(rank) && !this.columns.has(rank)) {
      this.change({ chosen: this.only(rank) });
    }
  }

  /** Goes to the wanted line once it has arrived, or to the nearest one once all lines have. */
  private arrive(): void {
    const { target } = this;
    if (!target || !this.isKnown || !this.done) {
      return;
    }
    const log = this.ranks.includes(target.rank) ? this.store.log(target.rank) : null;
    const line = log ? target.line(log) : 0;
    if (this.whole || (target.named && log && line < log.count)) {
      this.target = null;
      const last = (log?.count ?? 0) - 1;
      const row = log && last >= 0 ? this.columns.go({ log, line: Math.min(line, last) }) : null;
      this.headline.misses(target.named ? this.missing(target.rank, line, log, row) : '');
    }
  }

  /** Why the view isn't at a line of that log, but at another one or nowhere; empty: it is there. */
  private missing(rank: number, line: number, log: RankLog | null, at: Row | null): string {
    const { trans } = this.options;
    if (!log) {
      return trans.__('This job has no rank %1.', rank);
    }
    if (!log.count) {
      return trans.__('Rank %1 has no line %2: its log is empty.', rank, line + 1);
    }
    if (line >= log.count) {
      return trans.__(
        'Rank %1 has no line %2: its log ends at line %3.',
        rank,
        line + 1,
        log.count
      );
    }
    const isAtLine = at?.log === log && at.line === line;
    return isAtLine || this.view.fold
      ? ''
      : trans.__('Line %2 of rank %1 is filtered out.', rank, line + 1);
  }

  private copy(): void {
    const { columns, options } = this;
    if (columns.picked) {
      const lines = copied(columns.picked);
      const [count, { trans }] = [lines.length, options];
      const message = trans._n(
        '%2 line copied.',
        '%2 lines copied.',
        count,
        count.toLocaleString()
      );
      options.copy?.(`${lines.join('\n')}\n`, message);
    }
  }

  private copyLink(): void {
    const { columns, options } = this;
    if (columns.picked && options.link && this.linked) {
      const { rows, from } = columns.picked;
      const { log, line } = rows.at(from);
      const message = options.trans.__('Link to line %1 of rank %2 copied.', line + 1, log.rank);
      options.copy?.(options.link(log.rank, line + 1), message);
    }
  }

  /** Shows lines, even though earlier ones may still arrive. */
  private unveil(): void {
    delete this.columns.node.dataset['waits'];
  }

  private get veiled(): boolean {
    return this.columns.node.dataset['waits'] !== undefined;
  }

  private schedule(): void {
    if (!this.isDisposed) {
      this.frame ||= requestAnimationFrame(() => this.draw());
    }
  }

  private draw(): void {
    this.frame = 0;
    if (!this.isVisible) {
      return;
    }
    if (!this.due()) {
      this.schedule();
      return;
    }
    this.store.merged.settle();
    this.arrange();
    this.seek();
    this.headline.reads(this.whole || !this.store.count ? null : this.store.count);
    if (this.whole || this.connection === 'refused') {
      this.unveil();
    }
    const end = performance.now() + BUDGET;
    const { panes } = this.columns;
    this.done = panes.map(pane => pane.work(() => performance.now() > end)).every(Boolean);
    this.arrive();
    if (!this.veiled || !this.store.count) {
      panes.forEach(pane => pane.draw());
    }
    this.finder.update();
    this.toolbar.update(this.view, {
      ranks: this.ranks,
      following: this.following,
      picked: this.columns.picked !== null,
      linked: this.linked
    });
    if (!this.done) {
      this.schedule();
    }
  }

  /** Whether to draw in this frame: drawing in all of them takes a third of the time of reading a long log. */
  private due(): boolean {
    const reading = !this.whole && this.store.count > 0;
    if (!reading || !this.done || !this.following) {
      return true;
    }
    const now = performance.now();
    const due = now >= this.drawn + SELDOM;
    this.drawn = due ? now : this.drawn;
    return due;
  }

  private get following(): boolean {
    return this.columns.panes.every(pane => pane.following);
  }
}
