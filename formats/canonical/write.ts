import { LpqError } from '../../src/core/error.js';
import { cardFacts } from '../card/card.js';
import { writeCard } from '../card/write.js';
import type { OutputDirectory } from '../directory/output-directory.js';
import { withSettings } from '../foreign/settings.js';
import type { TensorData } from '../safetensors/hash.js';
import type { TensorSpec } from '../safetensors/header.js';
import { planShards } from '../safetensors/shard-plan.js';
import { SafetensorsWriter, type WriterOptions } from '../safetensors/write.js';
import { compareNatural } from './order.js';
import { type CanonicalManifest, canonicalSchema, type Provenance, type Quality } from './schema.js';
import { declarationProblem, type ModuleDeclaration, moduleTensors, PARTS, type Part } from './tensors.js';
import { WrittenModules } from './written.js';

export interface CanonicalPlan {
  /** By module path (model.layers.0.self_attn.q_proj). Declare every module before the first is quantized. */
  readonly modules: ReadonlyMap<string, ModuleDeclaration>;
  /** Every other tensor of the source, unchanged. */
  readonly carried: readonly TensorSpec[];
  /** Text of the source's config.json; the written one gains quantization_config and keeps every other byte. */
  readonly config: string;
  readonly kv?: CanonicalManifest['kv'];
  readonly kvMost?: CanonicalManifest['kvMost'];
}

/** What a quantized checkpoint is for, as its card says. */
const SERVE = ['lpq generate DIR --prompt "..."', 'lpq pack DIR --for vllm -o OUT    # or another engine'];

/** The tensors of a module, by part. */
export type ModuleData = Partial<Record<Part, TensorData>>;

/**
 * Writes a canonical checkpoint into an OutputDirectory, module by module in any order. The bytes depend on the plan
 * and the data only. commit() of the directory is the caller's.
 */
export class CanonicalWriter {
  private readonly quality = new Map<string, Quality>();

  private constructor(
    readonly output: OutputDirectory,
    readonly plan: CanonicalPlan,
    private readonly writer: SafetensorsWriter,
  ) {}

  /**
   * Throws LPQ_INTERNAL when the plan contradicts itself, LPQ_DISK_FULL and LPQ_OUTPUT_WRITE. carryFrom() of the output
   * comes before, because config.json is replaced here.
   */
  static async create(
    output: OutputDirectory,
    plan: CanonicalPlan,
    options: WriterOptions = {},
  ): Promise<CanonicalWriter> {
    const writer = await SafetensorsWriter.create(output.path, specsOf(plan), { finite: true, ...options });
    try {
      const config = withSettings(plan.config, quantizationConfig(plan), 'config.json');
      await output.writeFile('config.json', config);
    } catch (error) {
      await writer.abort();
      throw error;
    }
    return new CanonicalWriter(output, plan, writer);
  }

  /** All tensors of a module: each part that its declaration asks for, and no other. */
  async writeModule(name: string, data: ModuleData, quality?: Quality): Promise<void> {
    const specs = this.specs(name);
    for (const part of PARTS) {
      const value = data[part];
      const spec = specs.get(part);
      if ((value === undefined) !== (spec === undefined))
        throw new LpqError('LPQ_INTERNAL', `module '${name}' ${spec ? 'lacks' : 'declares no'} ${part}`);
    }
    for (const [part, spec] of specs) await this.writer.write(spec.name, data[part] as TensorData);
    if (quality) this.quality.set(name, quality);
  }

  /** Some rows of one part, for quantizing what does not fit in memory. */
  async writeModuleRows(name: string, part: Part, firstRow: number, data: TensorData): Promise<void> {
    const spec = this.specs(name).get(part);
    if (!spec) throw new LpqError('LPQ_INTERNAL', `module '${name}' declares no ${part}`);
    await this.writer.writeRows(spec.name, firstRow, data);
  }

  /** sha256 by part of a module that was written whole. */
  async hashes(name: string): Promise<Record<string, string>> {
    const hashes: Record<string, string> = {};
    for (const [part, spec] of this.specs(name)) hashes[part] = await this.writer.digest(spec.name);
    return hashes;
  }

  /** Whether an earlier writer of the same plan left the module with these hashes; only with the option `partial`. */
  async holds(name: string, hashes: Readonly<Record<string, string>>): Promise<boolean> {
    for (const [part, spec] of this.specs(name))
      if (!(await this.writer.holds(spec.name, hashes[part] ?? ''))) return false;
    return true;
  }

  /** Counts a module that holds() found as written. */
  async adopt(name: string, hashes: Readonly<Record<string, string>>, quality: Quality): Promise<void> {
    for (const [part, spec] of this.specs(name)) await this.writer.adopt(spec.name, hashes[part] as string);
    this.quality.set(name, quality);
  }

  /** sha256 of carried tensors that were written whole. */
  async carriedHashes(names: readonly string[]): Promise<Record<string, string>> {
    const hashes: Record<string, string> = {};
    for (const name of names) hashes[name] = await this.writer.digest(name);
    return hashes;
  }

