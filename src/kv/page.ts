import { KV_FORMS, kvStoredDims } from '../../formats/kv/forms.js';
import type { KvScheme } from '../../formats/kv/scheme.js';
import { LpqError } from '../core/error.js';
import { reorderLocals, storedTile, WORD_75316420 } from '../layout/fragment.js';
import { local, spatial } from '../layout/make.js';
import { type MemoryLayout, memoryLayout, type PackMode } from '../layout/memory.js';
import { product } from '../layout/product.js';
import type { KvPart } from './part.js';
import { residualBlock, valueTile, WORD_BITS } from './tiles.js';

/** Keys or values of a page. Codes are [tokens, heads*dims]; scales and zeros [tokens/groupTokens, heads*dims/groupDims]. */
export interface KvSide {
  readonly bits: number;
  readonly groupTokens: number;
  readonly groupDims: number;
  readonly codes: KvPart;
  readonly scales: KvPart;
  readonly zeros: KvPart;
}

/** A page: `tokens` tokens of all kv heads of a layer. A contiguous cache is one of a single page. */
export interface KvPage {
  readonly scheme: KvScheme;
  readonly heads: number;
  readonly headDim: number;
  /** Of a head, as they are stored: kvStoredDims(headDim). */
  readonly dims: number;
  readonly tokens: number;
  /** Tokens that are packed at once. */
  readonly block: number;
  readonly tensors: readonly { readonly name: string; readonly bytes: number }[];
  readonly keys: KvSide;
  readonly values: KvSide;
}

export interface KvPageShape {
  readonly heads: number;
  readonly headDim: number;
  /** A multiple of blockTokens(scheme). */
  readonly tokens: number;
  /** bitdecoding: heads inside tokens, as published ('inner', the default), or outside, a run of bytes a head. */
  readonly order?: 'inner' | 'outer';
}

/** Tokens of a run of scales, and then of zeros, of what is scaled token by token. */
const TOKEN_RUN = 128;

/** Tokens that are packed at once: of the residual blocks of both sides and the groups of keys the smallest common multiple. */
export function blockTokens({ form, keys, values }: KvScheme): number {
  if (!KV_FORMS[form].tail) return 1;
  return [residualBlock(values.bits), keys.granularity === 'channel' ? keys.group : 1].reduce(
    (all, each) => (all * each) / gcd(all, each),
    residualBlock(keys.bits),
  );
}

/** The layout of a page. Throws LPQ_LAYOUT for a shape that the scheme has no page for. */
export function kvPage(scheme: KvScheme, shape: KvPageShape): KvPage {
  const { headDim, tokens } = shape;
  const dims = kvStoredDims(headDim);
  const block = blockTokens(scheme);
  const token = scheme.keys.granularity === 'token';
  const fits = (group: number): boolean => dims % group === 0;
  if (tokens % block !== 0 || tokens < 1)
    throw new LpqError('LPQ_LAYOUT', `a page of ${tokens} tokens cannot be packed`, {
      got: tokens,
      expected: `a multiple of ${block}`,
    });
  for (const group of [scheme.values.group, ...(token ? [scheme.keys.group] : [])])
    if (!fits(group))
      throw new LpqError('LPQ_LAYOUT', `groups of ${group} dims do not divide heads of ${headDim}`, { got: group });
  return { ...PAGES[scheme.form](scheme, { ...shape, headDim: dims }, block), headDim };
}

