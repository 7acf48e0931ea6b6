/** The one door to the server: its routes below `nbtorchjob/api/` as functions. */

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
 * A request that wasn't fulfilled, in one line; `status` is 0 where no server answered. It is `ours` to say where
 * the request has reached our routes: hubs and proxies in between answer with the same statuses.
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

/** A job; where it doesn't say when that was created, whichever has the id now. */
export type Meant = Pick<Job, 'id'> & { readonly created?: number | undefined };

/** No more of a job than what it is meant by, as a command's arguments. */
export function meant({ id, created }: Meant): Meant {
  return { id, created };
}

/** Whether both are one job, as far as they say. */
export function isMeant(one: Meant, other: Meant): boolean {
  return one.id === other.id && (one.created ?? other.created) === (other.created ?? one.created);
}

/** Where a file of a job lies. */
export type FilePlace = Pick<RunFile, 'path' | 'node'>;

/** Asks the server of the page. Every method rejects with a {@link RequestError}. */
export class Client {
  constructor(private readonly settings: ServerConnection.ISettings) {}

  /** Whether this page has cancelled a job. */
  hasCancelled(job: Job): boolean {
    return [...this.cancelled].some(each => isMeant(each, job));
  }

  /** The jobs that aren't known to who has an answer with that mark; all where it is ''. */
  jobs(known: string, signal?: AbortSignal): Promise<Jobs> {
    return this.json('GET', { path: 'jobs', query: known ? { known } : {} }, signal);
  }

  job(job: Meant): Promise<Job> {
    return this.json('GET', at(job));
  }

  /** Cancels, suspends or resumes a job, which stays, or has its nodes tell where its ranks are. */
  async change(job: Meant, change: Change): Promise<void> {
    if (change === 'cancel') {
      this.cancelled.add(job); // before the answer: the job's end may be told first
    }
    try {
      await this.request('POST', at(job, change));
    } catch (error) {
      this.cancelled.delete(job);
      throw error;
    }
  }

  /** Ends the job if it runs, and removes all that is kept of it. */
  async delete(job: Meant): Promise<void> {
    await this.request('DELETE', at(job));
  }

  /** Replaces a person's note on the job, and its tags. */
  async annotate(job: Meant, note: Note): Promise<void> {
    await this.request('PUT', at(job, 'note'), null, JSON.stringify(note));
  }

  /** Runs what the job ran once more; gives the new job. */
  retry(job: Meant): Promise<Job> {
    return this.json('POST', at(job, 'retry'));
  }

  /** The plain values that a running job's code reads. */
  async values(job: Meant): Promise<readonly Value[]> {
    return (await this.json<Values>('GET', at(job, 'values'))).values;
  }

  /** Sets some of them, on all ranks at one step; gives what became of it, in words. */
  async set(job: Meant, values: readonly Value[]): Promise<string> {
    const value = values.map(({ name, value }) => `${name}=${value}`);
    return (await this.request('POST', at(job, 'values', { value }))).text();
  }

  /** The same as a retry, from the job's checkpoints. */
  resumed(job: Meant): Promise<Job> {
    return this.json('POST', at(job, 'continue'));
  }

  /** All that is known of a job, to be laid out. */
  page(job: Meant): Promise<Page> {
    return this.json('GET', at(job, 'page'));
  }

  /** Jobs held against each other: their curves, and how they differ from the first. */
  compare(ids: readonly string[]): Promise<Page> {
    return this.json('GET', { path: 'compare', query: { job: ids } });
  }

  /** The YAML of its objects on the cluster, without Secrets. */
  async manifests(job: Meant): Promise<string> {
    return (await this.request('GET', at(job, 'manifests'))).text();
  }

  /** Where a rank's whole log is downloaded from. */
  logUrl(job: Meant, rank: number): string {
    return this.signed(this.settings.baseUrl, at(job, `logs/${rank}`));
  }

  /** Where all ranks' logs are downloaded from as one archive, with the time in front of each line or without. */
  archiveUrl(job: Meant, times: boolean): string {
    return this.signed(this.settings.baseUrl, at(job, 'logs.zip', times ? { times: 'true' } : {}));
  }

  /** What the job's ranks left. */
  async artifacts(job: Meant): Promise<readonly Artifact[]> {
    return (await this.json<Artifacts>('GET', at(job, 'artifacts'))).artifacts;
  }

  /** Where those are downloaded from as one archive. */
  artifactsUrl(job: Meant): string {
    return this.signed(this.settings.baseUrl, at(job, 'artifacts.zip'));
  }

  /** What the job's ranks have written so far, all of it or at or below a path. */
  files(job: Meant, path = ''): Promise<Files> {
    return this.json('GET', at(job, 'files', path ? { file: path } : {}));
  }

  /** The first bytes of one of these files, at most so many. */
  async file(job: Meant, { path, node }: FilePlace, limit: number): Promise<Uint8Array> {
    const query = { file: path, node: `${node}`, limit: `${limit}` };
    return new Uint8Array(await (await this.request('GET', at(job, 'file', query))).arrayBuffer());
  }

  /** Where all of it is downloaded from. */
  fileUrl(job: Meant, { path, node }: FilePlace): string {
    return this.signed(this.settings.baseUrl, at(job, 'file', { file: path, node: `${node}` }));
  }

  /**
   * Opens the stream of a job's logs; binary messages arrive as ArrayBuffers.
   *
   * @param since - what is there already: `RANK.ROUND.OFFSET,…`
   * @param ranks - only these; null: all
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

  /** The address below that of the server for what sends no headers, as a link or a websocket. */
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
      // It sends the token, or the XSRF cookie's value as a header.
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
  /** Of a list each is a parameter of that name. */
  readonly query: Readonly<Record<string, string | readonly string[]>>;
}

function urlOf(base: string, { path, query }: Route): string {
  const pairs = Object.entries(query).flatMap(([name, values]) =>
    // Proxies take URLs of 8 KB: numbers of a thousand ranks fit in only with plain commas.
    [values].flat().map(value => `${name}=${encodeURIComponent(value).replaceAll('%2C', ',')}`)
  );
  return URLExt.join(base, API, path) + (pairs.length > 0 ? `?${pairs.join('&')}` : '');
}

/** What is asked about a job, and not about another one that has its id now. */
function at({ id, created }: Meant, rest = '', query: Route['query'] = {}): Route {
  return {
    path: ['jobs', encodeURIComponent(id), rest].filter(Boolean).join('/'),
    query: created === undefined ? query : { ...query, created: `${created}` }
  };
}

/** What the server says is wrong: JSON from ours, which has a reason, maybe a page from a proxy in between. */
async function complaint(response: Response): Promise<RequestError> {
  const { status, statusText } = response;
  const told: unknown = await response.json().catch(() => null);
  const { message, reason } = (told ?? {}) as { message?: unknown; reason?: unknown };
  const said = typeof message === 'string' && message ? message : `${status} ${statusText}`;
  return new RequestError(status, said, Boolean(reason));
}
