import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { type CommitOperation, type CommitOutput, commitIter, createRepo, HubApiError } from '@huggingface/hub';
import { tell } from '../core/activity.js';
import { LpqError } from '../core/error.js';
import { type ClientOptions, HubClient } from './client.js';
import { type HubEnvironment, hubEnvironment } from './environment.js';
import { refusal, Transient } from './failures.js';
import { listRepository, resolveRevision } from './listing.js';
import { type ModelName, printModelName } from './name.js';

/** What goes to the Hub, and to where. */
export interface PushRequest {
  readonly dir: string;
  /** Relative paths of its files, with their sizes in bytes. */
  readonly files: readonly { readonly path: string; readonly size: number }[];
  /** ORG/NAME, and the branch as its revision. */
  readonly model: ModelName;
  /** Of a repository that is made; one that is there stays as visible as it is. */
  readonly private: boolean;
  /** Weights of the repository that are not in the directory are removed by the same commit, instead of refused. */
  readonly replace: boolean;
  /** Whether a file of the repository holds weights, or says where they lie: two sets of them would be read as one. */
  isWeight(file: string): boolean;
  readonly message: string;
}

export interface PushOptions extends ClientOptions {
  readonly environment?: HubEnvironment | undefined;
  readonly onProgress?: (bytes: number, file: string) => void;
}

export interface Pushed {
  readonly commit: string;
  readonly url: string;
  /** Whether the repository was made. */
  readonly made: boolean;
  readonly removed: readonly string[];
}

/** The library wants a token of this form and never sends it: HubClient.upload puts the user's in its place. */
const TOKEN_FORM = 'hf_upload';

/**
 * Uploads a directory as one commit: large files by Git LFS, then the commit that names them, so that the repository has all of it or
 * nothing. Files that arrived in an earlier try are not sent again. Throws LPQ_HUB_*: ACCESS without a token, CONFLICT where the branch
 * holds other weights or moved meanwhile, OFFLINE with HF_HUB_OFFLINE.
 */
export async function pushDirectory(request: PushRequest, options: PushOptions = {}): Promise<Pushed> {
  const environment = options.environment ?? hubEnvironment();
  const { model } = request;
  const what = `an upload to ${printModelName(model)}`;
  requireWay(environment, what);
  const client = new HubClient(environment, options);
  try {
    const found = await contents(client, model);
    const names = new Set(request.files.map((file) => file.path));
    const others = [...(found?.files ?? [])].filter((name) => request.isWeight(name) && !names.has(name)).sort();
    if (others.length > 0 && !request.replace)
      throw new LpqError('LPQ_HUB_CONFLICT', `${printModelName(model)} holds other weights than ${request.dir}`, {
        got: others.slice(0, 5).join(', '),
        hint: 'Push to another name, or with --replace, which removes them in the same commit.',
      });
    if (!found) await make(client, request, what);
    const output = await commit(client, request, { what, parent: found?.commit, others }, options.onProgress);
    return { commit: output.commit.oid, url: output.commit.url, made: !found, removed: others };
  } finally {
    await client.close();
  }
}

function requireWay({ offline, token }: HubEnvironment, what: string): void {
  if (offline)
    throw new LpqError('LPQ_HUB_OFFLINE', `${what} needs the network, and HF_HUB_OFFLINE forbids it`, {
      hint: 'Unset HF_HUB_OFFLINE.',
    });
  if (token === undefined)
    throw new LpqError('LPQ_HUB_ACCESS', `${what} needs a token`, {
      got: 'no token',
      hint: 'Set HF_TOKEN to a token that may write (docs/hub.md).',
    });
}

/** The files of the branch and its commit; undefined without a repository. */
async function contents(
  client: HubClient,
  model: ModelName,
): Promise<{ readonly commit: string; readonly files: ReadonlySet<string> } | undefined> {
  try {
    const commit = await resolveRevision(client, model);
    return { commit, files: new Set((await listRepository(client, model, commit)).map((file) => file.path)) };
  } catch (error) {
    // A branch that is missing in a repository that is there is told.
    if (error instanceof LpqError && error.code === 'LPQ_HUB_NOT_FOUND' && !/revision/.test(error.message))
      return undefined;
    throw error;
  }
}

