import type { GgufArchitecture } from '../../formats/gguf/architectures/architecture.js';
import type { Fix } from '../../formats/gguf/architectures/parts.js';
import { ggufName, joinedName } from '../../formats/gguf/names.js';
import { checkpointPlace } from '../../formats/gguf/source/places.js';
import type { GgufModel } from '../model/gguf/model.js';
import type { RopeSpec } from '../model/rope.js';

// Where tensors stand in GGUF, and in which order their rows are.

/** The tensor of the file that a checkpoint's is stored as, or is a part of; undefined for one that GGUF has no place for. */
export function storedName(
  { names, plan }: GgufModel,
  name: string,
): { readonly tensor: string; readonly slice?: number } | undefined {
  const found = ggufName(names, name);
  // A tied head has no tensor, whatever lies beside the embedding.
  if (!found || (plan.tied && found.name === 'output.weight')) return undefined;
  return { tensor: joinedName(found), ...(found.expert !== undefined && { slice: found.expert }) };
}

/** The checkpoint's names of a tensor of the file: one, or one of each of its rows. None where no checkpoint has such a tensor. */
export function checkpointNames({ names }: GgufModel, tensor: string, rows: number): readonly string[] {
  const [, whole = tensor, slice] = /^(.*?)(?:\[(\d+)\]|\+.*)?$/.exec(tensor) ?? [];
  const found = checkpointPlace(names, whole);
  if (!found) return [];
  const stacked = found.to.includes('{expert}');
  if (stacked !== (slice !== undefined) && !(stacked && isOfRows(names, whole))) return [];
  if (slice !== undefined || !stacked) return [found.to.replace('{expert}', slice ?? '')];
  return Array.from({ length: rows }, (_, row) => found.to.replace('{expert}', String(row)));
}

/** Whether a stack is of vectors, which are rows of one matrix. */
export const isOfRows = (names: GgufArchitecture, tensor: string): boolean =>
  (checkpointPlace(names, tensor)?.to.includes('{expert}') ?? false) && /(_norm\.weight|\.bias)$/.test(tensor);

export const placeOf = ({ names }: GgufModel, tensor: string) =>
  checkpointPlace(names, tensor.replace(/\[\d+\]$|\+.*$/, ''));

/** FIRST+SECOND where the file has halves of the rows of a matrix apart, and `tensor` is one of them; or itself. */
export function wholeOf(model: GgufModel, tensor: string): string {
  const [name] = placeOf(model, tensor)?.half ? checkpointNames(model, tensor, 1) : [];
  return (name !== undefined && storedName(model, name)?.tensor) || tensor;
}

export const fixOf = (model: GgufModel, tensor: string): Fix | undefined => placeOf(model, tensor)?.fix;

/** Whether the file has rows of zeros behind those of the checkpoint. */
export const isPadded = (model: GgufModel, tensor: string): boolean => placeOf(model, tensor)?.padded === true;

/** Whether the file has 1 + the numbers of the checkpoint. */
export const isPlusOne = (model: GgufModel, tensor: string): boolean =>
  model.plan.finalNorm?.offset === 1 && /norm\.weight$/.test(tensor) && !placeOf(model, tensor)?.plain;

/** Whether it has -exp of them. */
export const isMinusExp = (model: GgufModel, tensor: string): boolean => placeOf(model, tensor)?.minusExp === true;

type Delta = { readonly heads: number; readonly keyHeads: number; readonly keyDim: number };

/** The gated delta rule of a model in which several heads share keys. */
function deltaOf({ plan }: GgufModel): Delta | undefined {
  for (const { attention } of plan.blocks)
    if (
      attention.kind === 'recurrent' &&
      attention.core.kind === 'delta' &&
      attention.core.heads > attention.core.keyHeads
    )
      return attention.core;
  return undefined;
}

/** The heads of the checkpoint in the order of llama.cpp, which goes through all heads of keys again and again. */
function headOrder({ heads, keyHeads }: Delta): number[] {
  const order: number[] = [];
  for (let turn = 0; turn < heads / keyHeads; turn++)
    for (let key = 0; key < keyHeads; key++) order.push(key * (heads / keyHeads) + turn);
  return order;
}

/** For every head of the file that columns of a tensor are for, the head of the checkpoint; undefined where they are the same. */
export function storedColumns(tensor: string, model: GgufModel): readonly number[] | undefined {
  const states = placeOf(model, tensor)?.states === 'columns' ? deltaOf(model) : undefined;
  return states && headOrder(states);
}

