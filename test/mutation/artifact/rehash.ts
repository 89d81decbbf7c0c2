import { createHash } from 'node:crypto';
import type { ArtifactManifest } from '../../../formats/artifact/schema.js';
import { sealManifest } from '../../../formats/artifact/seal.js';
import { ggufTypeOf } from '../../../formats/gguf/types.js';
import { hashTensor } from '../../../formats/safetensors/hash.js';
import type { Json } from '../model.js';
import { type Artifact, GGUF_FILE, ggufBytes, type Weight, weightsOf } from './open.js';

/**
 * Which hashes follow a change. all: every one that the bytes at hand decide, those of carried and plain tensors too.
 * packed: those of packed tensors, files and the seal, while what the quantized checkpoint vouches for stays.
 */
export type Rehash = 'all' | 'packed';

const digest = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex');

/** A tensor's hash as the manifest has it: of a GGUF type by its name. */
function tensorHash({ name, dtype, shape, bytes }: Weight): Promise<string> {
  const known = typeof dtype === 'number' ? (ggufTypeOf(dtype)?.name ?? '') : dtype;
  return hashTensor({ name, dtype: known, shape }, bytes);
}

type Entry = { layout?: unknown; tensors?: Json; canonical?: Json };

/** The text of lpq.json with hashes and seal made to fit. `sealed` false: without a seal, as lpq accepts it. */
export async function rehashed(artifact: Artifact, how: Rehash, sealed = true): Promise<string> {
  const manifest = structuredClone(artifact.manifest);
  const hashes = new Map<string, string>();
  for (const weight of weightsOf(artifact)) hashes.set(weight.name, await tensorHash(weight));
  const follow = (record: unknown): void => {
    if (!isObject(record)) return;
    for (const name of Object.keys(record)) if (hashes.has(name)) record[name] = hashes.get(name);
  };
  const modules = isObject(manifest.modules) ? manifest.modules : {};
  for (const [name, value] of Object.entries(modules)) {
    if (!isObject(value)) continue;
    const entry = value as Entry;
    follow(entry.tensors);
    if (how === 'packed' || !isObject(entry.canonical)) continue;
    // Where the stored bytes are the canonical ones, or the plain weight.
    for (const part of Object.keys(entry.canonical)) {
      const stored = hashes.get(`${name}.${part}`);
      if (stored && (entry.layout === 'carried' || entry.layout === 'dense')) entry.canonical[part] = stored;
    }
  }
  if (how === 'all') follow(manifest.carried);
  if (isObject(manifest.kvScales)) follow(manifest.kvScales.tensors);
  if (isObject(manifest.files)) {
    const files: Record<string, string> = {};
    const all = new Map([...artifact.files].filter(([name]) => !name.endsWith('.safetensors')));
    if (artifact.gguf) all.set(GGUF_FILE, ggufBytes(artifact.gguf));
    for (const name of [...all.keys()].sort()) files[name] = digest(all.get(name) as Buffer);
    manifest.files = files;
  }
  if (!sealed) {
    delete manifest.seal;
    return `${JSON.stringify(manifest, null, 2)}\n`;
  }
  return sealManifest(manifest as unknown as ArtifactManifest).text;
}

export function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