async function make(client: HubClient, { model, private: hidden }: PushRequest, what: string): Promise<void> {
  if (model.revision !== 'main')
    throw new LpqError('LPQ_HUB_NOT_FOUND', `there is no ${model.id} with a branch '${model.revision}' to push to`, {
      hint: `Push to ${model.id} first.`,
    });
  await attempts(client, model, what, async () => {
    await createRepo({
      repo: { type: 'model', name: model.id },
      ...(hidden && { visibility: 'private' as const }),
      accessToken: TOKEN_FORM,
      hubUrl: client.environment.endpoint,
      fetch: client.upload(what),
    }).catch((error: unknown) => {
      // Another process made it meanwhile.
      if (!(error instanceof HubApiError && error.statusCode === 409)) throw error;
    });
  });
}

async function commit(
  client: HubClient,
  { dir, files, model, message }: PushRequest,
  { what, parent, others }: { what: string; parent: string | undefined; others: readonly string[] },
  onProgress: PushOptions['onProgress'],
): Promise<CommitOutput> {
  const sizes = new Map(files.map((file) => [file.path, file.size]));
  const arrived = new Map<string, number>();
  const sum = () => [...arrived].reduce((bytes, [name, share]) => bytes + share * (sizes.get(name) ?? 0), 0);
  const operations: CommitOperation[] = [
    ...files.map((file) => ({
      operation: 'addOrUpdate' as const,
      path: file.path,
      content: pathToFileURL(path.join(dir, file.path)),
    })),
    ...others.map((name) => ({ operation: 'delete' as const, path: name })),
  ];
  return attempts(
    client,
    model,
    what,
    async () => {
      const steps = commitIter({
        repo: { type: 'model', name: model.id },
        branch: model.revision,
        title: message,
        operations,
        accessToken: TOKEN_FORM,
        ...(parent !== undefined && { parentCommit: parent }),
        hubUrl: client.environment.endpoint,
        fetch: client.upload(what),
        abortSignal: client.signal,
        useXet: false,
      });
      for (;;) {
        const step = await steps.next();
        if (step.done) return made(step.value, what);
        const event = step.value;
        if (event.event === 'phase') tell(event.phase === 'committing' ? 'committing' : 'asking the Hub');
        else if (event.state === 'hashing') tell(`hashing ${event.path}`);
        else {
          arrived.set(event.path, Math.max(arrived.get(event.path) ?? 0, event.progress));
          onProgress?.(sum(), event.path);
        }
      }
    },
    sum,
  );
}

function made(output: CommitOutput | undefined, what: string): CommitOutput {
  if (typeof output?.commit.oid === 'string') return output;
  throw new LpqError('LPQ_HUB_RESPONSE', `the server's answer for ${what} names no commit`, {
    hint: 'Check HF_ENDPOINT and the proxy.',
  });
}

/** Tries as often as the client does, and makes errors of ours of the library's. */
async function attempts<T>(
  client: HubClient,
  model: ModelName,
  what: string,
  work: () => Promise<T>,
  progress?: () => number,
): Promise<T> {
  try {
    return await client.persist(async () => {
      try {
        return await work();
      } catch (cause) {
        client.check();
        throw cause instanceof HubApiError ? refused(cause, model, what, client.hasToken) : cause;
      }
    }, progress);
  } catch (error) {
    if (error instanceof Transient || (error instanceof LpqError && error.code !== 'LPQ_HUB_CUT_OFF')) throw error;
    if (error instanceof LpqError)
      throw new LpqError(error.code, error.message, {
        got: error.got,
        hint: 'Run the command again: lpq does not send files again that arrived, and nothing shows before the commit.',
        cause: error,
      });
    throw new LpqError('LPQ_HUB_RESPONSE', `the server's answer for ${what} is not one of the Hub's`, {
      got: (error as Error).message,
      hint: 'Check HF_ENDPOINT and the proxy.',
      cause: error,
    });
  }
}

function refused(error: HubApiError, model: ModelName, what: string, hasToken: boolean): LpqError | Transient {
  const { statusCode, url } = error;
  if (statusCode === 409 || statusCode === 412)
    return new LpqError('LPQ_HUB_CONFLICT', `${printModelName(model)} changed while lpq sent files to it`, {
      got: `status ${statusCode}`,
      hint: 'Look at the new commit, then run the command again: lpq does not send files again that arrived.',
      cause: error,
    });
  return refusal(statusCode, {}, url, { ...model, what, hasToken });
}
