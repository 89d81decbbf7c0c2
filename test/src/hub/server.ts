import { createHash } from 'node:crypto';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

/** A file of the repository; a large one is served by the other host, as the Hub's are. */
export interface Served {
  readonly bytes: Buffer;
  readonly large?: boolean;
}

export interface Seen {
  readonly host: 'hub' | 'cdn';
  readonly path: string;
  readonly headers: IncomingMessage['headers'];
}

/** What to do otherwise than the Hub would, with one request. */
export interface Misbehaviour {
  readonly status?: number;
  readonly headers?: Record<string, string>;
  /** Sends this instead of the file or the listing. */
  readonly body?: Buffer | string;
  /** Breaks the connection off after so many bytes of this answer. */
  readonly cutAfter?: number;
  /** Waits before the answer; 'forever' never answers. */
  readonly delayMs?: number | 'forever';
  /** Stops sending after so many bytes, and keeps the connection. */
  readonly stallAfter?: number;
  /** Sends pieces of so many bytes, 5 ms apart. */
  readonly trickle?: number;
  readonly ignoreRange?: boolean;
}

export interface FakeHub {
  readonly endpoint: string;
  readonly cdn: string;
  readonly commit: string;
  readonly seen: Seen[];
  readonly files: Map<string, Served>;
  /** Branches and tags. */
  readonly refs: Map<string, string>;
  /** Asked of every request; `nth` counts those of the same path from 0. */
  behave: (request: Seen, nth: number) => Misbehaviour | undefined;
  /** Changes the listing before it is sent. */
  relist: (entries: Record<string, unknown>[]) => unknown;
  pageSize: number;
  /** Requests for the bytes of files, in order. */
  downloads(): Seen[];
  close(): Promise<void>;
}

export const ID = 'acme/tiny';
export const COMMIT = '0123456789abcdef0123456789abcdef01234567';

/** Asked for with every request. */
const digests = new WeakMap<Buffer, string>();

export function sha256(bytes: Buffer): string {
  const digest = digests.get(bytes) ?? createHash('sha256').update(bytes).digest('hex');
  digests.set(bytes, digest);
  return digest;
}

export function gitSha1(bytes: Buffer): string {
  return createHash('sha1').update(`blob ${bytes.length}\0`).update(bytes).digest('hex');
}

/** The Hub's API for one repository on loopback: two hosts, so that redirects leave the first. */
export async function fakeHub(t: TestContext | undefined, files: Record<string, Served>): Promise<FakeHub> {
  const count = new Map<string, number>();
  const servers: Server[] = [];
  const start = async (host: Seen['host']): Promise<string> => {
    const server = createServer((request, response) => {
      const path = decodeURIComponent(new URL(request.url ?? '/', 'http://x').pathname);
      const seen: Seen = { host, path, headers: request.headers };
      const key = `${host} ${path}`;
      const nth = count.get(key) ?? 0;
      count.set(key, nth + 1);
      hub.seen.push(seen);
      answer(hub, seen, request, response, hub.behave(seen, nth) ?? {}).catch(() => response.destroy());
    });
    servers.push(server);
    // Another address, and not only another port: Python takes the port for no other host.
    const address = host === 'hub' ? '127.0.0.1' : '127.0.0.2';
    await new Promise<void>((resolve) => server.listen(0, address, resolve));
    return `http://${address}:${(server.address() as AddressInfo).port}`;
  };
  const hub: FakeHub = {
    endpoint: '',
    cdn: '',
    commit: COMMIT,
    seen: [],
    files: new Map(Object.entries(files)),
    refs: new Map([['main', COMMIT]]),
    behave: () => undefined,
    relist: (entries) => entries,
    pageSize: 3,
    downloads: () =>
      hub.seen.filter(({ host, path }) => host === 'cdn' || (path.includes('/resolve/') && !isLarge(hub, path))),
    close: async () => {
      for (const server of servers) {
        server.closeAllConnections();
        await new Promise((resolve) => server.close(resolve));
      }
    },
  };
  Object.assign(hub, { endpoint: await start('hub'), cdn: await start('cdn') });
  t?.after(() => hub.close());
  return hub;
}

function isLarge(hub: FakeHub, path: string): boolean {
  return hub.files.get(path.split(`/resolve/${COMMIT}/`)[1] ?? '')?.large === true;
}

