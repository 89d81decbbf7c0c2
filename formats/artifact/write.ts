import { createHash } from 'node:crypto';
import { constants, createReadStream } from 'node:fs';
import path from 'node:path';
import { tell } from '../../src/core/activity.js';
import { LpqError } from '../../src/core/error.js';
import { compareNatural } from '../canonical/order.js';
import type { KvMost, Provenance } from '../canonical/schema.js';
import type { CardFacts } from '../card/card.js';
import { writeCard } from '../card/write.js';
import type { OutputDirectory } from '../directory/output-directory.js';
import type { TensorData } from '../safetensors/hash.js';
import type { TensorSpec } from '../safetensors/header.js';
import { SafetensorsWriter, type WriterOptions } from '../safetensors/write.js';
import { byRank, rankOfExperts } from './expert-ranks.js';
import { type ArtifactManifest, artifactSchema, type PackedModule } from './schema.js';
import { sealManifest } from './seal.js';

/** A packed module before its bytes: its manifest entry with the tensors' specs in place of their hashes. */
export interface PackedDeclaration extends Omit<PackedModule, 'tensors'> {
  readonly tensors: readonly TensorSpec[];
}

export interface ArtifactPlan {
  readonly target: string;
  readonly modules: ReadonlyMap<string, PackedDeclaration>;
  /** Tensors that go through unchanged. */
  readonly carried: readonly TensorSpec[];
  readonly kv?: ArtifactManifest['kv'];
  /** The largest magnitudes behind the scales of a cache in FP8, and the tensors of the scales. */
  readonly kvScales?: { readonly most: KvMost; readonly tensors: readonly TensorSpec[] };
  /** Ranks of expert parallelism, whose experts are in separate files. */
  readonly expertRanks?: number;
  /** Text of config.json as it shall be, quantization_config included. */
  readonly config: string;
  readonly card: CardFacts;
}

/** Writes a packed artifact into an OutputDirectory; tensors come in any order. commit() is the caller's. */
export class ArtifactWriter {
  private constructor(
    readonly output: OutputDirectory,
    readonly plan: ArtifactPlan,
    private readonly writer: SafetensorsWriter,
  ) {}

  /**
   * Carry files and write further ones (quantize_config.json) through `output` before finish(), which hashes them.
   * Throws LPQ_INTERNAL, LPQ_DISK_FULL, LPQ_OUTPUT_WRITE.
   */
  static async create(
    output: OutputDirectory,
    plan: ArtifactPlan,
    options: WriterOptions = {},
  ): Promise<ArtifactWriter> {
    const packed = [...plan.modules.values()].flatMap(({ tensors }) => tensors);
    const specs = [...plan.carried, ...packed, ...(plan.kvScales?.tensors ?? [])];
    specs.sort((a, b) => compareNatural(a.name, b.name));
    const partOf = rankOfExperts(specs, plan.expertRanks);
    const writer = await SafetensorsWriter.create(output.path, byRank(specs, partOf), {
      finite: true,
      partOf,
      ...options,
    });
    try {
      await output.writeFile('config.json', plan.config);
    } catch (error) {
      await writer.abort();
      throw error;
    }
    return new ArtifactWriter(output, plan, writer);
  }

  /** A packed or carried tensor, whole. */
  write(name: string, data: TensorData): Promise<void> {
    return this.writer.write(name, data);
  }

  /** Some of its rows. */
  writeRows(name: string, firstRow: number, data: TensorData): Promise<void> {
    return this.writer.writeRows(name, firstRow, data);
  }

  /** Completes the shards, writes README.md, hashes every other file and writes lpq.json. */
  async finish(provenance: Provenance): Promise<ArtifactManifest> {
    const { sha256 } = await this.writer.finish();
    const hashes = (specs: readonly TensorSpec[]) =>
      Object.fromEntries(
        specs.map(({ name }) => [name, sha256.get(name) as string] as const).sort(([a], [b]) => compareNatural(a, b)),
      );
    const modules: ArtifactManifest['modules'] = {};
    for (const name of [...this.plan.modules.keys()].sort(compareNatural)) {
      const module = this.plan.modules.get(name) as PackedDeclaration;
      modules[name] = { ...module, tensors: hashes(module.tensors) };
    }
    await writeCard(this.output, {
      ...{ form: this.plan.target, modules, provenance, facts: this.plan.card },
      tensors: Object.fromEntries(sha256),
    });
    const files: Record<string, string> = {};
    for (const file of await this.output.files())
      if (file !== 'lpq.json' && !file.endsWith('.safetensors'))
        files[file] = await hashFile(path.join(this.output.path, file));
    const { kv, kvScales, expertRanks } = this.plan;
    const manifest = artifactSchema.parse({
      format: 'lpq-artifact',
      version: 1,
      target: this.plan.target,
      modules,
      carried: hashes(this.plan.carried),
      files,
      ...(kv && { kv }),
      ...(kvScales && { kvScales: { ...kvScales, tensors: hashes(kvScales.tensors) } }),
      ...(expertRanks !== undefined && { expertRanks }),
      provenance,
    });
    const sealed = sealManifest(manifest);
    await this.output.writeFile('lpq.json', sealed.text);
    return sealed.manifest;
  }

  abort(): Promise<void> {
    return this.writer.abort();
  }
}

// A named pipe in the place of a file ends at once, where it would be waited for.
const NOT_WAITING = (constants.O_RDONLY | constants.O_NONBLOCK) as unknown as string;

/** sha256 (hex) of a file. Throws LPQ_FILE. */
export async function hashFile(file: string): Promise<string> {
  tell(`hashing ${path.basename(file)}`);
  const hash = createHash('sha256');
  try {
    for await (const chunk of createReadStream(file, { flags: NOT_WAITING })) hash.update(chunk as Buffer);
  } catch (cause) {
    throw new LpqError('LPQ_FILE', `${file} cannot be read: ${(cause as Error).message}`, { cause });
  }
  return hash.digest('hex');
}