/** Bytes of rows whose chunks are in the order of the file, in that of the checkpoint; or the other way round. */
export function inColumns(bytes: Uint8Array, rows: number, heads: readonly number[], toFile = false): Uint8Array {
  const out = new Uint8Array(bytes.length);
  const width = bytes.length / rows;
  const chunk = width / heads.length;
  for (let row = 0; row < rows; row++)
    for (let i = 0; i < heads.length; i++) {
      const [stored, own] = [row * width + i * chunk, row * width + (heads[i] as number) * chunk];
      const [from, to] = toFile ? [own, stored] : [stored, own];
      for (let at = 0; at < chunk; at++) out[to + at] = bytes[from + at] as number;
    }
  return out;
}

const SWAPPED: readonly Fix[] = ['interleaved-q', 'interleaved-k', 'halved-q', 'halved-k'];

/** For every row of a tensor of the file, the row of the checkpoint's that it is. */
export function storedOrder(tensor: string, rows: number, model: GgufModel): Int32Array {
  const order = Int32Array.from({ length: rows }, (_, row) => row);
  const fix = fixOf(model, tensor);
  const states = deltaOf(model);
  const told = placeOf(model, tensor)?.states;
  if (states && (told === 'rows' || told === 'behind')) {
    const first = told === 'behind' ? 2 * states.keyHeads * states.keyDim : 0;
    for (const [head, own] of headOrder(states).entries()) {
      const size = (rows - first) / states.heads;
      for (let i = 0; i < size; i++) order[first + head * size + i] = first + own * size + i;
    }
    return order;
  }
  const [attention] = model.plan.blocks.flatMap(({ attention: own }) => (own.kind === 'attention' ? [own] : []));
  const swapped = fix && SWAPPED.includes(fix);
  if (!attention || (fix !== 'heads' && !swapped)) return order;
  const { heads: all, kvHeads } = attention;
  if (fix === 'heads') {
    const size = rows / (3 * all);
    // The checkpoint has q, k and v of a head together, llama.cpp all of q, all of k, all of v.
    for (let head = 0; head < all; head++)
      for (let part = 0; part < 3; part++)
        for (let i = 0; i < size; i++) order[part * all * size + head * size + i] = (3 * head + part) * size + i;
    return order;
  }
  const heads = fix === 'interleaved-q' || fix === 'halved-q' ? all : kvHeads;
  const half = rows / heads / 2;
  if (fix === 'halved-q' || fix === 'halved-k') {
    // llama.cpp turns i and i + turned / 2 where the checkpoint turns neighbours (2i, 2i + 1).
    const turned = (attention.rope?.rotary ?? 0) / 2;
    for (let head = 0; head < heads; head++)
      for (let i = 0; i < turned; i++)
        for (let side = 0; side < 2; side++)
          order[head * 2 * half + side * turned + i] = head * 2 * half + 2 * i + side;
    return order;
  }
  // llama.cpp turns neighbours (2i, 2i + 1) where the checkpoint turns i and i + half.
  for (let head = 0; head < heads; head++)
    for (let i = 0; i < half; i++)
      for (let side = 0; side < 2; side++) order[head * 2 * half + 2 * i + side] = head * 2 * half + side * half + i;
  return order;
}

/** rope_freqs.weight of Llama 3.1's scaling; undefined for a model without. */
export function expectedRopeFactors({ scaling, theta, rotary }: RopeSpec): Float64Array | undefined {
  if (scaling.kind !== 'llama3') return undefined;
  const { factor, low, high, original } = scaling;
  return Float64Array.from({ length: rotary / 2 }, (_, i) => {
    const turns = original / (2 * Math.PI * theta ** ((2 * i) / rotary));
    if (turns > high) return 1;
    if (turns < low) return factor;
    const smooth = (turns - low) / (high - low);
    return 1 / ((1 - smooth) / factor + smooth);
  });
}

/** What tensors that scale positions must hold, by their names. */
export function expectedRope({ plan }: GgufModel): ReadonlyMap<string, Float64Array> {
  const found = new Map<string, Float64Array>();
  for (const { attention } of plan.blocks) {
    if (attention.kind !== 'attention' || !attention.rope || attention.window > 0) continue;
    const { scaling } = attention.rope;
    const factors = expectedRopeFactors(attention.rope);
    if (factors) found.set('rope_freqs.weight', factors);
    if (scaling.kind === 'proportional') {
      const still = (i: number) => i >= scaling.turning;
      const all = Float64Array.from({ length: attention.rope.rotary / 2 }, (_, i) =>
        still(i) ? 1e30 : scaling.factor,
      );
      found.set('rope_freqs.weight', all);
    }
    if (scaling.kind !== 'longrope') continue;
    found.set('rope_factors_long.weight', Float64Array.from(scaling.long));
    found.set('rope_factors_short.weight', Float64Array.from(scaling.short));
  }
  return found;
}
