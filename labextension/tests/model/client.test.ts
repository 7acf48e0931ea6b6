import { ServerConnection } from '@jupyterlab/services';
import { describe, expect, it } from 'vitest';

import { Client, RequestError, nameOf, named } from '../../src/model/client';
import type { Job } from '../../src/model/record';

import { aJob } from '../jobs';

const ID = 'kubernetes:kind/ml/train-1';
const JOB = { id: ID };
const AT = 'http://hub/user/me/nbtorchjob/api/jobs/kubernetes%3Akind%2Fml%2Ftrain-1';

class Socket {
  constructor(readonly url: string) {}
  binaryType = 'blob';
}

function served(answer: () => Response, given: Partial<ServerConnection.ISettings> = {}) {
  const asked: Request[] = [];
  const fetch = async (request: RequestInfo) => {
    asked.push(request as Request);
    return answer();
  };
  const settings = ServerConnection.makeSettings({
    baseUrl: 'http://hub/user/me/',
    wsUrl: 'ws://hub/user/me/',
    token: 'secret',
    appendToken: false,
    init: {}, // else each address ends with the time
    fetch,
    WebSocket: Socket as unknown as typeof WebSocket,
    ...given
  });
  return { client: new Client(settings), asked };
}

const nothing = () => new Response(null, { status: 204 });

