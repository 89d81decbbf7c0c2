import { existsSync } from 'node:fs';
import path from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import type { ArtifactManifest } from '../../formats/artifact/schema.js';
import { expectedSeal } from '../../formats/artifact/seal.js';
import { hashFile } from '../../formats/artifact/write.js';
import { listFiles } from '../../formats/directory/output-directory.js';
import { readRegularText } from '../../formats/directory/read-file.js';
import type { Checkpoint } from '../../formats/safetensors/checkpoint.js';
import type { Recorder } from './report.js';

/** Written anew by the packer, so not to be found byte for byte in the quantized checkpoint. */
const REGENERATED = new Set([
  'lpq.json',
  'config.json',
  'quantize_config.json',
  'quant_config.json',
  'model.safetensors.index.json',
  'report.json',
  'report.html',
]);

/** lpq.json against its own seal. */
export function checkSeal(recorder: Recorder, dir: string, manifest: ArtifactManifest): void {
  const expected = expectedSeal(readRegularText(path.join(dir, 'lpq.json')));
  if (manifest.seal === undefined) {
    recorder.unproved.push('lpq.json has no seal: its notes and provenance are taken as they stand');
    recorder.detail('manifest', 'lpq.json has no seal');
    return;
  }
  recorder.check(manifest.seal === expected, {
    check: 'manifest',
    got: manifest.seal,
    ...(expected !== undefined && { expected }),
    message: 'lpq.json was changed after it was written: its seal does not fit',
  });
}

/** Every file of the directory is listed and hashes as listed; every shard belongs to the checkpoint. */
export async function checkFiles(
  recorder: Recorder,
  dir: string,
  manifest: ArtifactManifest,
  weights: Checkpoint,
): Promise<void> {
  const shards = new Set(weights.files.map((file) => path.relative(dir, file.path)));
  const present = new Set(await listFiles(dir));
  for (const [name, expected] of Object.entries(manifest.files)) {
    const listed = present.has(name);
    const got = listed ? await hashFile(path.join(dir, name)) : 'nothing';
    const message = listed ? `the bytes of ${name} are not those that were written` : `${name} is missing`;
    recorder.check(got === expected, { check: 'files', got, expected, message });
  }
  for (const name of present)
    recorder.check(name === 'lpq.json' || shards.has(name) || Object.hasOwn(manifest.files, name), {
      check: 'files',
      message: `${name} is in the directory but not in lpq.json`,
    });
  for (const file of weights.files) {
    const name = path.basename(file.path);
    // Not covered by any tensor's hash; transformers reads only this one key.
    recorder.check(isDeepStrictEqual({ ...(file.metadata ?? { format: 'pt' }) }, { format: 'pt' }), {
      check: 'files',
      got: JSON.stringify(file.metadata),
      expected: '{"format":"pt"}',
      message: `the header of ${name} has other metadata than lpq writes`,
    });
  }
  checkIndex(recorder, dir, weights);
}

function checkIndex(recorder: Recorder, dir: string, weights: Checkpoint): void {
  const file = path.join(dir, 'model.safetensors.index.json');
  if (!existsSync(file)) return;
  let index: unknown;
  try {
    index = JSON.parse(readRegularText(file));
  } catch {
    index = undefined; // a single-file checkpoint does not read it, so nobody has complained yet
  }
  const map: Record<string, string> = {};
  let total = 0;
  for (const name of weights.names()) {
    map[name] = path.basename(weights.fileOf(name).path);
    const { begin, end } = weights.spec(name);
    total += end - begin;
  }
  recorder.check(isDeepStrictEqual(index, { metadata: { total_size: total }, weight_map: map }), {
    check: 'files',
    message: 'model.safetensors.index.json does not say what the shards hold',
  });
}

/** Each tensor of the shards is listed once, each listed one is there. */
export function checkTensorNames(recorder: Recorder, manifest: ArtifactManifest, weights: Checkpoint): void {
  const owners = new Map<string, string>();
  const own = (tensor: string, owner: string): void => {
    const other = owners.get(tensor);
    recorder.check(other === undefined, {
      check: 'tensors',
      tensor,
      message: `lpq.json lists tensor '${tensor}' under ${other} and under ${owner}`,
    });
    owners.set(tensor, owner);
  };
  for (const [module, { tensors }] of Object.entries(manifest.modules))
    for (const name of Object.keys(tensors)) own(name, `module '${module}'`);
  for (const name of Object.keys(manifest.carried)) own(name, 'the carried tensors');
  for (const tensor of weights.names())
    recorder.check(owners.has(tensor), {
      check: 'tensors',
      tensor,
      message: `tensor '${tensor}' is in the shards but not in lpq.json`,
    });
}

/**
 * With --against: the model's other files are the quantized checkpoint's, config.json but for quantization_config. `made`:
 * files of the artifact alone.
 */
export async function compareFiles(
  recorder: Recorder,
  dir: string,
  config: Readonly<Record<string, unknown>>,
  canonicalDir: string,
  canonicalConfig: Readonly<Record<string, unknown>>,
  made: readonly string[] = [],
): Promise<void> {
  const bare = ({ quantization_config: _, ...rest }: Readonly<Record<string, unknown>>) => rest;
  recorder.check(isDeepStrictEqual(bare(config), bare(canonicalConfig)), {
    check: 'against',
    message: 'config.json differs from the quantized checkpoint beyond quantization_config',
  });
  const plain = async (place: string) =>
    new Set((await listFiles(place)).filter((name) => !REGENERATED.has(name) && !isShard(name)));
  const theirs = await plain(canonicalDir);
  for (const name of await plain(dir)) {
    if (made.includes(name)) continue;
    const both = theirs.delete(name);
    const same = both && (await hashFile(path.join(dir, name))) === (await hashFile(path.join(canonicalDir, name)));
    recorder.check(same, {
      check: 'against',
      message: both ? `${name} differs from the quantized checkpoint's` : `${name} is not in the quantized checkpoint`,
    });
  }
  for (const name of theirs)
    if (!path.basename(name).startsWith('.'))
      recorder.check(false, { check: 'against', message: `${name} of the quantized checkpoint is missing` });
}

function isShard(name: string): boolean {
  return name.endsWith('.safetensors') || name.endsWith('.safetensors.index.json');
}
