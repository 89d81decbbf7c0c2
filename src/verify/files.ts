import { existsSync } from 'node:fs';
import path from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { expertRanks } from '../../formats/artifact/expert-ranks.js';
import type { ArtifactManifest } from '../../formats/artifact/schema.js';
import { expectedSeal } from '../../formats/artifact/seal.js';
import { hashFile } from '../../formats/artifact/write.js';
import { listFiles } from '../../formats/directory/output-directory.js';
import { readRegularText } from '../../formats/directory/read-file.js';
import type { Checkpoint } from '../../formats/safetensors/checkpoint.js';
import { encodeHeader } from '../../formats/safetensors/header.js';
import { parseStrictJson, StrictJsonError } from '../../formats/safetensors/strict-json.js';
import type { Recorder } from './report.js';
import { verifiedTarget } from './targets/index.js';

const INDEX = 'model.safetensors.index.json';
/** Settings of quantization, which loaders look for beside config.json: the packer writes them anew, or leaves them out. */
const SETTINGS = ['quantize_config.json', 'quant_config.json', 'hf_quant_config.json'];
/** Written anew by the packer, so not to be found byte for byte in the quantized checkpoint. */
const REGENERATED = ['lpq.json', 'config.json', INDEX, 'README.md', 'README.base.md', ...SETTINGS];
/** Weights in any container, and indices over them: loaders take what they find. */
const WEIGHTS = /\.(safetensors|bin|pt|pth|ckpt|pkl|msgpack|h5|onnx|onnx_data|gguf)$|\.index\.json$/i;
/** What no engine reads, and a publisher adds. */
const PROSE = /^(README|LICENSE)[^/]*$|^\.gitattributes$/i;

/** lpq.json against its own seal. */
export function checkSeal(recorder: Recorder, dir: string, manifest: ArtifactManifest): void {
  const expected = expectedSeal(readRegularText(path.join(dir, 'lpq.json')));
  if (manifest.seal === undefined) {
    recorder.unproved.push('lpq.json has no seal: its notes and provenance are unproved');
    recorder.detail('manifest', 'lpq.json has no seal');
    return;
  }
  const message = 'lpq.json was changed after it was written: its seal does not match';
  const seals = { got: manifest.seal, ...(expected !== undefined && { expected }) };
  recorder.check(manifest.seal === expected, { check: 'manifest', ...seals, message });
}

/** Every file of the directory is listed and hashes as listed; every shard belongs to the checkpoint. */
export async function checkFiles(
  recorder: Recorder,
  dir: string,
  manifest: ArtifactManifest,
  weights: Checkpoint,
): Promise<void> {
  const shards = weights.files.map((file) => path.relative(dir, file.path));
  await checkListed(recorder, dir, manifest, shards, verifiedTarget(manifest.target)?.files ?? []);
  const total = String(shards.length).padStart(5, '0');
  for (const [i, file] of weights.files.entries()) {
    const name = path.basename(file.path);
    const number = String(i + 1).padStart(5, '0');
    const usual = shards.length === 1 ? 'model.safetensors' : `model-${number}-of-${total}.safetensors`;
    const called = `${name} is not the name of a shard of ${shards.length}`;
    recorder.check(name === usual, { check: 'files', got: name, expected: usual, message: called });
    // Not covered by any tensor's hash; transformers reads only this one key.
    const metadata = { got: JSON.stringify(file.metadata), expected: '{"format":"pt"}' };
    const other = `the header of ${name} has metadata that lpq does not write`;
    const usualMetadata = isDeepStrictEqual({ ...(file.metadata ?? { format: 'pt' }) }, { format: 'pt' });
    recorder.check(usualMetadata, { check: 'files', ...metadata, message: other });
    const written = encodeHeader(file.header.tensors, file.metadata ?? {});
    const message = `the header of ${name} is not written as lpq writes it: unknown fields, spaces or another order`;
    recorder.check(Buffer.compare(file.headerBytes(), written) === 0, { check: 'files', message });
  }
  checkIndex(recorder, dir, weights);
  checkExpertRanks(recorder, manifest, weights);
}