describe('the client', () => {
  it('lists jobs and notes', async () => {
    const told = { removed: [], whole: true, mark: 'born.1' };
    const listing = { ...told, jobs: [aJob()], notes: ['kind: no answer'], unseen: [] };
    const { client, asked } = served(() => Response.json(listing));

    expect(await client.jobs('')).toEqual(listing);
    await client.jobs('born.1');
    expect(asked.map(({ url }) => url)).toEqual([
      'http://hub/user/me/nbtorchjob/api/jobs',
      'http://hub/user/me/nbtorchjob/api/jobs?known=born.1'
    ]);
    expect(asked[0]?.headers.get('Authorization')).toBe('token secret');
  });

  it('asks to change and to delete a job by its encoded id', async () => {
    const { client, asked } = served(nothing);

    await client.change(JOB, 'cancel');
    await client.delete(JOB);

    expect(asked.map(({ method, url }) => [method, url])).toEqual([
      ['POST', `${AT}/cancel`],
      ['DELETE', AT]
    ]);
  });

  it('knows which jobs it has cancelled, not those where that failed nor later ones of their names', async () => {
    let status = 204;
    const { client } = served(() => new Response(null, { status }));
    const [one, other] = [1, 2].map(created => aJob({ id: ID, created })) as [Job, Job];

    await client.change(one, 'cancel');
    await client.change(other, 'stacks');
    expect([one, other].map(job => client.hasCancelled({ ...job }))).toEqual([true, false]);

    status = 502;
    await expect(client.change(other, 'cancel')).rejects.toBeInstanceOf(RequestError);
    expect(client.hasCancelled(other)).toBe(false);
  });

  it('means no later job that has the id of one that was deleted', async () => {
    const { client, asked } = served(() => Response.json({}));
    const signed = served(nothing, { appendToken: true }).client;
    const job = aJob({ id: ID, created: 1764423981.25 });

    await client.change(job, 'cancel');
    await client.files(job, 'artifacts');

    expect(asked.map(({ url }) => url)).toEqual([
      `${AT}/cancel?created=1764423981.25`,
      `${AT}/files?file=artifacts&created=1764423981.25`
    ]);
    expect(signed.logUrl(job, 0)).toBe(`${AT}/logs/0?created=1764423981.25&token=secret`);
    expect(client.openLogs(job, '0.0.7', [0, 2]).url).toBe(
      `${AT.replace('http', 'ws')}/logs?since=0.0.7&ranks=0,2&created=1764423981.25`
    );
  });

  it('gives the job that a retry made', async () => {
    const { client, asked } = served(() => Response.json(aJob({ id: 'local:b' }), { status: 201 }));

    expect((await client.retry(JOB)).id).toBe('local:b');
    expect([asked[0]?.method, asked[0]?.url]).toEqual(['POST', `${AT}/retry`]);
  });

  it('gives texts as they are', async () => {
    const { client, asked } = served(() => new Response('kind: Job\n'));

    expect(await client.manifests(JOB)).toBe('kind: Job\n');
    expect(asked.map(({ url }) => url)).toEqual([`${AT}/manifests`]);
  });

  it('lists what a job left, and says where to download it', async () => {
    const left = [{ path: 'runs/events', size: 88, node: 0, attempt: 1 }];
    const { client, asked } = served(() => Response.json({ artifacts: left }));

    expect(await client.artifacts(JOB)).toEqual(left);
    expect(asked.map(({ url }) => url)).toEqual([`${AT}/artifacts`]);
    expect(client.artifactsUrl(JOB)).toBe(`${AT}/artifacts.zip`);
  });

  it('lists files, reads the beginning of one, and says where to download it', async () => {
    const listing = { files: [], trouble: [], more: false };
    const place = { path: 'artifacts/a b.csv', node: 1 };
    const lists = served(() => Response.json(listing));
    const reads = served(() => new Response('x,y'));

    expect(await lists.client.files(JOB)).toEqual(listing);
    await lists.client.files(JOB, 'artifacts/runs');
    expect(lists.asked.map(({ url }) => url)).toEqual([
      `${AT}/files`,
      `${AT}/files?file=artifacts%2Fruns`
    ]);
    expect(new TextDecoder().decode(await reads.client.file(JOB, place, 3))).toBe('x,y');
    const query = '?file=artifacts%2Fa%20b.csv&node=1';
    expect(reads.asked[0]?.url).toBe(`${AT}/file${query}&limit=3`);
    expect(reads.client.fileUrl(JOB, place)).toBe(`${AT}/file${query}`);
  });

  it('gives pages of one job and of some', async () => {
    const page = { heading: '2 jobs compared', parts: [] };
    const { client, asked } = served(() => Response.json(page));

    expect([
      await client.page(JOB),
      await client.compare([{ id: ID, created: 100.25 }, named('local:b')])
    ]).toEqual([page, page]);
    const compare = AT.replace(
      /jobs\/.*/,
      `compare?job=${encodeURIComponent(ID)}%40100.25&job=local%3Ab`
    );
    expect(asked.map(({ url }) => url)).toEqual([`${AT}/page`, compare]);
  });

  it.each(['local:a', 'local:a@100.25', 'kubernetes:me@7/ml/a', 'kubernetes:me@7/ml/a@100.25'])(
    'names a job in one word: %s',
    word => {
      const job = named(word);

      expect(nameOf(job)).toBe(word);
      expect(job.id.endsWith('a')).toBe(true);
    }
  );

  it("says what the server's answer says is wrong", async () => {
    const refusal = { message: 'no job train-1 here', reason: 'Not Found' };
    const { client } = served(() => Response.json(refusal, { status: 404 }));

    const error = await client.job(JOB).catch((error: unknown) => error);

    expect(error).toBeInstanceOf(RequestError);
    expect(error).toMatchObject({ status: 404, message: 'no job train-1 here', ours: true });
  });

  it.each([
    [{ status: 424, message: 'your server isn’t running' }],
    [{ message: 'Forbidden', reason: null }]
  ])('knows that it isn’t our server’s to say %j', async told => {
    const { client } = served(() => Response.json(told, { status: 403 }));

    const said = { status: 403, message: told.message, ours: false };
    await expect(client.job(JOB)).rejects.toMatchObject(said);
  });

  it('fits the numbers of a thousand ranks into an address', () => {
    const { client } = served(nothing);
    const ranks = Array.from({ length: 1000 }, (_, rank) => rank);
    const since = ranks.slice(0, 200).map(rank => `${rank}.0.100000`);

    expect(client.openLogs(JOB, since.join(), ranks).url.length).toBeLessThan(8000);
  });

  it('gives the status where a proxy answers with a page', async () => {
    const page = { status: 502, statusText: 'Bad Gateway' };
    const { client } = served(() => new Response('<html>', page));

    await expect(client.jobs('')).rejects.toMatchObject({
      status: 502,
      message: '502 Bad Gateway'
    });
  });

  it('gives status 0 where nobody answers', async () => {
    const { client } = served(() => {
      throw new TypeError('Failed to fetch');
    });

    await expect(client.jobs('')).rejects.toMatchObject({ status: 0, message: 'Failed to fetch' });
  });

  it('signs addresses only where the page has no cookie', () => {
    const bare = served(nothing).client;
    const signed = served(nothing, { appendToken: true }).client;

    expect(bare.logUrl(JOB, 3)).toBe(`${AT}/logs/3`);
    expect(signed.logUrl(JOB, 3)).toBe(`${AT}/logs/3?token=secret`);
  });

  it.each([
    ['', null, ''],
    ['0.1.500', null, '?since=0.1.500'],
    ['0.1.500,1.1.20', [0, 1], '?since=0.1.500,1.1.20&ranks=0,1']
  ])('opens logs since %j of ranks %j', (since, ranks, query) => {
    const socket = served(nothing).client.openLogs(JOB, since, ranks);

    expect(socket.url).toBe(AT.replace('http', 'ws') + `/logs${query}`);
    expect(socket.binaryType).toBe('arraybuffer');
  });
});
