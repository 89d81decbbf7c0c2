import { rm } from 'node:fs/promises';
import path from 'node:path';
import { setImmediate } from 'node:timers/promises';
import type { ArtifactManifest } from '../../formats/artifact/schema.js';
import { ArtifactWriter, type PackedDeclaration } from '../../formats/artifact/write.js';
import { dequantizeModule } from '../../formats/canonical/dequantize.js';
import type { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import { moduleTensors } from '../../formats/canonical/tensors.js';
import { OutputDirectory } from '../../formats/directory/output-directory.js';
import { sha256 } from '../../formats/safetensors/hash.js';
import type { WriterOptions } from '../../formats/safetensors/write.js';
import { SHARD_FILE, type Shard } from '../../formats/shards/schema.js';
import { allocate, type DType, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import { allPacked, type PackRuntime } from '../layout/engine.js';
import { type PackPlan, plainDtype, plannedTensors, planPack } from './plan.js';
import type { Decision, PackTarget } from './target.js';

/** One module's line in the report. */
export interface PackedRow {
  readonly name: string;
  readonly type: string;
  readonly action: Decision['action'];
  /** As in the artifact's manifest: marlin, turbomind, tilus, gptq, compressed-tensors, carried, dense, ... */
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
  /** Unquantized checkpoint that targets which search for their codes take weights from; default: as they were quantized. */
  readonly source?: string | undefined;
  /** Directory to make. */
  readonly output: string;
  /** Of the CPU; its `layouts` lay out codes on a CUDA device. */
  readonly runtime: PackRuntime;
  /** Before anything is written; what it throws ends the run. */
  readonly onPlan?: (plan: PackPlan) => Promise<void>;
  readonly onModule?: (row: PackedRow, done: number, total: number) => void;
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
 * LPQ_CANONICAL for a module that its hashes do not fit, LPQ_PACK, LPQ_ABORTED.
 */
export async function packCheckpoint(request: PackRequest): Promise<PackReport> {
  const { input, runtime } = request;
  const start = performance.now();
  const whole = planPack(input, request.target, request.ranks);
  if (whole.refusal) throw whole.refusal;
  const { shard } = request;
  if (shard && whole.target.write)
    throw new LpqError('LPQ_USAGE', `--shard does not go with target ${whole.target.name}, which is one file`);
  const mine = <T>(all: Iterable<T>): T[] => [...all].filter((_, i) => !shard || i % shard.count === shard.index);
  const plan: PackPlan = { ...whole, decisions: new Map(mine(whole.decisions)), carried: mine(whole.carried) };
  if (request.source !== undefined && request.input.manifest.provenance.method === 'fmpq')
    throw new LpqError(
      'LPQ_USAGE',
      `--source does not suit ${request.input.dir}, whose channels are in another order`,
      {
        got: request.source,
        hint: 'Leave --source out: --method fmpq has folded permutations into all weights (docs/fmpq.md).',
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
  await request.onPlan?.(plan);
  if (plan.target.write) return plan.target.write(request, plan);
  const output = await OutputDirectory.create(request.output);
  request.onOutput?.(output);
  let writer: ArtifactWriter | undefined;
  try {
    const { skipped } = await output.carryFrom(input.dir, {
      except: ['lpq.json', 'config.json', 'quantize_config.json', 'quant_config.json'],
    });
    const { quantization, files } = plan.target.config(whole);
    for (const [name, value] of Object.entries(files)) await output.writeJson(name, value);
    const modules = new Map(
      [...plan.decisions].map(([name, decision]) => [name, declaration(input, name, decision, plan.target)]),
    );
    writer = await ArtifactWriter.create(
      output,
      {
        target: plan.target.name,
        modules,
        carried: plan.carried,
        ...packedCache(input, plan.target),
        config: { ...input.config, quantization_config: quantization },
      },
      request.writer,
    );
    const rows = await together([
      (check) => writeModules(request, plan, modules, writer!, check),
      (check) => writeCarried(request, plan, writer!, check),
    ]);
    const manifest = await writer.finish(input.manifest.provenance);
    for (const { name } of plan.carried) input.requireCarried(name, manifest.carried[name] as string);
    stopIfAborted(request.signal);
    if (shard) await markShard(output, shard, manifest, { ...input.config, quantization_config: quantization });
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

/** The scheme of a packed cache goes along; that of W4Ax where activations do. */
function packedCache({ manifest: { kv } }: CanonicalCheckpoint, target: PackTarget): Pick<ArtifactManifest, 'kv'> {
  return kv && ('form' in kv || target.activations) ? { kv } : {};
}

/** Makes a finished artifact a shard: nothing takes it for a whole one. */
async function markShard(
  output: OutputDirectory,
  shard: Shard,
  manifest: ArtifactManifest,
  config: Record<string, unknown>,
): Promise<void> {
  const { target, modules, carried, provenance, kv } = manifest;
  const kept = { target, ...(kv && { kv }), carried, provenance, modules };
  await output.writeJson(SHARD_FILE, {
    format: 'lpq-shard',
    version: 1,
    ...shard,
    of: 'artifact',
    config,
    manifest: kept,
  });
  for (const name of ['lpq.json', 'config.json']) await rm(path.join(output.path, name));
}

/** Throws where the run was interrupted, or something beside has failed. */
type Check = () => void;

/** Runs both; what the first gives. Where one fails the other stops at its next check, and is waited for. */
async function together<T>([first, second]: readonly [
  (check: Check) => Promise<T>,
  (check: Check) => Promise<void>,
]): Promise<T> {
  let failure: { readonly cause: unknown } | undefined;
  const check = () => {
    if (failure) throw failure.cause;
  };
  const guarded = async <R>(work: (check: Check) => Promise<R>): Promise<R> => {
    try {
      return await work(check);
    } catch (cause) {
      failure ??= { cause };
      throw cause;
    }
  };
  const [result] = await Promise.allSettled([guarded(first), guarded(second)]);
  check();
  return (result as PromiseFulfilledResult<T>).value;
}

/** Hashing a tensor is one thread's work, and slower than a disk writes. */
const CARRIED_AT_ONCE = 2;

/** Copies what is not quantized, beside the packing. */
async function writeCarried(request: PackRequest, plan: PackPlan, writer: ArtifactWriter, check: Check): Promise<void> {
  const waiting = [...plan.carried];
  const worker = async () => {
    for (let next = waiting.shift(); next; next = waiting.shift()) {
      check();
      stopIfAborted(request.signal);
      const tensor = request.input.weights.tensor(next.name);
      try {
        await writer.write(next.name, tensor);
      } finally {
        tensor.dispose();
      }
    }
  };
  const ended = await Promise.allSettled(Array.from({ length: CARRIED_AT_ONCE }, worker));
  for (const outcome of ended) if (outcome.status === 'rejected') throw outcome.reason;
}

/** Modules whose bytes are compared with their hashes ahead of the one that is packed. */
const CHECKED_AHEAD = 2;

/** Packs module i + 1 while module i is hashed and written, and the next ones are compared with their hashes. */
async function writeModules(
  request: PackRequest,
  plan: PackPlan,
  entries: Map<string, PackedDeclaration>,
  writer: ArtifactWriter,
  check: Check,
): Promise<PackedRow[]> {
  const { input, signal } = request;
  const names = [...plan.decisions.keys()];
  const rows: PackedRow[] = [];
  const intact: Promise<void>[] = [];
  const begin = (i: number) => {
    const name = names[i];
    if (name === undefined) return undefined;
    // Damage since it was quantized would only show when the artifact is verified.
    for (const ahead of names.slice(intact.length, i + 1 + CHECKED_AHEAD)) {
      intact.push(input.requireHashes(ahead));
      intact.at(-1)!.catch(() => {}); // thrown where it is awaited
    }
    const job = packModule(request.runtime, input, name, plan, intact[i]!);
    job.catch(() => {}); // awaited in its turn; until then a failure is not unhandled
    return job;
  };
  let next = begin(0);
  for (const [i, name] of names.entries()) {
    stopIfAborted(signal);
    check();
    const { tensors, seconds } = await next!;
    next = begin(i + 1);
    const decision = plan.decisions.get(name)!;
    let bytes = 0;
    for (const [tensorName, tensor] of tensors) {
      await writer.write(tensorName, tensor);
      if (decision.action === 'fallback' && decision.form === 'dense') {
        // Its codes are gone from the artifact: what can still be proved is that the weight is the dequantized one.
        const entry = entries.get(name)!;
        entries.set(name, { ...entry, canonical: { ...entry.canonical, weight: await sha256(tensor) } });
      }
      bytes += tensor.byteLength;
      tensor.dispose();
    }
    const { type, shape, layout, padded, notes } = entries.get(name)!;
    rows.push({ name, type, action: decision.action, layout, shape, padded, notes, bytes, seconds });
    request.onModule?.(rows.at(-1)!, rows.length, names.length);
    await setImmediate();
  }
  return rows;
}

async function packModule(
  rt: PackRuntime,
  checkpoint: CanonicalCheckpoint,
  name: string,
  plan: PackPlan,
  intact: Promise<void>,
): Promise<{ tensors: Map<string, Tensor>; seconds: number }> {
  const start = performance.now();
  const decision = plan.decisions.get(name)!;
  const module = checkpoint.module(name);
  await intact;
  let tensors: Map<string, Tensor>;
  if (decision.action !== 'fallback') {
    try {
      tensors = await plan.target.pack({ rt, checkpoint, name, module, plan: decision, facts: plan.facts.get(name)! });
    } catch (cause) {
      if (cause instanceof LpqError) throw cause;
      const { code } = cause as { code?: string };
      if (code?.startsWith('LPQ_CUDA')) throw cause; // the device's failure, not the module's
      const aborted = code === 'LPQ_ABORTED';
      throw new LpqError(
        aborted ? 'LPQ_ABORTED' : 'LPQ_PACK',
        aborted ? 'packing was interrupted' : `module '${name}' cannot be packed: ${(cause as Error).message}`,
        { cause },
      );
    }
  } else if (decision.form === 'carried') {
    const parts = [...moduleTensors(name, module)];
    tensors = new Map(parts.map(([, spec]) => [spec.name, checkpoint.weights.tensor(spec.name)]));
  } else {
    const wide = await dequantizeModule(rt, checkpoint, name);
    let weight = allocate(plainDtype(module.sourceDtype).toLowerCase() as DType, module.shape);
    ops.cast(rt, wide, weight);
    if (module.transposed) {
      // Whoever loads a plain weight expects it as the source had it.
      const stored = allocate(weight.dtype, [...module.shape].reverse());
      ops.transpose(rt, weight, stored);
      weight.dispose();
      weight = stored;
    }
    await rt.sync();
    wide.dispose();
    tensors = new Map([[`${name}.weight`, weight]]);
  }
  return { tensors, seconds: (performance.now() - start) / 1000 };
}

/** The manifest's entry of a module, but for the hashes of its tensors. */
function declaration(
  checkpoint: CanonicalCheckpoint,
  name: string,
  decision: Decision,
  target: PackTarget,
): PackedDeclaration {
  const module = checkpoint.module(name);
  const { codes, scales, zeros, global_scale, g_idx, permutation, mask } = module.sha256;
  const fallback = decision.action === 'fallback';
  return {
    type: module.type,
    shape: module.shape,
    padded: fallback ? module.shape : [decision.padded[0], decision.padded[1]],
    granularity: module.granularity,
    scales: module.scales,
    zeros: module.zeros,
    ...(module.transposed && { transposed: true }),
    ...(module.packing && !fallback && decision.layout === 'compressed-tensors' && { packing: module.packing }),
    ...(!fallback && decision.ranks && { ranks: decision.ranks }),
    ...(module.activations && target.activations && { activations: module.activations }),
    layout: fallback ? decision.form : decision.layout,
    notes: fallback
      ? [
          `Left ${decision.form === 'carried' ? 'in canonical form' : 'as a plain weight'}, because ${decision.reason}. ${decision.remedy}`,
        ]
      : [...decision.notes],
    tensors: plannedTensors(checkpoint, name, decision),
    canonical: {
      codes: codes!,
      scales: scales!,
      ...(zeros ? { zeros } : {}),
      ...(global_scale ? { global_scale } : {}),
      ...(g_idx ? { g_idx } : {}),
      ...(permutation ? { permutation } : {}),
      ...(mask ? { mask } : {}),
    },
  };
}

function stopIfAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw new LpqError('LPQ_ABORTED', 'packing was interrupted; nothing was left behind');
}