  /** Counts a carried tensor as written that an earlier writer of the same plan left with this hash; false where it did not. */
  async adoptCarried(name: string, sha256: string): Promise<boolean> {
    if (!(await this.writer.holds(name, sha256))) return false;
    await this.writer.adopt(name, sha256);
    return true;
  }

  /** Reads modules back that were written whole, or adopted. The caller closes it. */
  written(): WrittenModules {
    return new WrittenModules(this.output.path, this.writer.plan, this.plan);
  }

  /** Settles when everything written before the call is on the disk. */
  sync(): Promise<void> {
    return this.writer.sync();
  }

  /** Other scales for a module that was written whole. Nothing of written() may be open that has the old ones. */
  async rewriteScales(name: string, data: TensorData): Promise<void> {
    const spec = this.specs(name).get('scales');
    if (!spec) throw new LpqError('LPQ_INTERNAL', `module '${name}' declares no scales`);
    await this.writer.rewrite(spec.name, data);
  }

  /** Another tensor for one that was carried whole. */
  rewriteCarried(name: string, data: TensorData): Promise<void> {
    return this.writer.rewrite(name, data);
  }

  setQuality(name: string, quality: Quality): void {
    this.specs(name);
    this.quality.set(name, quality);
  }

  writeCarried(name: string, data: TensorData): Promise<void> {
    return this.writer.write(name, data);
  }

  /** Completes the shards and writes README.md and lpq.json. Throws LPQ_INTERNAL naming a tensor that never came. */
  async finish(provenance: Provenance): Promise<CanonicalManifest> {
    const { sha256 } = await this.writer.finish();
    const modules: CanonicalManifest['modules'] = {};
    for (const name of [...this.plan.modules.keys()].sort(compareNatural)) {
      const quality = this.quality.get(name);
      const hashes = [...this.specs(name)].map(([part, spec]) => [part, sha256.get(spec.name) as string] as const);
      modules[name] = {
        ...(this.plan.modules.get(name) as ModuleDeclaration),
        sha256: Object.fromEntries(hashes),
        ...(quality && { quality }),
      };
    }
    const names = this.plan.carried.map(({ name }) => name).sort(compareNatural);
    const carried = Object.fromEntries(names.map((name) => [name, sha256.get(name) as string]));
    const { kv, kvMost } = this.plan;
    const manifest = canonicalSchema.parse({
      ...{ format: 'lpq-canonical', version: 1, modules, carried },
      ...(kv && { kv }),
      ...(kvMost && { kvMost }),
      provenance,
    });
    const hashed = [...this.plan.modules.keys()].flatMap((name) => [...this.specs(name).values()]);
    await writeCard(this.output, {
      ...{ form: manifest.format, modules, provenance, facts: cardFacts(modules, SERVE) },
      tensors: { ...carried, ...Object.fromEntries(hashed.map(({ name }) => [name, sha256.get(name) as string])) },
    });
    await this.output.writeJson('lpq.json', manifest);
    return manifest;
  }

  abort(): Promise<void> {
    return this.writer.abort();
  }

  private specs(name: string): Map<Part, TensorSpec> {
    const module = this.plan.modules.get(name);
    if (!module) throw new LpqError('LPQ_INTERNAL', `module '${name}' was not declared before it was written`);
    return moduleTensors(name, module);
  }
}

/** Names of the weight files that a plan makes. */
export function plannedShards(plan: CanonicalPlan, options: WriterOptions = {}): string[] {
  return planShards(specsOf(plan), options).shards.map(({ file }) => file);
}

/** Bytes of the weight files and their index that a plan makes. */
export function plannedBytes(plan: Omit<CanonicalPlan, 'config'>, options: WriterOptions = {}): number {
  const { shards, index } = planShards(specsOf(plan), options);
  return shards.reduce((sum, { fileBytes }) => sum + fileBytes, 0) + (index ? Buffer.byteLength(index.text) : 0);
}

function specsOf(plan: Omit<CanonicalPlan, 'config'>): TensorSpec[] {
  const specs = [...plan.carried];
  for (const [name, module] of plan.modules) {
    const problem = declarationProblem(module);
    if (problem) throw new LpqError('LPQ_INTERNAL', `module '${name}': ${problem.path}: ${problem.what}`);
    specs.push(...moduleTensors(name, module).values());
  }
  return specs.sort((a, b) => compareNatural(a.name, b.name));
}

/** What other tools see in config.json: enough to refuse the checkpoint by name. */
function quantizationConfig(plan: CanonicalPlan): Record<string, unknown> {
  const types = [...new Set([...plan.modules.values()].map(({ type }) => type))].sort();
  const { kv } = plan;
  return { quant_method: 'lpq', format: 'lpq-canonical', version: 1, manifest: 'lpq.json', types, ...(kv && { kv }) };
}
