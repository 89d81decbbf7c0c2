import { randomUUID } from 'node:crypto';
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { link, mkdir, readlink, rename, symlink, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { checkedFile, type HubFile, isCommit } from './listing.js';
import type { ModelName } from './name.js';
import { selectFiles, shardsOf } from './selection.js';

/**
 * One repository in the cache, laid out as Python's huggingface_hub lays it out (2.0, and readable by all before it):
 *
 *   models--ORG--NAME/
 *     blobs/ETAG                  contents; ETAG.incomplete while it is being downloaded
 *     refs/REVISION               the commit that a branch or tag stood for
 *     snapshots/COMMIT/PATH       a relative link to a blob
 *     trees/COMMIT.json           the listing of the commit
 *     .no_exist/COMMIT/PATH       an empty file: the commit has no such file
 *   .locks/models--ORG--NAME/ETAG.lock
 */
export class RepositoryCache {
  readonly root: string;
  private readonly locks: string;

  constructor(
    cache: string,
    readonly model: ModelName,
  ) {
    const folder = `models--${model.id.replaceAll('/', '--')}`;
    this.root = path.join(cache, folder);
    this.locks = path.join(cache, '.locks', folder);
  }

  blob(file: HubFile): string {
    return path.join(this.root, 'blobs', file.etag);
  }

  lock(file: HubFile): string {
    return path.join(this.locks, `${file.etag}.lock`);
  }

  snapshot(commit: string): string {
    return path.join(this.root, 'snapshots', commit);
  }

  pointer(commit: string, file: string): string {
    return path.join(this.snapshot(commit), file);
  }

  /** The commit that a revision stood for when it was last looked up; undefined when it never was. */
  commitOf(revision: string): string | undefined {
    if (isCommit(revision)) return revision;
    const commit = contents(path.join(this.root, 'refs', revision))?.trim();
    return commit !== undefined && isCommit(commit) ? commit : undefined;
  }

  async writeRef(revision: string, commit: string): Promise<void> {
    if (isCommit(revision) || this.commitOf(revision) === commit) return;
    await replace(path.join(this.root, 'refs', revision), commit);
  }

  /** The listing of a commit, if it was kept; a damaged one is none. */
  tree(commit: string): HubFile[] | undefined {
    const text = contents(path.join(this.root, 'trees', `${commit}.json`));
    if (text === undefined) return undefined;
    try {
      const { format_version, files } = JSON.parse(text) as Tree;
      if (format_version !== 1) return undefined;
      return Object.entries(files).map(([file, { size, blob_id, lfs_sha256, lfs_size, xet_hash }]) =>
        checkedFile(this.model, {
          type: 'file',
          path: file,
          size,
          oid: blob_id,
          ...(lfs_sha256 && { lfs: { oid: lfs_sha256, size: lfs_size ?? size, pointerSize: 0 } }),
          ...(xet_hash && { xetHash: xet_hash }),
        }),
      );
    } catch {
      return undefined;
    }
  }

  async writeTree(commit: string, files: readonly HubFile[]): Promise<void> {
    const rows = [...files]
      .sort((a, b) => (a.path < b.path ? -1 : 1))
      .map(({ path: file, size, etag, digest, oid, xetHash }) => [
        file,
        {
          size,
          blob_id: oid,
          ...(digest === 'sha256' && { lfs_sha256: etag, lfs_size: size }),
          ...(xetHash && { xet_hash: xetHash }),
        },
      ]);
    const text = JSON.stringify({ format_version: 1, files: Object.fromEntries(rows) }, undefined, 1);
    await replace(path.join(this.root, 'trees', `${commit}.json`), text);
  }

  /** Whether the blob is there in full; a link into the store that Python shares between repositories counts. */
  hasBlob(file: HubFile): boolean {
    return sizeOf(this.blob(file)) === file.size;
  }

  /** Whether a snapshot shows a file in full. */
  shows(commit: string, file: HubFile): boolean {
    return sizeOf(this.pointer(commit, file.path)) === file.size;
  }

  /** Points a file of a snapshot to its blob. */
  async point(commit: string, file: HubFile): Promise<void> {
    const pointer = this.pointer(commit, file.path);
    const blob = this.blob(file);
    const target = path.relative(path.dirname(pointer), blob);
    if ((await readlink(pointer).catch(() => undefined)) === target) return;
    await mkdir(path.dirname(pointer), { recursive: true });
    // Under another name first: a reader never finds the place empty, and two writers do no harm.
    const fresh = `${pointer}.${randomUUID().slice(0, 8)}`;
    try {
      await symlink(target, fresh);
    } catch (error) {
      // A file system without symbolic links; Python moves the blob there too.
      if (!['EPERM', 'ENOSYS', 'EOPNOTSUPP', 'ENOTSUP'].includes((error as NodeJS.ErrnoException).code ?? ''))
        throw error;
      await link(blob, fresh).catch(() => rename(blob, fresh));
    }
    await rename(fresh, pointer);
  }

  /** Notes that a commit has no such files, so that Python need not ask. */
  async noteAbsent(commit: string, files: readonly string[]): Promise<void> {
    const dir = path.join(this.root, '.no_exist', commit);
    await mkdir(dir, { recursive: true });
    for (const file of files) await writeFile(path.join(dir, file), '', { flag: 'a' });
  }

  /**
   * What a snapshot lacks of what lpq needs, [] for nothing, undefined when there is no snapshot. Without a listing
   * (older caches have none) the files that are there say what belongs to them: the weights and config.json.
   * Throws LPQ_HUB_PICKLE, LPQ_HUB_NOT_FOUND, LPQ_SAFETENSORS_INDEX for a listing that cannot be used.
   */
  missing(commit: string): string[] | undefined {
    if (!existsSync(this.snapshot(commit))) return undefined;
    const tree = this.tree(commit);
    return tree ? this.missingOf(commit, tree) : this.missingUnlisted(commit);
  }

  private missingOf(commit: string, tree: readonly HubFile[]): string[] {
    const byPath = new Map(tree.map((file) => [file.path, file]));
    const { index, files } = selectFiles(this.model.id, [...byPath.keys()]);
    const absent = files.filter((file) => !this.shows(commit, byPath.get(file) as HubFile));
    if (index === undefined || absent.includes(index)) return absent;
    const shards = shardsOf(this.model.id, index, this.text(commit, index), new Set(byPath.keys()));
    return [...absent, ...shards.filter((file) => !this.shows(commit, byPath.get(file) as HubFile))];
  }

  private missingUnlisted(commit: string): string[] {
    // Links to blobs that are gone do not count.
    const there = readdirSync(this.snapshot(commit)).filter((file) => existsSync(this.pointer(commit, file)));
    const absent = there.includes('config.json') ? [] : ['config.json'];
    if (!there.some((file) => file.endsWith('.safetensors') || file.endsWith('.safetensors.index.json')))
      return [...absent, 'model.safetensors'];
    const { index } = selectFiles(this.model.id, there);
    if (index === undefined) return absent;
    const named = new Set<string>();
    const all = { has: (file: string) => named.add(file) !== undefined } as unknown as ReadonlySet<string>;
    shardsOf(this.model.id, index, this.text(commit, index), all);
    return [...absent, ...[...named].filter((file) => !there.includes(file))];
  }

  private text(commit: string, file: string): string {
    return readFileSync(this.pointer(commit, file), 'utf8');
  }
}

interface Tree {
  readonly format_version: number;
  readonly files: Readonly<
    Record<
      string,
      {
        size: number;
        blob_id: string;
        lfs_sha256?: string | null;
        lfs_size?: number | null;
        xet_hash?: string | null;
      }
    >
  >;
}

/** Bytes of what a path leads to; undefined when that is no file. */
export function sizeOf(file: string): number | undefined {
  const found = statSync(file, { throwIfNoEntry: false });
  return found?.isFile() ? found.size : undefined;
}

function contents(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return undefined;
  }
}

/** Writes a small file in one step: readers see the old one or the new one. */
async function replace(file: string, text: string): Promise<void> {
  await mkdir(path.dirname(file), { recursive: true });
  const fresh = `${file}.${randomUUID().slice(0, 8)}.tmp`;
  await writeFile(fresh, text);
  await rename(fresh, file);
}
