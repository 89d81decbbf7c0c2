import { rm } from 'node:fs/promises';
import path from 'node:path';
import type { ArtifactManifest } from '../../formats/artifact/schema.js';
import { ArtifactWriter } from '../../formats/artifact/write.js';
import type { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import { knowsSource, otherSource } from '../../formats/canonical/same-source.js';
import { SourceCheckpoint } from '../../formats/canonical/source.js';
import { OutputDirectory } from '../../formats/directory/output-directory.js';
import { withSettings } from '../../formats/foreign/settings.js';
import { readConfigText } from '../../formats/safetensors/checkpoint.js';
import type { WriterOptions } from '../../formats/safetensors/write.js';
import type { ShardManifest } from '../../formats/shards/schema.js';
import { SHARD_FILE, type Shard } from '../../formats/shards/shard.js';
import { LpqError } from '../core/error.js';
import { allPacked, type PackRuntime } from '../layout/engine.js';
import { packedCard } from './card.js';
import { declaration } from './declaration.js';
import { kvScales } from './kv-scales.js';
import { type PackPlan, planPack } from './plan.js';
import type { Decision, PackTarget } from './target.js';
import { stopIfAborted, together, writeCarried, writeModules } from './write-modules.js';

/** One module's line in the report. */
export interface PackedRow {
  readonly name: string;
  readonly type: string;
  readonly action: Decision['action'];
  /** As in the artifact's manifest: a layout's name, carried or dense. */
  readonly layout: string;
  /** [N, K] of the weight, and as the layout holds it. */
  readonly shape: readonly [number, number];
  readonly padded: readonly [number, number];
  readonly notes: readonly string[];
  /** Bytes of the module's tensors in the artifact. */
  readonly bytes: number;
  readonly seconds: number;
}

export interface PackReport {
  readonly target: string;
  readonly requested: string;
  readonly notes: readonly string[];
  readonly modules: readonly PackedRow[];
  readonly carriedTensors: number;
  /** Files of the checkpoint that were not copied, and why. */
  readonly skippedFiles: readonly { readonly file: string; readonly reason: string }[];
  readonly bytes: number;
  readonly seconds: number;
  readonly manifest: ArtifactManifest;
}

export interface PackRequest {
  readonly input: CanonicalCheckpoint;
  /** Name of a target. */
  readonly target: string;
  /** Ranks of tensor parallelism that share the modules; default 1. */
  readonly ranks?: number;
  /** Ranks of expert parallelism, whose experts go to separate files; default 1. */
  readonly expertRanks?: number;
  /** Unquantized checkpoint that targets which search for their codes take weights from; default: as they were quantized. */
  readonly source?: string | undefined;
  /** Importance matrix with the weights of columns' errors in such a search (formats/imatrix/read.ts); default: all weigh the same. */
  readonly importance?: string | undefined;
  /** Directory to make. */
  readonly output: string;
  /** Commands that its card names, DIR standing for it; default: those of the target. */
  readonly serve?: readonly string[];
  /** Of the CPU; its `layouts` lay out codes on a CUDA device. */
  readonly runtime: PackRuntime;
  /** Before anything is written; what it throws ends the run. */
  readonly onPlan?: (plan: PackPlan) => Promise<void>;
  readonly onModule?: (row: PackedRow, done: number, total: number) => void;
  /** The finished directory before it appears at `output`; what it throws ends the run, and nothing appears. */
  readonly onComplete?: (dir: string) => Promise<void>;
  /** The directory while it is being written, for abortSync() in an exit handler. */
  readonly onOutput?: (output: OutputDirectory) => void;
  readonly signal?: AbortSignal;
  /** Only this part of the modules and of what is carried, for mergeShards(). */
  readonly shard?: Shard;
  readonly writer?: WriterOptions;
}

/**
 * Packs a canonical checkpoint for a target, module by module: at most two modules are in memory, one being packed while
 * the other is written. The directory appears complete or not at all. Throws LPQ_TARGET when there is no such target or
 * it takes no module, LPQ_USAGE for ranks it does not have, LPQ_OUTPUT_EXISTS, LPQ_OUTPUT_WRITE, LPQ_DISK_FULL,
 * LPQ_CANONICAL for a module that its hashes do not fit, LPQ_SOURCE for a source that it was not quantized from, LPQ_PACK, LPQ_ABORTED.
 */
export async function packCheckpoint(request: PackRequest): Promise<PackReport> {
  const { input, runtime } = request;
  const start = performance.now();
  const whole = planPack(input, request.target, request.ranks, request.expertRanks);
  if (whole.refusal) throw whole.refusal;
  const { shard } = request;
  if (shard) requireShardable(input, whole);
  const mine = <T>(all: Iterable<T>): T[] => [...all].filter((_, i) => !shard || i % shard.count === shard.index);
  const plan: PackPlan = { ...whole, decisions: new Map(mine(whole.decisions)), carried: mine(whole.carried) };
  // Who quantizes activations has folded an order of channels into the whole model.
  const ordered = Object.values(input.manifest.modules).some(({ activations }) => activations !== undefined);
  if (request.source !== undefined && ordered)
    throw new LpqError(
      'LPQ_USAGE',
      `--source does not suit ${request.input.dir}, whose channels are in another order`,
      {
        got: request.source,
        hint: 'Leave --source out: FMPQ folded permutations into all weights (docs/fmpq.md).',
      },
    );
  if (request.source !== undefined && !plan.target.readsSource)
    throw new LpqError(
      'LPQ_USAGE',
      `--source has no effect with target ${plan.target.name}, which takes the codes as they are`,
      {
        hint: 'Leave it out, or use gguf-q2_k to gguf-q8_0.',
      },
    );
  if (request.importance !== undefined && !plan.target.readsSource)
    throw new LpqError(
      'LPQ_USAGE',
      `--imatrix has no effect with target ${plan.target.name}, which does not search for codes`,
      {
        hint: 'Leave it out, or use gguf-q2_k to gguf-q6_k.',
      },
    );
  if (request.source !== undefined) requireSource(input, request.source);
  await request.onPlan?.(plan);
  if (plan.target.write) return plan.target.write(request, plan);
  const output = await OutputDirectory.create(request.output);
  request.onOutput?.(output);
  let writer: ArtifactWriter | undefined;
  try {
    const { skipped } = await output.carryFrom(input.dir, {
      except: ['lpq.json', 'config.json', 'quantize_config.json', 'quant_config.json', 'hf_quant_config.json'],
    });
    const { quantization, files } = plan.target.config(whole);
    const own = readConfigText(input.dir, input.config);
    const config = withSettings(own, quantization, path.join(input.dir, 'config.json'));
    for (const [name, value] of Object.entries(files)) await output.writeJson(name, value);
    const modules = new Map(
      [...plan.decisions].map(([name, decision]) => [name, declaration(input, name, decision, plan.target)]),
    );
    const card = packedCard(request, plan);
    const scales = kvScales(input.manifest, plan.target);
    writer = await ArtifactWriter.create(
      output,
      {
        target: plan.target.name,
        modules,
        carried: plan.carried,
        ...packedCache(input, plan.target),
        ...(plan.expertRanks > 1 && { expertRanks: plan.expertRanks }),
        ...(scales && { kvScales: { most: scales.most, tensors: scales.specs } }),
        config,
        card,
      },
      request.writer,
    );
    const rows = await together([
      (check) => writeModules(request, plan, modules, writer!, check),
      (check) => writeCarried(request, plan, writer!, check),
    ]);
    for (const [name, tensor] of scales?.tensors() ?? []) {
      await writer.write(name, tensor);
      tensor.dispose();
    }
    const manifest = await writer.finish(input.manifest.provenance);
    for (const { name } of plan.carried) input.requireCarried(name, manifest.carried[name] as string);
    stopIfAborted(request.signal);
    if (shard) await markShard(output, shard, manifest, { config, card });
    await request.onComplete?.(output.path);
    await output.commit();
    return {
      target: plan.target.name,
      requested: plan.requested,
      notes: plan.notes,
      modules: rows,
      carriedTensors: plan.carried.length,
      skippedFiles: skipped.filter(({ reason }) => reason !== 'weights'),
      bytes: rows.reduce((sum, row) => sum + row.bytes, 0),
      seconds: (performance.now() - start) / 1000,
      manifest,
    };
  } catch (error) {
    await allPacked(runtime).catch(() => {});
    await writer?.abort();
    await output.abort();
    throw error;
  }
}

/** Refuses options that only one process can handle. */
function requireShardable(input: CanonicalCheckpoint, { target, expertRanks }: PackPlan): void {
  if (target.write)
    throw new LpqError('LPQ_USAGE', `--shard does not go with target ${target.name}, which is one file`);
  if (expertRanks > 1)
    throw new LpqError('LPQ_USAGE', '--shard does not go with --ep', { hint: 'Pack in one process.' });
  if (kvScales(input.manifest, target))
    throw new LpqError('LPQ_USAGE', '--shard does not go with calibrated scales of keys and values', {
      hint: 'Pack in one process: these scales belong to the whole model.',
    });
}

/** The artifact has both: what is searched for in the source's weights, and what is carried from the quantized checkpoint. */
function requireSource(input: CanonicalCheckpoint, dir: string): void {
  const { provenance } = input.manifest;
  if (!knowsSource(provenance)) return;
  const source = SourceCheckpoint.open(dir);
  try {
    const other = otherSource(provenance.source, dir, source.weights.fingerprint());
    if (other)
      throw new LpqError('LPQ_SOURCE', `--source ${dir} is not the model that ${input.dir} was quantized from`, {
        ...other,
        hint: 'Give the checkpoint that was quantized, or leave --source out.',
      });
  } finally {
    source.close();
  }
}

/** The scheme of a packed cache goes along; that of W4Ax where activations do. */
function packedCache({ manifest: { kv } }: CanonicalCheckpoint, target: PackTarget): Pick<ArtifactManifest, 'kv'> {
  return kv && ('form' in kv || target.activations) ? { kv } : {};
}

/** Makes a finished artifact a shard: nothing takes it for a whole one. */
async function markShard(
  output: OutputDirectory,
  shard: Shard,
  manifest: ArtifactManifest,
  more: Pick<Extract<ShardManifest, { of: 'artifact' }>, 'config' | 'card'>,
): Promise<void> {
  const { target, modules, carried, provenance, kv } = manifest;
  const kept = { target, ...(kv && { kv }), carried, provenance, modules };
  await output.writeJson(SHARD_FILE, {
    format: 'lpq-shard',
    version: 1,
    ...shard,
    of: 'artifact',
    ...more,
    manifest: kept,
  });
  for (const name of ['lpq.json', 'config.json']) await rm(path.join(output.path, name));
}