async function answer(
  hub: FakeHub,
  seen: Seen,
  request: IncomingMessage,
  response: ServerResponse,
  wrong: Misbehaviour,
): Promise<void> {
  if (wrong.delayMs === 'forever') return;
  if (wrong.delayMs) await sleep(wrong.delayMs);
  if (wrong.status !== undefined) {
    response.writeHead(wrong.status, wrong.headers).end(wrong.body ?? '{"error":"no"}');
    return;
  }
  const api = `/api/models/${ID}`;
  const json = (value: unknown, headers: Record<string, string> = {}) => {
    const text = wrong.body ?? JSON.stringify(value);
    const all = {
      'content-type': 'application/json',
      'content-length': String(text.length),
      ...headers,
      ...wrong.headers,
    };
    response.writeHead(200, all);
    if (wrong.cutAfter === undefined) response.end(text);
    else response.write(text.slice(0, wrong.cutAfter), () => response.destroy());
  };
  if (seen.path.startsWith(`${api}/revision/`)) {
    const sha = hub.refs.get(seen.path.slice(`${api}/revision/`.length));
    if (sha === undefined) response.writeHead(404, { 'x-error-code': 'RevisionNotFound' }).end('{}');
    else
      json({
        _id: '1',
        id: ID,
        sha,
        private: false,
        gated: false,
        downloads: 1,
        likes: 0,
        lastModified: '2026-01-01T00:00:00.000Z',
      });
  } else if (seen.path === `${api}/tree/${COMMIT}`) {
    const cursor = Number(new URL(request.url ?? '', 'http://x').searchParams.get('cursor') ?? '0');
    const all = hub.relist(listing(hub)) as unknown[];
    if (!Array.isArray(all)) return void json(all);
    const next = cursor + hub.pageSize;
    const link = `<${hub.endpoint}${api}/tree/${COMMIT}?recursive=true&expand=false&cursor=${next}>; rel="next"`;
    json(all.slice(cursor, next), next < all.length ? { link } : {});
  } else if (seen.path.startsWith(`/${ID}/resolve/${COMMIT}/`)) {
    const name = seen.path.slice(`/${ID}/resolve/${COMMIT}/`.length);
    const file = hub.files.get(name);
    if (!file) response.writeHead(404, { 'x-error-code': 'EntryNotFound' }).end();
    else if (file.large)
      response
        .writeHead(302, {
          location: `${hub.cdn}/${sha256(file.bytes)}?signature=secret`,
          'x-linked-etag': `"${sha256(file.bytes)}"`,
          'x-linked-size': String(file.bytes.length),
          'x-repo-commit': COMMIT,
          etag: `"${gitSha1(file.bytes)}"`,
          'content-length': '0',
        })
        .end();
    else await bytes(file.bytes, `"${gitSha1(file.bytes)}"`, request, response, wrong);
  } else if (seen.host === 'cdn') {
    const file = [...hub.files.values()].find((each) => `/${sha256(each.bytes)}` === seen.path);
    if (file) await bytes(file.bytes, '"tag-of-the-cdn"', request, response, wrong);
    else response.writeHead(404).end();
  } else response.writeHead(404, { 'x-error-code': 'RepoNotFound' }).end('{"error":"Repository not found"}');
}

function listing(hub: FakeHub): Record<string, unknown>[] {
  const folders = [...new Set([...hub.files.keys()].filter((n) => n.includes('/')).map((n) => n.split('/')[0]))];
  return [
    ...folders.map((path) => ({ type: 'directory', path, size: 0, oid: gitSha1(Buffer.from(String(path))) })),
    ...[...hub.files].map(([path, { bytes: content, large }]) => ({
      type: 'file',
      path,
      size: content.length,
      oid: large ? gitSha1(Buffer.from(sha256(content))) : gitSha1(content),
      ...(large && { lfs: { oid: sha256(content), size: content.length, pointerSize: 134 } }),
    })),
  ];
}

async function bytes(
  whole: Buffer,
  etag: string,
  request: IncomingMessage,
  response: ServerResponse,
  wrong: Misbehaviour,
): Promise<void> {
  const match = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '');
  const condition = request.headers['if-range'];
  const ranged = match && !wrong.ignoreRange && (condition === undefined || condition === etag);
  const from = ranged ? Number(match[1]) : 0;
  const to = ranged && match[2] ? Math.min(Number(match[2]), whole.length - 1) : whole.length - 1;
  const common = { etag, 'x-repo-commit': COMMIT, 'accept-ranges': 'bytes', ...wrong.headers };
  if (ranged && from >= whole.length) {
    response.writeHead(416, { ...common, 'content-range': `bytes */${whole.length}` }).end();
    return;
  }
  const content = wrong.body === undefined ? whole.subarray(from, to + 1) : Buffer.from(wrong.body);
  response.writeHead(ranged ? 206 : 200, {
    ...common,
    'content-length': String(content.length),
    ...(ranged && { 'content-range': `bytes ${from}-${to}/${whole.length}` }),
  });
  if (request.method === 'HEAD') return void response.end();
  const stop = Math.min(wrong.cutAfter ?? content.length, wrong.stallAfter ?? content.length);
  const step = wrong.trickle ?? (stop || 1);
  for (let at = 0; at < stop; at += step) {
    await new Promise((resolve) => response.write(content.subarray(at, Math.min(stop, at + step)), resolve));
    if (wrong.trickle) await sleep(5);
  }
  if (wrong.stallAfter !== undefined) return;
  if (wrong.cutAfter !== undefined) {
    await sleep(20); // what was written goes out first
    response.destroy();
  } else response.end();
}

/** Of this process, until the test ends. */
export function setEnvironment(t: TestContext, env: Readonly<Record<string, string>>): void {
  const before = Object.keys(env).map((name) => [name, process.env[name]] as const);
  Object.assign(process.env, env);
  t.after(() => {
    for (const [name, value] of before)
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
  });
}
