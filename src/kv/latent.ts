import { type KvLatents, type LatentPageShape, latentGrouped, latentPageParts } from '../../formats/kv/latent.js';
import { LpqError } from '../core/error.js';
import { type MemoryLayout, memoryLayout } from '../layout/memory.js';
import type { KvWish } from './choose.js';

/** Bits of a word of codes. */
const WORD = 32;

/** What lies in a page of latents, one tensor of bytes: [tokens, latent] codes, [tokens, groups] numbers, [tokens, rotary] keys. */
export interface LatentPage {
  readonly bytes: number;
  readonly codes: MemoryLayout;
  /** None of 16 bits. */
  readonly scales?: MemoryLayout;
  readonly zeros?: MemoryLayout;
  readonly rotary: MemoryLayout;
}

/**
 * The layout of a page (formats/kv/spec.md). Two neighbouring dims lie 16 bits apart in a word, so that one mask of the word takes
 * both as the halves of a register. Throws LPQ_LAYOUT for groups or words that do not divide the latent.
 */
export function latentPage(shape: LatentPageShape): LatentPage {
  const { bits, group, latent, rotary, tokens } = shape;
  const pairs = WORD / bits / 2;
  if (latent % (2 * pairs) !== 0 || (bits !== 16 && latent % group !== 0))
    throw new LpqError('LPQ_LAYOUT', `a latent of ${latent} dims cannot be packed in ${bits} bits`, {
      got: latent,
      expected: `a multiple of ${2 * pairs}, in whole groups of ${group}`,
    });
  const [codes, numbers, keys] = latentPageParts(shape);
  const bytes = codes + numbers + keys;
  const number = (which: 0 | 1): MemoryLayout =>
    memoryLayout({
      bits: 16,
      rows: [{ size: tokens, stride: (32 * latent) / group }],
      columns: [{ size: latent / group, stride: 32 }],
      base: 8 * codes + 16 * which,
      bytes,
    });
  return {
    bytes,
    codes: memoryLayout({
      bits,
      rows: [{ size: tokens, stride: latent * bits }],
      columns: [
        { size: latent / (2 * pairs), stride: WORD },
        { size: pairs, stride: bits },
        { size: 2, stride: WORD / 2 },
      ],
      bytes,
    }),
    ...(bits !== 16 && { scales: number(0), zeros: number(1) }),
    rotary: memoryLayout({
      bits: 16,
      rows: [{ size: tokens, stride: 16 * rotary }],
      columns: [{ size: rotary, stride: 16 }],
      base: 8 * (codes + numbers),
      bytes,
    }),
  };
}

/** Dims that share a scale, at most. */
const GROUP = { 2: 32, 4: 128, 8: 128 } as const;

/** How latents of `dims` dims are cached, as --kv and the options beside it ask for it. Throws LPQ_USAGE. */
export function latentsOf({ kv, granularity, group, residual, layers, fit }: KvWish, dims: number): KvLatents {
  const refuse = (option: string, why: string, got: unknown, expected: string): never => {
    throw new LpqError('LPQ_USAGE', `${option} ${why}`, { got, expected });
  };
  if (kv === 'k8v4')
    refuse('--kv k8v4', 'asks for other bits of values, but a latent is both key and value', kv, '2, 4 or 8');
  if (granularity === 'channel')
    refuse('--kv-granularity channel', 'is for keys, and this model caches latents', granularity, 'token');
  if (residual !== undefined && residual !== 0)
    refuse('--kv-residual', 'is for keys and values; every latent is packed as it comes', residual, '0');
  if (layers)
    refuse('--kv-layers', 'is for keys and values; latents of all layers have the same bits', 'layers', 'none');
  if (fit) refuse('--kv-fit', 'is for keys and values; ends of groups of latents are not fitted', 'fit', 'none');
  const bits = Number(kv) as 2 | 4 | 8;
  const grouped = latentGrouped(dims);
  const fits = [32, 64, 128].filter((size) => grouped % size === 0);
  const chosen = group ?? Math.max(...fits.filter((size) => size <= GROUP[bits]));
  if (!fits.includes(chosen))
    refuse('--kv-group', `does not divide the model's latents of ${dims} dims`, chosen, fits.join(' or '));
  return { bits, group: chosen };
}
