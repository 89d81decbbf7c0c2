import type { StoredLatents } from './schema.js';

/** How the cache of latent attention is quantized (spec.md, "latent"): asymmetric codes, a scale and a zero of f16 a group. */
export interface KvLatents {
  readonly bits: 2 | 4 | 8;
  /** Dims of the latent of one token that share a scale and a zero. */
  readonly group: number;
}

/** As lpq.json has it. */
export function storedLatents({ bits, group }: KvLatents): StoredLatents {
  return { form: 'latent', bits, group: group as StoredLatents['group'] };
}

/** What lpq.json says of a cache: latents, or what keys and values become. */
export function partedCache<T extends object>(
  kv: T | StoredLatents | undefined,
): { readonly kv?: Exclude<T, StoredLatents>; readonly latents?: KvLatents } {
  if (kv === undefined) return {};
  if (!isLatents(kv)) return { kv: kv as Exclude<T, StoredLatents> };
  const { bits, group } = kv;
  return { latents: { bits, group } };
}

function isLatents(kv: object): kv is StoredLatents {
  return 'form' in kv && !('keys' in kv);
}

/** A cache of latents; of 16 bits they are as they are, and there are no groups. */
export interface LatentScheme {
  readonly bits: 2 | 4 | 8 | 16;
  readonly group: number;
}

/** Dims of a latent and of a rotary key that a page can hold. */
export const MOST_LATENT = 512;
export const MOST_ROTARY = 64;

/** Dims as a page holds them, zeros behind a token's own: of the latent, and of the rotary key. */
export function latentStored(latent: number, rotary: number): { readonly latent: number; readonly rotary: number } {
  return { latent: upTo(latent, 64), rotary: upTo(rotary, 16) };
}

/** Dims of a latent that groups divide: zeros behind its own are of the last group. */
export function latentGrouped(latent: number): number {
  return upTo(latent, 32);
}

function upTo(dims: number, unit: number): number {
  return unit * Math.ceil(dims / unit);
}

/** What a page of latents holds; `bits` may be 16: latents as they are. */
export interface LatentPageShape {
  readonly bits: 2 | 4 | 8 | 16;
  readonly group: number;
  /** Dims of the latent, and of the rotary key. */
  readonly latent: number;
  readonly rotary: number;
  readonly tokens: number;
}

/** Bytes of the three parts of a page: codes, numbers, rotary keys. */
export function latentPageParts({ bits, group, latent, rotary, tokens }: LatentPageShape): [number, number, number] {
  return [(tokens * latent * bits) / 8, bits === 16 ? 0 : (4 * tokens * latent) / group, 2 * tokens * rotary];
}
