import { setImmediate } from 'node:timers/promises';
import type { ArtifactWriter, PackedDeclaration } from '../../formats/artifact/write.js';
import { dequantizeModule, plainDtype } from '../../formats/canonical/dequantize.js';
import type { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import { moduleTensors } from '../../formats/canonical/tensors.js';
import { hashTensor } from '../../formats/safetensors/hash.js';
import { allocate, type DType, type NativeRuntime, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import type { PackRuntime } from '../layout/engine.js';
import type { PackedRow, PackRequest } from './pack-checkpoint.js';
import type { PackPlan } from './plan.js';

/** Throws where the run was interrupted, or something beside has failed. */
export type Check = () => void;

/** Runs both; what the first gives. Where one fails the other stops at its next check, and is waited for. */
export async function together<T>([first, second]: readonly [
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
export async function writeCarried(
  request: PackRequest,
  plan: PackPlan,
  writer: ArtifactWriter,
  check: Check,
): Promise<void> {
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
export async function writeModules(
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
        const weight = await hashTensor(entry.tensors[0]!, tensor);
        entries.set(name, { ...entry, canonical: { ...entry.canonical, weight } });
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
    let weight = await plainWeight(rt, checkpoint, name);
    if (module.transposed) {
      // Whoever loads a plain weight expects it as the source had it.
      const stored = allocate(weight.dtype, [...module.shape].reverse());
      ops.transpose(rt, weight, stored);
      await rt.sync();
      weight.dispose();
      weight = stored;
    }
    tensors = new Map([[`${name}.weight`, weight]]);
  }
  return { tensors, seconds: (performance.now() - start) / 1000 };
}

/** The dequantized weight [N, K] of a module in the dtype of plain weights. The caller disposes of it. */
export async function plainWeight(rt: NativeRuntime, checkpoint: CanonicalCheckpoint, name: string): Promise<Tensor> {
  const { sourceDtype, shape } = checkpoint.module(name);
  const wide = await dequantizeModule(rt, checkpoint, name);
  const weight = allocate(plainDtype(sourceDtype).toLowerCase() as DType, shape);
  ops.cast(rt, wide, weight);
  await rt.sync();
  wide.dispose();
  return weight;
}

/** Throws LPQ_ABORTED. */
export function stopIfAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw new LpqError('LPQ_ABORTED', 'packing was interrupted; lpq left no files behind');
}
