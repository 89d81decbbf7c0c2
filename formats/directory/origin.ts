import path from 'node:path';

/**
 * What a checkpoint is called: ORG/NAME and its commit in a cache of Python's huggingface_hub
 * (models--ORG--NAME/snapshots/COMMIT), elsewhere the name of its directory.
 */
export function directoryOrigin(dir: string): { name: string; revision: string | null } {
  const parts = path.resolve(dir).split(path.sep);
  const [repository = '', snapshots, commit = ''] = parts.slice(-3);
  const id = /^models--(.+)$/.exec(repository)?.[1];
  if (id !== undefined && snapshots === 'snapshots' && /^[0-9a-f]{40}$/.test(commit))
    return { name: id.replace('--', '/'), revision: commit };
  return { name: commit, revision: null };
}