function bitdecodingPage(scheme: KvScheme, shape: KvPageShape, block: number): KvPage {
  const { heads, headDim, tokens, order = 'inner' } = shape;
  const { keys, values } = scheme;
  const channel = keys.granularity === 'channel';
  const bytes = (codes: number) => (tokens * heads * headDim * codes) / 8;
  /** `rows` rows of `cells` cells of `bits` bits for each head: distances between rows and between heads. */
  const matrix = (rows: number, cells: number, bits: number): { row: number; head: number } =>
    order === 'inner'
      ? { row: heads * cells * bits, head: cells * bits }
      : { row: cells * bits, head: rows * cells * bits };

  const codesPerWord = WORD_BITS / keys.bits;
  const tile = residualBlock(keys.bits);
  const k = matrix(tokens / codesPerWord, headDim, WORD_BITS);
  // The register tile's outermost step is the place in the word; warps and lanes count words, row after row.
  const keyCodes = memoryLayout({
    bits: keys.bits,
    rows: [
      { size: tokens / tile, stride: (tile / codesPerWord) * k.row },
      { size: codesPerWord, stride: keys.bits },
      { size: tile / codesPerWord, stride: k.row },
    ],
    columns: [
      { size: heads, stride: k.head },
      { size: headDim, stride: WORD_BITS },
    ],
    bytes: bytes(keys.bits),
  });
  const valueWord = WORD_BITS / values.bits;
  const chunk = valueTile(values.bits, headDim).shape[1] as number;
  const v = matrix(tokens, headDim / valueWord, WORD_BITS);
  const valueCodes = memoryLayout({
    bits: values.bits,
    rows: [{ size: tokens, stride: v.row }],
    columns: [
      { size: heads, stride: v.head },
      { size: headDim / chunk, stride: (chunk / valueWord) * WORD_BITS },
      { size: valueWord, stride: values.bits },
      { size: chunk / valueWord, stride: WORD_BITS },
    ],
    bytes: bytes(values.bits),
  });
  // Of two neighbouring channels first both scales, then both zeros.
  const c = matrix(tokens / keys.group, headDim, 32);
  const pairs = (half: 0 | 1): MemoryLayout =>
    memoryLayout({
      bits: 16,
      rows: [{ size: tokens / keys.group, stride: c.row }],
      columns: [
        { size: heads, stride: c.head },
        { size: headDim / 2, stride: 64 },
        { size: 2, stride: 16 },
      ],
      base: 32 * half,
      bytes: (tokens / keys.group) * heads * headDim * 4,
    });
  const run = Math.min(TOKEN_RUN, block);
  const perToken = (group: number, half: 0 | 1): MemoryLayout => {
    const groups = headDim / group;
    const line = 32 * tokens;
    const [head, of] = order === 'inner' ? [line, heads * line] : [groups * line, line];
    return memoryLayout({
      bits: 16,
      rows: [
        { size: tokens / run, stride: 32 * run },
        { size: run, stride: 16 },
      ],
      columns: [
        { size: heads, stride: head },
        { size: groups, stride: of },
      ],
      base: 16 * run * half,
      bytes: (groups * heads * line) / 8,
    });
  };
  const keyNumbers = channel
    ? ([pairs(0), pairs(1)] as const)
    : ([0, 1] as const).map((half) => perToken(keys.group, half));
  const valueNumbers = ([0, 1] as const).map((half) => perToken(values.group, half));
  const layouts = [keyCodes, keyNumbers[0]!, valueCodes, valueNumbers[0]!];
  return {
    scheme,
    heads,
    headDim,
    dims: headDim,
    tokens,
    block,
    tensors: ['keys', 'key_scales_zeros', 'values', 'value_scales_zeros'].map((name, i) => ({
      name,
      bytes: layouts[i]!.bytes,
    })),
    keys: {
      bits: keys.bits,
      groupTokens: channel ? keys.group : 1,
      groupDims: channel ? 1 : keys.group,
      codes: { tensor: 0, layout: keyCodes },
      scales: { tensor: 1, layout: keyNumbers[0]! },
      zeros: { tensor: 1, layout: keyNumbers[1]! },
    },
    values: {
      bits: values.bits,
      groupTokens: 1,
      groupDims: values.group,
      codes: { tensor: 2, layout: valueCodes },
      scales: { tensor: 3, layout: valueNumbers[0]! },
      zeros: { tensor: 3, layout: valueNumbers[1]! },
    },
  };
}

/** One block of bytes: [head][K, V][token] of codes, then [head][K, V][token] of {scale, zero}. */
function turbomindPage(scheme: KvScheme, { heads, headDim, tokens }: KvPageShape): KvPage {
  const { keys, values } = scheme;
  for (const group of [keys.group, values.group])
    if (group !== headDim)
      throw new LpqError('LPQ_LAYOUT', 'TurboMind has one scale for each token and head', {
        got: group,
        expected: headDim,
      });
  const row = (bits: number): number => headDim * bits;
  const head = tokens * (row(keys.bits) + row(values.bits));
  const data = heads * head;
  const numbers = heads * 2 * tokens * 32;
  const bytes = (data + numbers) / 8;
  const side = (bits: number, base: number, second: 0 | 1): KvSide => {
    const at = (half: 0 | 1): KvPart => ({
      tensor: 0,
      layout: memoryLayout({
        bits: 16,
        rows: [{ size: tokens, stride: 32 }],
        columns: [{ size: heads, stride: 2 * tokens * 32 }],
        base: data + second * tokens * 32 + 16 * half,
        bytes,
      }),
    });
    return {
      bits,
      groupTokens: 1,
      groupDims: headDim,
      codes: {
        tensor: 0,
        layout: memoryLayout({
          bits,
          rows: [{ size: tokens, stride: row(bits) }],
          columns: [{ size: heads, stride: head }, ...dims(bits, headDim)],
          base,
          bytes,
        }),
      },
      scales: at(0),
      zeros: at(1),
    };
  };
  return {
    scheme,
    heads,
    headDim,
    dims: headDim,
    tokens,
    block: 1,
    tensors: [{ name: 'block', bytes }],
    keys: side(keys.bits, 0, 0),
    values: side(values.bits, tokens * row(keys.bits), 1),
  };
}

/** The dims of a token: 4-bit codes in the word order 75316420, bytes one after another. */
function dims(bits: number, headDim: number): readonly PackMode[] {
  if (bits !== 4) return [{ size: headDim, stride: bits }];
  return storedTile(reorderLocals(product(spatial(1, headDim / 8), local(1, 8)), WORD_75316420), bits).columns;
}

const PAGES: Readonly<Record<KvScheme['form'], typeof bitdecodingPage>> = {
  bitdecoding: bitdecodingPage,
  turbomind: turbomindPage,
};

function gcd(a: number, b: number): number {
  return b === 0 ? a : gcd(b, a % b);
}
