import type { PackedModule } from '../../formats/artifact/schema.js';
import type { GgufFile } from '../../formats/gguf/read.js';
import { allocate, fromTyped, type NativeRuntime, type Tensor, typed } from '../../native/binding.js';
import { groupSizeOf } from '../core/granularity.js';
import type { GgufModel } from '../model/gguf/model.js';
import type { Decoded } from './decode.js';
import { mxfp4Fields, mxfp4Values } from './decode-mxfp4.js';
import { halfValue, nearestHalf } from './floats.js';
import { inColumns, storedColumns, storedOrder } from './gguf-tables.js';
import { storedForm } from './layout.js';
import { ggufFields, ggufValues, settle, type Wrong } from './native.js';

/** Stored codes are centred here: code - zero = stored - center. */
const CENTER: Readonly<Record<string, number>> = { q4_0: 8, q5_0: 16, q8_0: 0 };

/**
 * A tensor of the file in the checkpoint's order of rows: F32 [rows, columns] of blocks and of f32, the elements as they
 * are of f16 and bf16. The caller disposes of it.
 */
export async function decodeValues(
  rt: NativeRuntime,
  file: GgufFile,
  name: string,
  model: GgufModel,
): Promise<{ tensor: Tensor; wrong: Wrong | undefined }> {
  const found = await valuesInOrder(rt, file, name, model);
  const heads = storedColumns(name, model);
  if (heads) found.tensor.bytes().set(inColumns(found.tensor.bytes(), file.matrix(name).rows, heads));
  return found;
}

/** The same, columns as they lie in the file. */
async function valuesInOrder(
  rt: NativeRuntime,
  file: GgufFile,
  name: string,
  model: GgufModel,
): Promise<{ tensor: Tensor; wrong: Wrong | undefined }> {
  const { type, rows, columns, rank } = file.matrix(name);
  const stored = file.tensor(name);
  const plain = ['f32', 'f16', 'bf16'].includes(type.name);
  // A vector of biases has its rows along the one dimension.
  const length = rank === 1 ? columns : rows;
  const order = storedOrder(name, length, model);
  // As it lies in the file: embeddings of all blocks are more than bytes() shows at once.
  if (plain && !storedColumns(name, model) && order.every((row, i) => row === i))
    return { tensor: stored, wrong: undefined };
  if (plain) {
    const tensor = allocate(stored.dtype, stored.shape);
    const width = stored.byteLength / length;
    const from = stored.bytes();
    const to = tensor.bytes();
    for (const [row, original] of order.entries())
      to.set(from.subarray(row * width, (row + 1) * width), original * width);
    stored.dispose();
    return { tensor, wrong: undefined };
  }
  if (type.name === 'mxfp4') {
    const tensor = mxfp4Values(stored, order, columns);
    stored.dispose();
    return { tensor, wrong: undefined };
  }
  const index = fromTyped('i32', [rows], order);
  const values = ggufValues(rt, stored, index, [rows, columns], type.name);
  await settle(rt);
  for (const each of [stored, index]) each.dispose();
  const wrong = values.wrong();
  return { tensor: values.output, wrong: wrong.count > 0 ? wrong : undefined };
}

/** Blocks with the heads of columns as the checkpoint has them. Disposes of `stored`. */
function moved(stored: Tensor, rows: number, heads: readonly number[]): Tensor {
  const out = fromTyped('u8', stored.shape, inColumns(stored.bytes(), rows, heads));
  stored.dispose();
  return out;
}

