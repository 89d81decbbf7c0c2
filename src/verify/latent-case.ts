import { type NativeRuntime, type Tensor, typed } from '../../native/binding.js';
import { halfValue, nearestHalf } from './floats.js';
import { type Numbers, quantizeRows } from './kv-numbers.js';

/** How latents are packed. */
export interface LatentScheme {
  readonly bits: 2 | 4 | 8;
  readonly group: number;
}

/** A page of a case: dims as it holds them, and tokens. */
export interface LatentPage {
  readonly latent: number;
  readonly rotary: number;
  readonly tokens: number;
}

/** Where sequences lie: I32 [B, P] pages, and tokens I32 [B]. */
export interface LatentPlaces {
  readonly table: Tensor;
  readonly lengths: Tensor;
}

/** The cache that is examined: lpq's own operations, handed in. c, rotary and q are f16; table of pack() is I32 [P]. */
export interface LatentsUnderTest {
  /** U8 [pages, bytes], every byte of them UNTOUCHED before. */
  readonly pages: Tensor;
  pack(c: Tensor, rotary: Tensor, table: Tensor): void;
  append(c: Tensor, rotary: Tensor, places: LatentPlaces): void;
  attend(q: Tensor, y: Tensor, places: LatentPlaces, p: { heads: number; scale: number }): void;
  dispose(): void;
}

export interface LatentMaker {
  make(rt: NativeRuntime, scheme: LatentScheme, page: LatentPage, pages: number): LatentsUnderTest;
}

export const UNTOUCHED = 0xa5;

/** Dims as a page holds them (formats/kv/spec.md): of the latent a multiple of 64, of the rotary key of 16. */
export const heldDims = (dims: number, unit: 64 | 16): number => dims + ((unit - (dims % unit)) % unit);

/** What a token's bytes are read as, by the specification, bit by bit. */
export interface ReadToken {
  readonly codes: Uint8Array;
  readonly scales: Float64Array;
  readonly zeros: Float64Array;
  readonly rotary: Float64Array;
}

/** Bytes of the parts of a page: codes, numbers, rotary keys. */
function partsOf({ bits, group }: LatentScheme, { latent, rotary, tokens }: LatentPage): [number, number, number] {
  return [tokens * (latent / 8) * bits, tokens * (latent / group) * 4, tokens * rotary * 2];
}

export const pageBytes = (scheme: LatentScheme, page: LatentPage): number =>
  partsOf(scheme, page).reduce((all, part) => all + part, 0);

/** Token t of a page whose bytes begin at `base`. */
export function readToken(
  bytes: Uint8Array,
  base: number,
  t: number,
  scheme: LatentScheme,
  page: LatentPage,
): ReadToken {
  const { bits, group } = scheme;
  const { latent, rotary } = page;
  const [codes, numbers] = partsOf(scheme, page);
  const half = (at: number): number => halfValue((bytes[at] as number) + 256 * (bytes[at + 1] as number));
  const ofWord = 32 / bits;
  const code = (d: number): number => {
    const word = t * (latent / ofWord) + Math.floor(d / ofWord);
    const from = 16 * (d % 2) + bits * Math.floor((d % ofWord) / 2);
    let value = 0;
    for (let i = 0; i < bits; i++)
      value += (((bytes[base + 4 * word + Math.floor((from + i) / 8)] as number) >> ((from + i) % 8)) & 1) * 2 ** i;
    return value;
  };
  const pair = (g: number): number => base + codes + 4 * (t * (latent / group) + g);
  const groups = latent / group;
  return {
    codes: Uint8Array.from({ length: latent }, (_, d) => code(d)),
    scales: Float64Array.from({ length: groups }, (_, g) => half(pair(g))),
    zeros: Float64Array.from({ length: groups }, (_, g) => half(pair(g) + 2)),
    rotary: Float64Array.from({ length: rotary }, (_, r) => half(base + codes + numbers + 2 * (t * rotary + r))),
  };
}

/** What tokens must be stored as: c [T, latent], with the zeros behind a token's own dims. */
export function expectedLatents(c: Float32Array, tokens: number, { bits, group }: LatentScheme, latent: number) {
  return quantizeRows(c, tokens, latent, { bits, groupTokens: 1, groupDims: group, fit: false });
}

/** A token's latent as attention reads it: code times scale and the zero, rounded to f16 once. */
export function readLatent({ codes, scales, zeros }: Numbers, t: number, latent: number, group: number): number[] {
  return Array.from({ length: latent }, (_, d) => {
    const at = t * latent + d;
    const g = Math.floor(at / group);
    const exact = (codes[at] as number) * (scales[g] as number) + (zeros[g] as number);
    return Math.sign(exact) * nearestHalf(Math.abs(exact));
  });
}

/** The bytes of a tensor on a device, once everything enqueued has run. */
export async function bytesOf(rt: NativeRuntime, tensor: Tensor): Promise<Uint8Array> {
  const host = await rt.download(tensor);
  const bytes = typed<Uint8Array>(host).slice();
  host.dispose();
  return bytes;
}
