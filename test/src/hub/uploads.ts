import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';
import { gitSha1, sha256 } from './server.js';

/** What a request is answered with instead; 'cut': the connection ends without an answer, after half of what is sent. */
export type Fault = number | 'cut';

export interface UploadHub {
  readonly endpoint: string;
  /** The files of main; undefined where there is no repository. */
  files: Map<string, Buffer> | undefined;
  commit: string;
  private: boolean;
  readonly titles: string[];
  /** METHOD PATH of every request, in order. */
  readonly seen: string[];
  /** What storage has received, by hash. */
  readonly stored: Map<string, Buffer>;
  /** Tokens that the storage was shown; it must be shown none. */
  readonly leaked: string[];
  fault: (request: string, nth: number) => Fault | undefined;
}

export const TOKEN = 'hf_writer';

/** The part of the Hub's API that takes uploads, for the model acme/out, as its documentation has it; hashes are checked. */
export async function uploadHub(t: TestContext): Promise<UploadHub> {
  const count = new Map<string, number>();
  const hub: UploadHub = {
    endpoint: '',
    files: undefined,
    commit: 'a'.repeat(40),
    private: false,
    titles: [],
    seen: [],
    stored: new Map(),
    leaked: [],
    fault: () => undefined,
  };
  const server = createServer((request, response) => {
    const name = `${request.method} ${decodeURIComponent(new URL(request.url ?? '/', 'http://x').pathname)}`;
    const nth = count.get(name) ?? 0;
    count.set(name, nth + 1);
    hub.seen.push(name);
    const fault = hub.fault(name, nth);
    if (fault === 'cut') {
      request.once('data', () => request.socket.destroy());
      request.once('end', () => request.socket.destroy());
      return;
    }
    const pieces: Buffer[] = [];
    request.on('data', (piece: Buffer) => pieces.push(piece));
    request.on('end', () => {
      if (fault !== undefined) return void json(response, { error: 'no' }, fault);
      answer(hub, name, request, Buffer.concat(pieces), response);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  Object.assign(hub, { endpoint: `http://127.0.0.1:${(server.address() as AddressInfo).port}` });
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return hub;
}

function json(response: ServerResponse, value: unknown, status = 200): void {
  const text = JSON.stringify(value);
  response
    .writeHead(status, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) })
    .end(text);
}

function answer(hub: UploadHub, name: string, request: IncomingMessage, body: Buffer, response: ServerResponse): void {
  const storage = /^PUT \/storage\/([0-9a-f]{64})$/.exec(name)?.[1];
  if (storage !== undefined) {
    if (request.headers.authorization !== undefined) hub.leaked.push(request.headers.authorization);
    const right = sha256(body) === storage;
    if (right) hub.stored.set(storage, body);
    return void json(response, {}, right ? 200 : 400);
  }
  if (request.headers.authorization !== `Bearer ${TOKEN}`) return void json(response, { error: 'Invalid token' }, 401);
  switch (name) {
    case 'POST /api/repos/create':
      if (hub.files) return void json(response, { error: 'You already created this model repo' }, 409);
      hub.files = new Map([['.gitattributes', Buffer.from('*.safetensors filter=lfs\n')]]);
      hub.private = JSON.parse(body.toString()).visibility === 'private';
      return void json(response, { url: `${hub.endpoint}/acme/out`, id: 'acme/out' });
    case 'POST /api/models/acme/out/preupload/main': {
      const asked = JSON.parse(body.toString()) as { files: { path: string }[] };
      const mode = (file: string) => (/\.(safetensors|gguf)$/.test(file) ? 'lfs' : 'regular');
      return void json(response, {
        files: asked.files.map((file) => ({ path: file.path, uploadMode: mode(file.path), shouldIgnore: false })),
      });
    }
    case 'POST /acme/out.git/info/lfs/objects/batch': {
      const { objects } = JSON.parse(body.toString()) as { objects: { oid: string; size: number }[] };
      const href = (oid: string) => ({ upload: { href: `${hub.endpoint}/storage/${oid}` } });
      return void json(response, {
        transfer: 'basic',
        objects: objects.map(({ oid, size }) => ({ oid, size, ...(!hub.stored.has(oid) && { actions: href(oid) }) })),
      });
    }
    case 'POST /api/models/acme/out/commit/main':
      return void take(hub, body, response);
  }
  if (!hub.files) return void json(response, { error: 'Repository not found' }, 404);
  if (name === 'GET /api/models/acme/out/revision/main') return void json(response, facts(hub));
  if (name === `GET /api/models/acme/out/tree/${hub.commit}`)
    return void json(
      response,
      [...hub.files].map(([path, bytes]) => ({ type: 'file', path, size: bytes.length, oid: gitSha1(bytes) })),
    );
  json(response, { error: 'Not found' }, 404);
}

function facts({ commit, private: hidden }: UploadHub) {
  const likes = { downloads: 0, likes: 0, gated: false, lastModified: '2026-01-01T00:00:00.000Z' };
  return { _id: '1', id: 'acme/out', sha: commit, private: hidden, ...likes };
}

/** A commit: all of it, or an error and nothing. */
function take(hub: UploadHub, body: Buffer, response: ServerResponse): void {
  const files = new Map(hub.files);
  for (const line of body.toString().split('\n')) {
    const { key, value } = JSON.parse(line);
    if (key === 'header') {
      if (value.parentCommit !== undefined && value.parentCommit !== hub.commit)
        return void json(response, { error: 'The branch has moved' }, 412);
      hub.titles.push(value.summary);
    } else if (key === 'file') files.set(value.path, Buffer.from(value.content, 'base64'));
    else if (key === 'deletedFile') files.delete(value.path);
    else if (key === 'lfsFile' && hub.stored.has(value.oid)) files.set(value.path, hub.stored.get(value.oid) as Buffer);
    else return void json(response, { error: `no such object: ${line.slice(0, 80)}` }, 400);
  }
  hub.files = files;
  hub.commit = 'b'.repeat(40);
  json(response, { commitOid: hub.commit, commitUrl: `${hub.endpoint}/acme/out/commit/${hub.commit}` });
}