/** Blocks of 32 back into canonical codes, scales and zero points; what cannot be is a problem. */
export async function decodeBlocks(
  rt: NativeRuntime,
  file: GgufFile,
  tensor: string,
  module: PackedModule,
  model: GgufModel,
): Promise<Decoded> {
  const decoded: Decoded = { parts: new Map(), problems: [] };
  const [n, k] = module.shape;
  const { bits, flip, zero } = storedForm(module);
  const name = file.matrix(tensor).type.name;
  const center = CENTER[name];
  const heads = storedColumns(tensor, model);
  const stored = heads ? moved(file.tensor(tensor), n, heads) : file.tensor(tensor);
  if (name === 'mxfp4') {
    const { codes, scales } = mxfp4Fields(stored, storedOrder(tensor, n, model), k);
    decoded.parts.set('codes', codes);
    decoded.parts.set('scales', scales);
    stored.dispose();
    return decoded;
  }
  const order = fromTyped('i32', [n], storedOrder(tensor, n, model));
  const add = center === undefined || zero === undefined ? 0 : (center - zero + 256) % 256;
  const fields = ggufFields(rt, stored, order, [n, k], { type: name, bits, flip, add });
  await settle(rt);
  for (const each of [stored, order]) each.dispose();
  const wrong = fields.wrong();
  const problem = (what: string, facts: Wrong): void => {
    decoded.problems.push({ tensor, wrong: facts, what });
  };
  if (wrong.count > 0) problem(`a stored code is not one of ${module.type}`, wrong);
  decoded.parts.set('codes', fields.output);
  const repeats = groupSizeOf(module.granularity, k) / 32;
  const scales = merged(fields.scales, n, repeats, (at, got, expected) =>
    problem('the blocks of one group have different scales', { count: 1, ...at, got, expected }),
  );
  decoded.parts.set('scales', scales);
  if (center === undefined) {
    const minima = merged(fields.minima, n, repeats, (at, got, expected) =>
      problem('the blocks of one group have different minima', { count: 1, ...at, got, expected }),
    );
    const zeros = zeroPoints(scales, minima, bits, (at, got) =>
      problem('a minimum is not a rounded product of a zero point and the scale', {
        count: 1,
        ...at,
        got,
        expected: 0,
      }),
    );
    const signed = Int16Array.from(zeros, (value) => value - flip);
    const i16 = module.zeros.kind === 'int' && module.zeros.dtype === 'i16';
    decoded.parts.set(
      'zeros',
      i16 ? fromTyped('i16', scales.shape, signed) : fromTyped('u8', scales.shape, Uint8Array.from(signed)),
    );
    minima.dispose();
  }
  for (const each of [fields.scales, fields.minima]) each.dispose();
  return decoded;
}

interface At {
  readonly row: number;
  readonly column: number;
}

/** F16 [N, K/32] -> [N, groups]: the value that all blocks of a group share. */
function merged(
  blocks: Tensor,
  n: number,
  repeats: number,
  differ: (at: At, got: number, expected: number) => void,
): Tensor {
  const values = typed<Uint16Array>(blocks);
  const count = values.length / n;
  const groups = count / repeats;
  let told = false;
  const out = Uint16Array.from({ length: n * groups }, (_, i) => {
    const row = Math.floor(i / groups);
    const first = row * count + (i % groups) * repeats;
    const shared = values[first] as number;
    for (let block = 1; block < repeats && !told; block++)
      if (values[first + block] !== shared) {
        told = true;
        differ({ row, column: i % groups }, values[first + block] as number, shared);
      }
    return shared;
  });
  return fromTyped('f16', [n, groups], out);
}

/** The whole numbers z for which -(z * scale), rounded to f16, is the minimum. */
function zeroPoints(scales: Tensor, minima: Tensor, bits: number, wrong: (at: At, got: number) => void): number[] {
  const steps = typed<Uint16Array>(scales);
  const offsets = typed<Uint16Array>(minima);
  const groups = scales.shape[1] as number;
  let told = false;
  return Array.from(offsets, (stored, i) => {
    const scale = halfValue(steps[i] as number);
    const minimum = halfValue(stored);
    if (stored === 0) return 0;
    const zero = Math.round(-minimum / scale);
    // The product of 11 and 5 bits is exact in a double: what is left is the rounding to f16.
    const ok = Number.isInteger(zero) && zero > 0 && zero < 2 ** bits && nearestHalf(zero * scale) === -minimum;
    if (!ok && !told) {
      told = true;
      wrong({ row: Math.floor(i / groups), column: i % groups }, stored);
    }
    return ok ? zero : 0;
  });
}
