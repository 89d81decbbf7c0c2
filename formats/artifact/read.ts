import { existsSync } from 'node:fs';
import path from 'node:path';
import type { DType, Tensor } from '../../native/binding.js';
import { tell } from '../../src/core/activity.js';
import { LpqError } from '../../src/core/error.js';
import { type HashMismatch, readManifest } from '../canonical/read.js';
import { listFiles } from '../directory/output-directory.js';
import { Checkpoint, readConfig } from '../safetensors/checkpoint.js';
import { hashTensor } from '../safetensors/hash.js';
import { type ArtifactManifest, artifactSchema, type PackedModule } from './schema.js';
import { hashFile } from './write.js';

/** A packed directory, mapped. What opens has exactly the tensors that its manifest lists; their bytes are unproved. */
export class Artifact {
  private constructor(
    readonly dir: string,
    readonly manifest: ArtifactManifest,
    readonly config: Record<string, unknown>,
    readonly weights: Checkpoint,
  ) {}

  /** Throws LPQ_ARTIFACT naming the place in lpq.json or the tensor; LPQ_FILE, LPQ_CONFIG, LPQ_SAFETENSORS. */
  static open(dir: string): Artifact {
    const manifest = readManifest(dir, artifactSchema, 'LPQ_ARTIFACT');
    const config = readConfig(dir);
    const weights = Checkpoint.open(dir);
    try {
      checkTensors(dir, manifest, weights);
    } catch (error) {
      weights.close();
      throw error;
    }
    return new Artifact(dir, manifest, config, weights);
  }

  moduleNames(): string[] {
    return Object.keys(this.manifest.modules);
  }

  /** Throws LPQ_TENSOR_MISSING. */
  module(name: string): PackedModule {
    const module = Object.hasOwn(this.manifest.modules, name) ? this.manifest.modules[name] : undefined;
    if (module) return module;
    throw new LpqError('LPQ_TENSOR_MISSING', `${this.dir} has no packed module '${name}'`);
  }

  /** A tensor by its full name, mapped; see TensorReader.tensor. */
  tensor(name: string, as?: DType): Tensor {
    return this.weights.tensor(name, as);
  }

  /** Compares every tensor with the manifest's hash. `onBytes` tells of progress. */
  async verifyTensors(onBytes?: (bytes: number) => void): Promise<HashMismatch[]> {
    const mismatches: HashMismatch[] = [];
    let done = 0;
    const total = [...this.weights.names()].length;
    const check = async (name: string, expected: string, module?: string): Promise<void> => {
      tell(`hashing ${name}`, done++, total);
      const tensor = this.weights.tensor(name);
      const got = await hashTensor(this.weights.spec(name), tensor);
      onBytes?.(tensor.byteLength);
      tensor.dispose();
      if (got !== expected) mismatches.push({ name, expected, got, ...(module !== undefined && { module }) });
    };
    for (const [module, { tensors }] of Object.entries(this.manifest.modules))
      for (const [name, hash] of Object.entries(tensors)) await check(name, hash, module);
    const { carried, kvScales } = this.manifest;
    for (const [name, hash] of Object.entries({ ...carried, ...kvScales?.tensors })) await check(name, hash);
    return mismatches;
  }

  /** Compares the other files with the manifest: changed, missing, or not listed. */
  async verifyFiles(): Promise<HashMismatch[]> {
    const mismatches: HashMismatch[] = [];
    for (const [name, expected] of Object.entries(this.manifest.files)) {
      const file = path.join(this.dir, name);
      const got = leavesDirectory(name)
        ? 'a path out of the directory'
        : existsSync(file)
          ? await hashFile(file)
          : 'missing';
      if (got !== expected) mismatches.push({ name, expected, got });
    }
    for (const name of await listFiles(this.dir))
      if (name !== 'lpq.json' && !name.endsWith('.safetensors') && !Object.hasOwn(this.manifest.files, name))
        mismatches.push({ name, expected: 'not listed', got: await hashFile(path.join(this.dir, name)) });
    return mismatches;
  }

  close(): void {
    this.weights.close();
  }
}

function checkTensors(dir: string, manifest: ArtifactManifest, weights: Checkpoint): void {
  const owners = new Map<string, string>();
  const own = (name: string, owner: string): void => {
    const other = owners.get(name);
    if (other !== undefined) bad(`${dir}/lpq.json lists tensor '${name}' under ${other} and under ${owner}`);
    if (!weights.has(name)) bad(`${dir}: tensor '${name}' of ${owner} is not in the shards`);
    owners.set(name, owner);
  };
  for (const [module, { tensors }] of Object.entries(manifest.modules))
    for (const name of Object.keys(tensors)) own(name, `module '${module}'`);
  for (const name of Object.keys(manifest.carried)) own(name, 'the carried tensors');
  for (const name of Object.keys(manifest.kvScales?.tensors ?? {})) own(name, 'the scales of the cache');
  for (const name of weights.names())
    if (!owners.has(name)) bad(`${dir}: tensor '${name}' is in the shards but not in lpq.json`);
}

function leavesDirectory(name: string): boolean {
  return path.isAbsolute(name) || name.split(/[/\\]/).includes('..');
}

function bad(what: string): never {
  throw new LpqError('LPQ_ARTIFACT', what, {
    hint: 'The artifact is incomplete or was changed: pack it again.',
  });
}