/** Where ranks of expert parallelism have files of their own, a file holds what one of them reads, or what all do. */
function checkExpertRanks(recorder: Recorder, { expertRanks: ranks }: ArtifactManifest, weights: Checkpoint): void {
  if (ranks === undefined) return;
  const names = [...weights.names()];
  const { rankOf, least } = expertRanks(names, ranks);
  const few = `there are ${least} experts for ${ranks} ranks of expert parallelism`;
  recorder.check(least >= ranks, { check: 'files', message: few });
  const held = new Map<string, Map<number | undefined, string>>();
  for (const name of names) {
    const file = path.basename(weights.fileOf(name).path);
    held.set(file, (held.get(file) ?? new Map()).set(rankOf(name), name));
  }
  for (const [file, ranks] of held) {
    const got = [...ranks].map(([rank, tensor]) => `${said(rank)}: ${tensor}`).sort();
    const message = `${file} holds tensors of several ranks of expert parallelism`;
    recorder.check(ranks.size === 1, { check: 'files', got: got.join(', '), expected: 'tensors of one rank', message });
  }
}

function said(rank: number | undefined): string {
  return rank === undefined ? 'all ranks' : `rank ${rank}`;
}

/**
 * Every file is listed and hashes as listed. Weights beside `weightFiles`, and settings that the target does not make
 * (`made`), are differences even where the manifest lists them: an engine would read them.
 */
export async function checkListed(
  recorder: Recorder,
  dir: string,
  manifest: ArtifactManifest,
  weightFiles: readonly string[],
  made: readonly string[],
): Promise<void> {
  const present = new Set(await listFiles(dir));
  const own = new Set(['lpq.json', ...weightFiles]);
  for (const [name, expected] of Object.entries(manifest.files)) {
    const listed = present.has(name);
    const got = listed ? await hashFile(path.join(dir, name)) : 'nothing';
    const message = listed ? `the bytes of ${name} have changed since they were written` : `${name} is missing`;
    if (PROSE.test(name) && got !== expected) recorder.note(`${message}; no engine reads it`);
    else recorder.check(got === expected, { check: 'files', got, expected, message });
  }
  for (const name of present) {
    if (own.has(name)) continue;
    const listed = Object.hasOwn(manifest.files, name);
    if (PROSE.test(name) && !listed) {
      recorder.note(`${name} is in the directory but not in lpq.json; no engine reads it`);
      continue;
    }
    recorder.check(listed, { check: 'files', message: `${name} is in the directory but not in lpq.json` });
    const stray = WEIGHTS.test(name) && !(name === INDEX && weightFiles.length > 1);
    const read = `${name} is not one of the artifact's weight files, but a loader that takes all files would read it`;
    recorder.check(!stray, { check: 'files', message: read });
    const states = `${name} states a quantization, but an artifact for ${manifest.target} has no such file`;
    recorder.check(made.includes(name) || !SETTINGS.includes(name), { check: 'files', message: states });
  }
  for (const name of ['config.json', 'lpq.json', ...SETTINGS]) if (present.has(name)) checkJson(recorder, dir, name);
}

/** Readers differ in which of two equal keys they take. */
function checkJson(recorder: Recorder, dir: string, name: string): void {
  try {
    parseStrictJson(readRegularText(path.join(dir, name)));
    recorder.count('files');
  } catch (error) {
    if (!(error instanceof StrictJsonError)) throw error;
    const message = `${name} reads differently in different programs: ${error.message}`;
    recorder.check(false, { check: 'files', message });
  }
}

function checkIndex(recorder: Recorder, dir: string, weights: Checkpoint): void {
  const file = path.join(dir, INDEX);
  if (!existsSync(file)) return;
  let index: unknown;
  try {
    index = JSON.parse(readRegularText(file));
  } catch {
    index = undefined; // a single-file checkpoint does not read it, so nobody has complained yet
  }
  const names = [...weights.names()];
  const map = Object.fromEntries(names.map((name) => [name, path.basename(weights.fileOf(name).path)]));
  const total = names.reduce((sum, name) => sum + weights.spec(name).end - weights.spec(name).begin, 0);
  recorder.check(isDeepStrictEqual(index, { metadata: { total_size: total }, weight_map: map }), {
    check: 'files',
    message: 'model.safetensors.index.json does not match the shards',
  });
}

