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

/** A request that wasn't fulfilled, in one line; `status` is 0 where no server answered. */
export class RequestError extends Error {
  constructor(
    readonly status: number,
    message: string
  ) {
    super(message);
    this.name = 'RequestError';
  }
}

/** Where a file of a job lies. */
export type FilePlace = Pick<RunFile, 'path' | 'node'>;

/** Asks the server of the page. Every method rejects with a {@link RequestError}. */
export class Client {
  constructor(private readonly settings: ServerConnection.ISettings) {}

  /** The ids of the jobs that this page has cancelled. */
  readonly cancelled = new Set<string>();

  /** The jobs that aren't known to who has an answer with that mark; all where it is ''. */
  jobs(known: string, signal?: AbortSignal): Promise<Jobs> {
    return this.json('GET', 'jobs', known && URLExt.objectToQueryString({ known }), signal);
  }

  job(id: string): Promise<Job> {
    return this.json('GET', at(id));
  }

  /** Cancels, suspends or resumes a job, which stays, or has its nodes tell where its ranks are. */
  async change(id: string, change: Change): Promise<void> {
    if (change === 'cancel') {
      this.cancelled.add(id); // before the answer: the job's end may be told first
    }
    await this.request('POST', at(id, change));
  }

  /** Ends the job if it runs, and removes all that is kept of it. */
  async delete(id: string): Promise<void> {
    await this.request('DELETE', at(id));
  }

  /** Replaces a person's note on the job, and its tags. */
  async annotate(id: string, note: Note): Promise<void> {
    await this.request('PUT', at(id, 'note'), '', null, JSON.stringify(note));
  }

  /** Runs what the job ran once more; gives the new job. */
  retry(id: string): Promise<Job> {
    return this.json('POST', at(id, 'retry'));
  }

  /** The plain values that a running job's code reads. */
  async values(id: string): Promise<readonly Value[]> {
    return (await this.json<Values>('GET', at(id, 'values'))).values;
  }

  /** Sets some of them, on all ranks at one step; gives what became of it, in words. */
  async set(id: string, values: readonly Value[]): Promise<string> {
    const given = values.map(
      ({ name, value }) => `value=${encodeURIComponent(`${name}=${value}`)}`
    );
    return (await this.request('POST', at(id, 'values'), `?${given.join('&')}`)).text();
  }

  /** The same as a retry, from the job's checkpoints. */
  resumed(id: string): Promise<Job> {
    return this.json('POST', at(id, 'continue'));
  }

  /** All that is known of a job, to be laid out. */
  page(id: string): Promise<Page> {
    return this.json('GET', at(id, 'page'));
  }

  /** Jobs held against each other: their curves, and how they differ from the first. */
  compare(ids: readonly string[]): Promise<Page> {
    const asked = ids.map(id => `job=${encodeURIComponent(id)}`);
    return this.json('GET', 'compare', `?${asked.join('&')}`);
  }

  /** The YAML of its objects on the cluster, without Secrets. */
  manifests(id: string): Promise<string> {
    return this.text(at(id, 'manifests'));
  }

  /** Where a rank's whole log is downloaded from. */
  logUrl(id: string, rank: number): string {
    return this.signed(this.url(at(id, `logs/${rank}`)), {});
  }

  /** Where all ranks' logs are downloaded from as one archive, with the time in front of each line or without. */
  archiveUrl(id: string, times: boolean): string {
    return this.signed(this.url(at(id, 'logs.zip')), times ? { times: 'true' } : {});
  }

  /** What the job's ranks left. */
  async artifacts(id: string): Promise<readonly Artifact[]> {
    return (await this.json<Artifacts>('GET', at(id, 'artifacts'))).artifacts;
  }

  /** Where those are downloaded from as one archive. */
  artifactsUrl(id: string): string {
    return this.signed(this.url(at(id, 'artifacts.zip')), {});
  }

  /** What the job's ranks have written so far, all of it or at or below a path. */
  files(id: string, path = ''): Promise<Files> {
    return this.json('GET', at(id, 'files'), path && URLExt.objectToQueryString({ file: path }));
  }

  /** The first bytes of one of these files, at most so many. */
  async file(id: string, { path, node }: FilePlace, limit: number): Promise<Uint8Array> {
    const query = URLExt.objectToQueryString({ file: path, node: `${node}`, limit: `${limit}` });
    return new Uint8Array(await (await this.request('GET', at(id, 'file'), query)).arrayBuffer());
  }

  /** Where all of it is downloaded from. */
  fileUrl(id: string, { path, node }: FilePlace): string {
    return this.signed(this.url(at(id, 'file')), { file: path, node: `${node}` });
  }

  /**
   * Opens the stream of a job's logs; binary messages arrive as ArrayBuffers.
   *
   * @param since - what is there already: `RANK.ROUND.OFFSET,…`
   * @param ranks - only these; null: all
   */
  openLogs(id: string, since: string, ranks: readonly number[] | null): WebSocket {
    const query = {
      ...(since && { since }),
      ...(ranks && { ranks: ranks.join(',') })
    };
    const url = URLExt.join(this.settings.wsUrl, API, at(id, 'logs'));
    const socket = new this.settings.WebSocket(this.signed(url, query));
    socket.binaryType = 'arraybuffer';
    return socket;
  }

  private url(path: string): string {
    return URLExt.join(this.settings.baseUrl, API, path);
  }

  private signed(url: string, query: Record<string, string>): string {
    const { appendToken, token } = this.settings;
    return url + URLExt.objectToQueryString(appendToken && token ? { ...query, token } : query);
  }

  private async json<T>(
    method: string,
    path: string,
    query = '',
    signal?: AbortSignal
  ): Promise<T> {
    return (await (await this.request(method, path, query, signal)).json()) as T;
  }

  private async text(path: string): Promise<string> {
    return (await this.request('GET', path)).text();
  }

  private async request(
    method: string,
    path: string,
    query = '',
    signal: AbortSignal | null = null,
    body: string | null = null
  ): Promise<Response> {
    const url = this.url(path) + query;
    let response: Response;
    try {
      // It sends the token, or the XSRF cookie's value as a header.
      response = await ServerConnection.makeRequest(url, { method, signal, body }, this.settings);
    } catch (error) {
      throw new RequestError(0, error instanceof Error ? error.message : String(error));
    }
    if (!response.ok) {
      throw new RequestError(response.status, await complaint(response));
    }
    return response;
  }
}

const API = 'nbtorchjob/api';

function at(id: string, ...rest: string[]): string {
  return ['jobs', encodeURIComponent(id), ...rest].join('/');
}

/** What the server says is wrong: JSON from ours, a page from a proxy in between. */
async function complaint(response: Response): Promise<string> {
  const told: unknown = await response.json().catch(() => null);
  const message = told && typeof told === 'object' && 'message' in told ? told.message : null;
  const fallback = `${response.status} ${response.statusText}`;
  return typeof message === 'string' && message ? message : fallback;
}
