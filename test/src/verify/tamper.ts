// Changes single bits of an artifact on disk, and makes its hashes fit again where a test asks for it.
import { createHash } from 'node:crypto';
import { closeSync, openSync, readFileSync, writeFileSync, writeSync } from 'node:fs';
import path from 'node:path';
import type { ArtifactManifest } from '../../../formats/artifact/schema.js';
import { sealManifest } from '../../../formats/artifact/seal.js';
import type { HashedFacts } from '../../../formats/safetensors/hash.js';
import { SafetensorsFile } from '../../../formats/safetensors/read.js';
import type { NativeRuntime } from '../../../native/binding.js';
import { LpqError } from '../../../src/core/error.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { tensorHash } from '../../formats/safetensors/tensor-hash.js';

/**
 * What happens to hashes after a flip. none: they stay. artifact: those of packed tensors and files follow, and the seal;
 * what the quantized checkpoint vouches for (canonical and carried hashes) stays. all: every hash follows.
 */
export type Recompute = 'none' | 'artifact' | 'all';

const sha256 = (bytes: Uint8Array) => createHash('sha256').update(bytes).digest('hex');

export class Tampered {
  private readonly pristine: Buffer;
  private readonly manifestText: string;
  private readonly manifest: ArtifactManifest;

  constructor(
    readonly dir: string,
    readonly file: string,
  ) {
    this.pristine = readFileSync(path.join(dir, file));
    this.manifestText = readFileSync(path.join(dir, 'lpq.json'), 'utf8');
    this.manifest = JSON.parse(this.manifestText) as ArtifactManifest;
  }

  get bits(): number {
    return this.pristine.length * 8;
  }

  /** Bit ranges of the tensors of a safetensors file, by name. */
  tensors(): { name: string; begin: number; end: number; facts: HashedFacts }[] {
    const file = SafetensorsFile.open(path.join(this.dir, this.file));
    const start = file.header.dataStart;
    const list = file.header.tensors.map((facts) => ({
      name: facts.name,
      begin: 8 * (start + facts.begin),
      end: 8 * (start + facts.end),
      facts,
    }));
    file.close();
    return list;
  }

  /** Flips one bit, runs `body`, and puts everything back. */
  async flipped(bit: number, recompute: Recompute, body: () => Promise<void>): Promise<void> {
    const bytes = Buffer.from(this.pristine);
    bytes[bit >> 3]! ^= 1 << (bit & 7);
    this.poke(bit >> 3, bytes[bit >> 3]!);
    if (recompute !== 'none') this.rehash(bytes, bit, recompute);
    try {
      await body();
    } finally {
      this.poke(bit >> 3, this.pristine[bit >> 3]!);
      writeFileSync(path.join(this.dir, 'lpq.json'), this.manifestText);
    }
  }

  private poke(at: number, value: number): void {
    const handle = openSync(path.join(this.dir, this.file), 'r+');
    writeSync(handle, Uint8Array.of(value), 0, 1, at);
    closeSync(handle);
  }

  private rehash(bytes: Buffer, bit: number, recompute: Recompute): void {
    const manifest = structuredClone(this.manifest);
    if (manifest.files[this.file] !== undefined) manifest.files[this.file] = sha256(bytes);
    else {
      const tensor = this.tensors().find(({ begin, end }) => bit >= begin && bit < end);
      if (tensor) {
        const digest = tensorHash(tensor.facts, bytes.subarray(tensor.begin / 8, tensor.end / 8));
        for (const [module, entry] of Object.entries(manifest.modules)) {
          if (entry.tensors[tensor.name] === undefined) continue;
          entry.tensors[tensor.name] = digest;
          const part = tensor.name.slice(module.length + 1) as keyof typeof entry.canonical;
          if (recompute === 'all' && entry.canonical[part] !== undefined && entry.layout === 'carried')
            entry.canonical[part] = digest;
        }
        if (recompute === 'all' && manifest.carried[tensor.name] !== undefined) manifest.carried[tensor.name] = digest;
      }
    }
    writeFileSync(path.join(this.dir, 'lpq.json'), sealManifest(manifest).text);
  }
}

/** Whether verification refuses the artifact: by its report, or with a designed error for what cannot be read. */
export async function isCaught(dir: string, against: string | undefined, runtime: NativeRuntime): Promise<boolean> {
  try {
    return !(await verifyArtifact({ dir, against, runtime, emulate: false })).ok;
  } catch (error) {
    if (error instanceof LpqError && (error.exitCode === 4 || error.exitCode === 1)) return true;
    throw error;
  }
}