/** Each tensor of the shards is listed once, each listed one is there. */
export function checkTensorNames(recorder: Recorder, manifest: ArtifactManifest, weights: Checkpoint): void {
  const owners = new Map<string, string>();
  const own = (tensor: string, owner: string): void => {
    const other = owners.get(tensor);
    const message = `lpq.json lists tensor '${tensor}' under ${other} and under ${owner}`;
    recorder.check(other === undefined, { check: 'tensors', tensor, message });
    owners.set(tensor, owner);
  };
  for (const [module, { tensors }] of Object.entries(manifest.modules))
    for (const name of Object.keys(tensors)) own(name, `module '${module}'`);
  for (const name of Object.keys(manifest.carried)) own(name, 'the carried tensors');
  for (const name of Object.keys(manifest.kvScales?.tensors ?? {})) own(name, 'the scales of the cache');
  for (const tensor of weights.names()) {
    const message = `tensor '${tensor}' is in the shards but not in lpq.json`;
    recorder.check(owners.has(tensor), { check: 'tensors', tensor, message });
  }
}

/**
 * With --against: the files are those that a packer carries from the quantized checkpoint, byte by byte, and config.json is
 * its but for quantization_config. `made`: files of the artifact alone.
 */
export async function compareFiles(
  recorder: Recorder,
  dir: string,
  config: Readonly<Record<string, unknown>>,
  canonicalDir: string,
  canonicalConfig: Readonly<Record<string, unknown>>,
  made: readonly string[],
): Promise<void> {
  const bare = (whole: Readonly<Record<string, unknown>>) => {
    const { quantization_config: _, compression_config: _older, ...rest } = whole;
    const { quantization_config: _inner, ...text } = (rest.text_config ?? {}) as Record<string, unknown>;
    return rest.text_config ? { ...rest, text_config: text } : rest;
  };
  const same = isDeepStrictEqual(bare(config), bare(canonicalConfig));
  recorder.check(same && isDeepStrictEqual(spelled(dir), spelled(canonicalDir)), {
    check: 'against',
    message: `config.json differs from the quantized checkpoint beyond quantization_config${same ? ': in the spelling of a number' : ''}`,
  });
  const theirs = new Set(carriedFiles(await listFiles(canonicalDir)));
  for (const name of await listFiles(dir)) {
    if (made.includes(name) || REGENERATED.includes(name)) continue;
    const both = theirs.delete(name);
    const equal = both && (await hashFile(path.join(dir, name))) === (await hashFile(path.join(canonicalDir, name)));
    const message = both
      ? `${name} differs from the quantized checkpoint's`
      : `${name} is not in the quantized checkpoint`;
    if (!PROSE.test(name)) recorder.check(equal, { check: 'against', message });
    else if (!equal) recorder.note(`${message}; no engine reads it`);
  }
  for (const name of theirs) {
    const message = `${name} of the quantized checkpoint is missing`;
    if (PROSE.test(name)) recorder.note(`${message}; no engine reads it`);
    else recorder.check(false, { check: 'against', message });
  }
}

/** config.json with its numbers as they are written, for 30 is no float to a loader that asks for 30.0. */
function spelled(dir: string): unknown {
  try {
    const root = parseStrictJson(readRegularText(path.join(dir, 'config.json')));
    if (!(root instanceof Map)) return root;
    const text = root.get('text_config');
    if (text instanceof Map) text.delete('quantization_config');
    for (const key of ['quantization_config', 'compression_config']) root.delete(key);
    return root;
  } catch (error) {
    if (error instanceof StrictJsonError) return undefined; // checkJson tells of the artifact's
    throw error;
  }
}

/** What of a checkpoint's files goes into an artifact: no weights, nothing hidden, no output of lpq inside it. */
function carriedFiles(names: readonly string[]): string[] {
  const outputs = names.filter((name) => name.endsWith('/lpq.json')).map((name) => path.posix.dirname(name));
  return names.filter(
    (name) =>
      !REGENERATED.includes(name) &&
      !WEIGHTS.test(name) &&
      !name.split('/').some((part) => part.startsWith('.')) &&
      !outputs.some((output) => name.startsWith(`${output}/`)),
  );
}
