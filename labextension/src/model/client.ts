/** The only access to the server: its routes below `nbtorchjob/api/` as functions. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import type {
  Artifact,
  Artifacts,
  Change,
  Files,
  Job,
  Jobs,
  Note,
  Page,
  RunFile,
  Value,
  Values
} from './record';

/**
 * Why a request failed, in one line; `status` is 0 if no server answered. `ours` says that the request reached
 * our routes: hubs and proxies in between answer with the same statuses.
 */
export class RequestError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly ours = false
  ) {
    super(message);
    this.name = 'RequestError';
  }
}

/** A reference to a job; without `created`, to whichever job has the id now. */
export type Meant = Pick<Job, 'id'> & { readonly created?: number | undefined };

/** Only what identifies a job, as a command's arguments. */
export function meant({ id, created }: Meant): Meant {
  return { id, created };
}

/** Whether both refer to the same job; a missing `created` matches any. */
export function isMeant(job: Meant, other: Meant): boolean {
  return job.id === other.id && (job.created ?? other.created) === (other.created ?? job.created);
}

/** A reference to a job in one word: its id, and after an `@` when it was created. */
export function nameOf({ id, created }: Meant): string {
  return created === undefined ? id : `${id}@${created}`;
}

/** The reference that a word stands for. */
export function named(word: string): Meant {
  // A cluster's context may have an @ as well, but never after the last slash.
  const [, id = word, created] = /^(.*)@(\d+(?:\.\d+)?)$/.exec(word) ?? [];
  return { id, created: created === undefined ? undefined : Number(created) };
}

/** Where a file of a job lies. */
export type FilePlace = Pick<RunFile, 'path' | 'node'>;

/** Sends requests to the page's server. Every method rejects with a {@link RequestError}. */
export class Client {
  constructor(private readonly settings: ServerConnection.ISettings) {}

  /** Whether this page has cancelled a job. */
  hasCancelled(job: Job): boolean {
    return [...this.cancelled].some(other => isMeant(other, job));
  }

  /** The jobs that are new or changed since the answer with this `mark`; all jobs if it is ''. */
  jobs(mark: string, signal?: AbortSignal): Promise<Jobs> {
    return this.json('GET', { path: 'jobs', query: mark ? { known: mark } : {} }, signal);
  }

  job(job: Meant): Promise<Job> {
    return this.json('GET', at(job));
  }

  /** Cancels, suspends, resumes, starts or ends a job, which stays, or has its nodes sample their ranks. */
  async change(job: Meant, change: Change): Promise<void> {
    if (change === 'cancel') {
      this.cancelled.add(job); // before the answer: the job's end may be reported first
    }
    try {
      await this.request('POST', at(job, change));
    } catch (error) {
      this.cancelled.delete(job);
      throw error;
    }
  }

  /** Ends the job if it runs, and removes everything that is kept for it. */
  async delete(job: Meant): Promise<void> {
    await this.request('DELETE', at(job));
  }

  /** Replaces the user's note on the job, and its tags. */
  async annotate(job: Meant, note: Note): Promise<void> {
    await this.request('PUT', at(job, 'note'), null, JSON.stringify(note));
  }

  /** Submits the job's payload again; returns the new job. */
  retry(job: Meant): Promise<Job> {
    return this.json('POST', at(job, 'retry'));
  }

  /** The plain values that a running job's code reads. */
  async values(job: Meant): Promise<readonly Value[]> {
    return (await this.json<Values>('GET', at(job, 'values'))).values;
  }

  /** Sets some of these values, on all ranks at one step; returns the outcome in words. */
  async set(job: Meant, values: readonly Value[]): Promise<string> {
    const value = values.map(({ name, value }) => `${name}=${value}`);
    return (await this.request('POST', at(job, 'values', { value }))).text();
  }

  /** Like {@link retry}, but from the job's checkpoints. */
  resumed(job: Meant): Promise<Job> {
    return this.json('POST', at(job, 'continue'));
  }

  /** Everything known about a job, to be laid out. */
  page(job: Meant): Promise<Page> {
    return this.json('GET', at(job, 'page'));
  }

  /** A comparison of jobs: their curves, and how they differ from the first. */
  compare(jobs: readonly Meant[]): Promise<Page> {
    return this.json('GET', { path: 'compare', query: { job: jobs.map(nameOf) } });
  }

  /** The YAML of the job's objects on the cluster, without Secrets. */
  async manifests(job: Meant): Promise<string> {
    return (await this.request('GET', at(job, 'manifests'))).text();
  }

  /** The URL of a rank's whole log. */
  logUrl(job: Meant, rank: number): string {
    return this.signed(this.settings.baseUrl, at(job, `logs/${rank}`));
  }

