import { type ListFileEntry, listFiles, modelInfo } from '@huggingface/hub';
import { LpqError } from '../core/error.js';
import type { HubClient } from './client.js';
import { place, refusal } from './failures.js';
import { isPlain, type ModelName } from './name.js';

/** A file of a repository at one commit. */
export interface HubFile {
  readonly path: string;
  /** Bytes. */
  readonly size: number;
  /** What names its blob: the SHA-256 of a large file, git's object id of another. */
  readonly etag: string;
  /** How `etag` is computed: sha256 of the bytes, or sha1 of git's header and the bytes. */
  readonly digest: 'sha256' | 'git-sha1';
  /** git's object id; of a large file that of its pointer. */
  readonly oid: string;
  readonly xetHash?: string;
}

const COMMIT = /^[0-9a-f]{40}$/;
const SHA256 = /^[0-9a-f]{64}$/;
const MOST_FILES = 100_000;

/** Whether a revision is a commit, which never changes. */
export function isCommit(revision: string): boolean {
  return COMMIT.test(revision);
}

/** The commit that a branch or tag stands for now. Throws LPQ_HUB_*. */
export async function resolveRevision(client: HubClient, model: ModelName): Promise<string> {
  const info = await modelInfo({
    name: model.id,
    revision: model.revision,
    additionalFields: ['sha'],
    hubUrl: client.environment.endpoint,
    fetch: apiFetch(client, model),
  }).catch(notOfTheApi(model));
  const commit: unknown = info.sha;
  if (typeof commit === 'string' && COMMIT.test(commit)) return commit;
  throw malformed(model, 'no commit', commit);
}

/**
 * Every file of a repository at a commit, over all pages of the listing. Throws LPQ_HUB_*: LPQ_HUB_RESPONSE for a
 * listing with paths that lead out of the repository, or with checksums that are none, since both name files here.
 */
export async function listRepository(client: HubClient, model: ModelName, commit: string): Promise<HubFile[]> {
  const files = new Map<string, HubFile>();
  const entries = listFiles({
    repo: { type: 'model', name: model.id },
    revision: commit,
    recursive: true,
    hubUrl: client.environment.endpoint,
    fetch: apiFetch(client, model),
  });
  try {
    for await (const entry of entries) {
      if (entry?.type !== 'file') continue;
      const file = checkedFile(model, entry);
      if (files.has(file.path)) throw malformed(model, 'the same path twice', file.path);
      files.set(file.path, file);
      if (files.size > MOST_FILES) throw malformed(model, 'no end', `more than ${MOST_FILES} files`);
    }
  } catch (cause) {
    notOfTheApi(model)(cause);
  }
  return [...files.values()];
}

/** Where the bytes of a file are. */
export function fileUrl(endpoint: string, model: ModelName, commit: string, file: string): string {
  return `${endpoint}/${model.id}/resolve/${commit}/${file.split('/').map(encodeURIComponent).join('/')}`;
}

/** Checks what will name files of the cache. Exported for listings that are read from it. */
export function checkedFile(model: ModelName, entry: ListFileEntry): HubFile {
  const { path, size, oid, lfs, xetHash } = entry;
  if (typeof path !== 'string' || !path.split('/').every(isPlain))
    throw malformed(model, 'a path out of the repository', path);
  if (typeof oid !== 'string' || !COMMIT.test(oid)) throw malformed(model, `no object id for ${path}`, oid);
  const bytes = lfs?.size ?? size;
  if (!Number.isSafeInteger(bytes) || bytes < 0) throw malformed(model, `no size for ${path}`, bytes);
  const xet = typeof xetHash === 'string' ? { xetHash } : {};
  if (lfs === undefined || lfs === null) return { path, size: bytes, etag: oid, digest: 'git-sha1', oid, ...xet };
  if (typeof lfs.oid !== 'string' || !SHA256.test(lfs.oid)) throw malformed(model, `no SHA-256 for ${path}`, lfs.oid);
  return { path, size: bytes, etag: lfs.oid, digest: 'sha256', oid, ...xet };
}

/** The library's requests go through our client: its tries, time-outs, proxies, and its care for the token. */
function apiFetch(client: HubClient, model: ModelName): typeof fetch {
  return async (input) => {
    const url = new URL(String(input), client.environment.endpoint).href;
    const what = `the model ${model.id}`;
    const { text, headers } = await client.text(url, what, 'application/json', ({ status, headers: got, url: from }) =>
      status === 200 ? undefined : refusal(status, got, from, { ...model, what, hasToken: client.hasToken }),
    );
    try {
      JSON.parse(text);
    } catch {
      throw malformed(model, 'no JSON', `${JSON.stringify(text.slice(0, 60))} from ${place(url)}`);
    }
    const link = headers.link;
    return new Response(text, {
      headers: { 'content-type': 'application/json', ...(link !== undefined && { link: String(link) }) },
    });
  };
}

/** JSON of another shape makes the library throw what it happens to throw. */
function notOfTheApi(model: ModelName): (cause: unknown) => never {
  return (cause) => {
    if (cause instanceof LpqError) throw cause;
    throw malformed(model, 'something that is not in the API', (cause as Error).message, cause);
  };
}

function malformed(model: ModelName, has: string, got: unknown, cause?: unknown): LpqError {
  return new LpqError('LPQ_HUB_RESPONSE', `the server's answer about the model ${model.id} has ${has}`, {
    got: typeof got === 'string' ? got : (JSON.stringify(got) ?? 'nothing'),
    hint: 'Check HF_ENDPOINT and the proxy.',
    cause,
  });
}
