import { existsSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { readRegularText } from '../../../../formats/directory/read-file.js';
import type { FileTensors } from '../../../../formats/foreign/floats.js';
import { SafetensorsFile } from '../../../../formats/safetensors/read.js';
import { ShardReader } from '../../../../formats/safetensors/shards.js';
import { parseStrictJson } from '../../../../formats/safetensors/strict-json.js';
import { LpqError } from '../../../core/error.js';
import type { Findings } from './finding.js';

/** What of a checkpoint's tensors can be read, though shards may be missing or broken. */
export class ReadableTensors extends ShardReader implements FileTensors {
  constructor(dir: string, files: readonly SafetensorsFile[]) {
    super(dir, files);
    for (const file of files) for (const name of file.names()) if (!this.owner.has(name)) this.owner.set(name, file);
  }

  fingerprint(): string {
    throw new LpqError('LPQ_INTERNAL', `${this.path} is being diagnosed; it has no fingerprint`);
  }
}

/** Opens every shard that is there, and tells of the others, of the index, and of files that nothing reads. */
export function diagnoseFiles(dir: string, findings: Findings): ReadableTensors {
  const present = readdirSync(dir)
    .filter((name) => name.endsWith('.safetensors'))
    .sort();
  const all = readdirSync(dir).sort();
  const indices = all.filter((name) => name.endsWith('.safetensors.index.json'));
  const single = present.includes('model.safetensors');
  const usual = 'model.safetensors.index.json';
  const chosen = indices.includes(usual) ? usual : indices.length === 1 ? indices[0] : undefined;
  const map = chosen !== undefined && !single ? readIndex(path.join(dir, chosen), findings) : undefined;
  if (single && chosen !== undefined)
    findings.add('files', 'warning', `${chosen} is not read: loaders prefer model.safetensors`);
  const wanted = map ? [...new Set(map.values())].sort() : single ? ['model.safetensors'] : present;
  if (!map && !single && present.length !== 1)
    findings.add(
      'files',
      'problem',
      present.length === 0
        ? `${dir} holds no safetensors file`
        : `${dir} holds ${present.length} safetensors files and no index that could be read`,
      {
        expected: 'model.safetensors, or model.safetensors.index.json with its shards',
        ...(all.some((name) => /\.(bin|pt|pth)$/.test(name)) && {
          remedy: 'lpq never unpickles: convert the weights to safetensors first.',
        }),
      },
    );
  const files: SafetensorsFile[] = [];
  for (const name of wanted) {
    const file = path.join(dir, name);
    if (!existsSync(file)) {
      const lost = [...(map ?? [])].filter(([, shard]) => shard === name).length;
      findings.add('files', 'problem', `${name} is missing: the index puts ${lost} tensors in it`, {
        remedy: 'Download it into the directory.',
      });
      continue;
    }
    try {
      files.push(SafetensorsFile.open(file));
    } catch (error) {
      if (!(error instanceof LpqError)) throw error;
      findings.error('files', error);
    }
  }
  for (const name of present)
    if (!wanted.includes(name)) findings.add('files', 'warning', `${name} is not read: no index names it`);
  const tensors = new ReadableTensors(dir, files);
  compareIndex(map, files, tensors, findings);
  findings.looked('files', `${files.length} of ${wanted.length} weight files`);
  return tensors;
}

function compareIndex(
  map: ReadonlyMap<string, string> | undefined,
  files: readonly SafetensorsFile[],
  tensors: ReadableTensors,
  findings: Findings,
): void {
  for (const file of files)
    for (const name of file.names()) {
      const first = tensors.fileOf(name);
      if (first !== file)
        findings.add('files', 'problem', `tensor '${name}' is in two files`, {
          got: `${path.basename(first.path)} and ${path.basename(file.path)}`,
        });
      if (map && !map.has(name))
        findings.add('files', 'problem', `tensor '${name}' of ${path.basename(file.path)} is not in the index`, {
          remedy: 'Loaders will not find it: rebuild the index.',
        });
    }
  const opened = new Set(files.map((file) => path.basename(file.path)));
  for (const [name, shard] of map ?? []) {
    if (!opened.has(shard)) continue; // told with the file
    const holder = tensors.has(name) ? path.basename(tensors.fileOf(name).path) : undefined;
    if (holder !== shard)
      findings.add('files', 'problem', `the index puts tensor '${name}' in ${shard}, which does not hold it`, {
        got: holder === undefined ? 'no file holds it' : `it is in ${holder}`,
      });
  }
}

/** weight_map, without the entries that are told of. */
function readIndex(file: string, findings: Findings): Map<string, string> | undefined {
  let root: unknown;
  try {
    root = parseStrictJson(readRegularText(file));
  } catch (error) {
    findings.add('files', 'problem', `${file} cannot be read: ${(error as Error).message}`);
    return undefined;
  }
  const map = root instanceof Map ? root.get('weight_map') : undefined;
  if (!(map instanceof Map)) {
    findings.add('files', 'problem', `${file} has no weight_map from tensors to shards`);
    return undefined;
  }
  const good = new Map<string, string>();
  for (const [name, shard] of map)
    if (typeof shard === 'string' && /^[^/\\\0:]+\.safetensors$/.test(shard) && !shard.startsWith('..'))
      good.set(name, shard);
    else
      findings.add(
        'files',
        'problem',
        `${file} puts tensor '${name}' in a file that is not a .safetensors file beside it`,
        {
          got: typeof shard === 'string' ? shard : 'no string',
          expected: 'for example model-00001-of-00002.safetensors',
          remedy: 'Do not use it: a path could read or write outside the directory.',
        },
      );
  return good;
}