  /** The URL of an archive of all ranks' logs, with or without the time at the start of each line. */
  archiveUrl(job: Meant, times: boolean): string {
    return this.signed(this.settings.baseUrl, at(job, 'logs.zip', times ? { times: 'true' } : {}));
  }

  /** The artifacts that the job's ranks left. */
  async artifacts(job: Meant): Promise<readonly Artifact[]> {
    return (await this.json<Artifacts>('GET', at(job, 'artifacts'))).artifacts;
  }

  /** The URL of an archive of these artifacts. */
  artifactsUrl(job: Meant): string {
    return this.signed(this.settings.baseUrl, at(job, 'artifacts.zip'));
  }

  /** The files that the job's ranks have written so far: all of them, or those at or below a path. */
  files(job: Meant, path = ''): Promise<Files> {
    return this.json('GET', at(job, 'files', path ? { file: path } : {}));
  }

  /** The first bytes of one of these files, at most `limit`. */
  async file(job: Meant, { path, node }: FilePlace, limit: number): Promise<Uint8Array> {
    const query = { file: path, node: `${node}`, limit: `${limit}` };
    return new Uint8Array(await (await this.request('GET', at(job, 'file', query))).arrayBuffer());
  }

  /** The URL of the whole file. */
  fileUrl(job: Meant, { path, node }: FilePlace): string {
    return this.signed(this.settings.baseUrl, at(job, 'file', { file: path, node: `${node}` }));
  }

  /**
   * Opens the stream of a job's logs; binary messages arrive as ArrayBuffers.
   *
   * @param since - how far the caller has them already: `RANK.ROUND.OFFSET,…`
   * @param ranks - only these ranks; null: all
   */
  openLogs(job: Meant, since: string, ranks: readonly number[] | null): WebSocket {
    const query = {
      ...(since && { since }),
      ...(ranks && { ranks: ranks.join(',') })
    };
    const url = this.signed(this.settings.wsUrl, at(job, 'logs', query));
    const socket = new this.settings.WebSocket(url);
    socket.binaryType = 'arraybuffer';
    return socket;
  }

  private readonly cancelled = new Set<Meant>();

  /** The URL, with the token, for requests that can't send headers: links and websockets. */
  private signed(base: string, { path, query }: Route): string {
    const { appendToken, token } = this.settings;
    return urlOf(base, { path, query: appendToken && token ? { ...query, token } : query });
  }

  private async json<T>(method: string, route: Route, signal?: AbortSignal): Promise<T> {
    return (await (await this.request(method, route, signal)).json()) as T;
  }

  private async request(
    method: string,
    route: Route,
    signal: AbortSignal | null = null,
    body: string | null = null
  ): Promise<Response> {
    const url = urlOf(this.settings.baseUrl, route);
    let response: Response;
    try {
      // This sends the token, or the XSRF cookie's value as a header.
      response = await ServerConnection.makeRequest(url, { method, signal, body }, this.settings);
    } catch (error) {
      throw new RequestError(0, error instanceof Error ? error.message : String(error));
    }
    if (!response.ok) {
      throw await complaint(response);
    }
    return response;
  }
}

const API = 'nbtorchjob/api';

interface Route {
  readonly path: string;
  /** Each value in a list becomes a parameter of that name. */
  readonly query: Readonly<Record<string, string | readonly string[]>>;
}

function urlOf(base: string, { path, query }: Route): string {
  const pairs = Object.entries(query).flatMap(([name, values]) =>
    // Proxies accept URLs of up to 8 KB: the numbers of a thousand ranks fit only with plain commas.
    [values].flat().map(value => `${name}=${encodeURIComponent(value).replaceAll('%2C', ',')}`)
  );
  return URLExt.join(base, API, path) + (pairs.length > 0 ? `?${pairs.join('&')}` : '');
}

/** The route of a request about this job, and not about another one that has its id now. */
function at({ id, created }: Meant, rest = '', query: Route['query'] = {}): Route {
  return {
    path: ['jobs', encodeURIComponent(id), rest].filter(Boolean).join('/'),
    query: created === undefined ? query : { ...query, created: `${created}` }
  };
}

/** The error in a response: JSON with a reason from our routes, perhaps a page from a proxy in between. */
async function complaint(response: Response): Promise<RequestError> {
  const { status, statusText } = response;
  const body: unknown = await response.json().catch(() => null);
  const { message, reason } = (body ?? {}) as { message?: unknown; reason?: unknown };
  const text = typeof message === 'string' && message ? message : `${status} ${statusText}`;
  return new RequestError(status, text, Boolean(reason));
}
