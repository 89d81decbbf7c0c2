import type { LatentScheme } from '../../formats/kv/latent.js';
import { printKvScheme } from '../../formats/kv/scheme.js';
import type { NativeRuntime, Tensor } from '../../native/binding.js';
import type { AttentionParams } from '../../native/ops.js';
import type { Past } from '../../native/recurrent-ops.js';
import { LpqError } from '../core/error.js';
import type { AttentionTensors, KeptLatents } from '../model/program.js';
import type { KvForm, WeightSource } from '../model/source.js';
import { DenseCache } from './dense-cache.js';
import { DevicePackedCache, isPackedOnDevice } from './device-packed-cache.js';
import { HostPackedCache } from './host-packed-cache.js';
import { LatentCache } from './latent-cache.js';
import { SequenceCache } from './recurrent-states.js';
import { SimulatedCache } from './simulated-cache.js';
import type { Step } from './step.js';

/** The keys and values of all blocks with attention, by slot: one slot a sequence. */
export interface KeyValueCache {
  /** What it is, in words. */
  readonly form: string;
  /** Bytes held now. */
  readonly bytes: number;
  /** Whether a prompt may come in several steps. */
  readonly pieces: boolean;
  /** Tokens of a sequence up to which a step of one token finds the tensors that it finds now, and keeps nothing elsewhere; 0: it never does. */
  readonly room: number;
  /** What is held now. */
  tensors(): readonly Tensor[];
  /** Before the blocks of a step: makes room. */
  begin(step: Step): void;
  /** CachedAttention of a block (model/program.ts), enqueued. */
  attend(block: number, step: Step, t: AttentionTensors, p: AttentionParams, sinks: Tensor | undefined): void;
  /** `latents` of a block (model/program.ts), where latents are what is kept. */
  latents?(block: number, step: Step, stored: { readonly latent: number; readonly rotary: number }): KeptLatents;
  /** After the blocks of a step: what can wait until its tokens have been read. */
  end?(step: Step): void;
  dispose(): void;
}

/** All that is kept of sequences: states of recurrent blocks, too. */
export interface Cache extends Omit<KeyValueCache, 'latents'> {
  latents(...of: Parameters<NonNullable<KeyValueCache['latents']>>): KeptLatents | undefined;
  /** `recall` of a block (model/program.ts). */
  recall(block: number, step: Step, name: string, shape: readonly number[]): Past;
  /** `rows` of a block. */
  rows(block: number, step: Step, name: string, width: number, rate?: number): Past;
}

export interface CacheShape {
  readonly blocks: number;
  /** Sequences at once. */
  readonly slots: number;
  /** Tokens that a sequence will not exceed. */
  readonly most: number;
}

/** What is asked of a cache: as keys and values are, rounded to f16, packed, or latents. */
export type CacheForm = KvForm | { readonly latents: LatentScheme } | 'exact' | 'f16';

/** The cache that a source's numbers are kept in. */
export function cacheForm({ kv, latents }: Pick<WeightSource, 'kv' | 'latents'>): CacheForm {
  return latents ? { latents } : (kv ?? 'exact');
}

/**
 * The cache that `form` asks for: 'exact' keeps what attention reads as it is (f32 on the CPU, else the activations' 16 bits), 'f16'
 * rounds to that, a scheme packs (docs/kv-cache.md), latents are packed or f16, and the channels of FMPQ are simulated (docs/fmpq.md). Throws LPQ_DEVICE
 * where the runtime's device has no such cache.
 */
export function makeCache(rt: NativeRuntime, form: CacheForm, shape: CacheShape): Cache {
  return new SequenceCache(rt, keyValueCache(rt, form, shape), shape);
}

function keyValueCache(rt: NativeRuntime, form: CacheForm, shape: CacheShape): KeyValueCache {
  if (form === 'exact') return new DenseCache(rt, rt.activationDtype, shape);
  if (form === 'f16') return new DenseCache(rt, rt.device === 'cpu' ? 'f16' : rt.activationDtype, shape);
  if ('latents' in form) return new LatentCache(rt, form.latents, shape);
  if (rt.device === 'cpu')
    return 'form' in form ? new HostPackedCache(rt, form, shape) : new SimulatedCache(rt, form, shape);
  if ('form' in form && isPackedOnDevice(form)) return new DevicePackedCache(rt, form, shape);
  throw new LpqError('LPQ_DEVICE', 'there is no kernel for this low-bit KV cache', {
    got: 'form' in form ? printKvScheme(form) : `${form.bits} bits a channel`,
    expected: 'keys by channel, groups of 128, or of 32 for both',
    hint: 'Use --device cpu, or --kv 16.',
  });
}
