import { numbersOf as storedNumbers } from '../../formats/foreign/numbers.js';
import { allocate, fromTyped, type NativeRuntime, type Tensor, typed } from '../../native/binding.js';
import type { WeightSource } from '../model/source.js';
import { decodeValues } from './decode-gguf.js';
import { quantizedWeight } from './dequantize.js';
import type { GgufContext, GgufExpectation } from './gguf-context.js';
import { columnWeights } from './gguf-importance.js';
import { fixOf, inColumns, isMinusExp, isPadded, isPlusOne, storedColumns, storedOrder } from './gguf-tables.js';
import { compare, convertExact, ggufNearest, nearRows, placeOf, settle, type Wrong } from './native.js';

/** Weights that are looked at together: embeddings are large. */
const CHUNK = 2 ** 24;

const floatOf = (bits: number): number => new Float32Array(Int32Array.of(bits).buffer)[0] as number;

/** A tensor of the file against one of the quantized checkpoint: equal where it is plain, an encoding of it where it is blocks. */
export async function compareStored(
  context: GgufContext,
  tensor: string,
  name: string,
  original: Tensor,
  whose: string,
): Promise<void> {
  const { rt, recorder, file, model } = context;
  const expected = asStored(original, {
    changed: isPlusOne(model, tensor)
      ? (value) => value + 1
      : isMinusExp(model, tensor)
        ? (value) => -Math.exp(value)
        : undefined,
    turned: fixOf(model, tensor) === 'turned',
  });
  const stored = file.matrix(tensor);
  const padded = isPadded(model, tensor) && (expected.shape[0] ?? 0) < stored.rows;
  const matrix = padded ? { ...stored, rows: expected.shape[0] ?? 0 } : stored;
  if (padded) checkZeros(context, tensor, matrix.rows);
  const facts = { check: 'against', tensor } as const;
  const elements = matrix.rows * matrix.columns;
  const fits = recorder.check(expected.shape.reduce((a, b) => a * b, 1) === elements, {
    ...facts,
    got: `[${[matrix.rows, matrix.columns]}]`,
    expected: `[${expected.shape}]`,
    message: `'${tensor}' does not have the shape of '${name}' of ${whose}`,
  });
  if (!fits) return;
  if (matrix.type.block > 1) {
    await compareBlocks(context, tensor, name, expected.view([matrix.rows, matrix.columns]), whose);
    return;
  }
  const { tensor: whole } = await decodeValues(rt, file, tensor, model);
  const got = padded ? whole.view([matrix.rows, matrix.columns]) : whole;
  const same = await inDtype(rt, expected.view(got.shape), got.dtype as 'f32');
  const bits = got.dtype === 'f32' ? 32 : 16;
  const wrong = await compare(rt, got, same, { rows: got.shape[0] as number, bits });
  recorder.check(wrong.count === 0, {
    ...facts,
    ...placeOf(wrong),
    message: `'${tensor}' differs from '${name}' of ${whose} in ${wrong.count} values, first at row ${wrong.row}, column ${wrong.column}`,
  });
  for (const each of new Set([whole, got, same])) each.dispose();
}

/** Rows of plain zeros, from row `first` on. */
export function checkZeros({ recorder, file }: GgufContext, tensor: string, first = 0): void {
  const { rows, rowBytes } = file.matrix(tensor);
  const stored = file.tensor(tensor);
  const at = stored.bytes(first * rowBytes, (rows - first) * rowBytes).findIndex((byte) => byte !== 0);
  const row = first + Math.floor(at / rowBytes);
  const message = `'${tensor}' is not zero in row ${row}, which no tensor of the checkpoint is for`;
  recorder.check(at < 0, { check: 'padding', tensor, row, message });
  stored.dispose();
}

/** Blocks that were searched for: codes the nearest of their steps, steps no worse than they may be. Disposes of `original`. */
export async function compareBlocks(
  { rt, recorder, file, model }: GgufContext,
  tensor: string,
  name: string,
  original: Tensor,
  whose: string,
  module?: { readonly name: string; readonly weights: Tensor | undefined },
): Promise<void> {
  const { type, rows, columns, rowBytes } = file.matrix(tensor);
  const facts = { check: 'against', tensor, ...(module && { module: module.name }) } as const;
  const stored = file.tensor(tensor);
  const order = storedOrder(tensor, rows, model);
  const heads = storedColumns(tensor, model);
  const expected = heads ? inHeads(original, rows, heads) : original;
  const weights = heads && module?.weights ? inHeads(module.weights, 1, heads) : module?.weights;
  // Rows of q and k are in an order of their own, and looked at whole.
  const step = order.every((row, i) => row === i) ? Math.max(1, Math.floor(CHUNK / columns)) : rows;
  recorder.count('against', 2);
  for (let first = 0; first < rows; first += step) {
    const count = Math.min(step, rows - first);
    const index = fromTyped('i32', [count], step === rows ? order : order.map((_, i) => i).subarray(0, count));
    const parts = [stored.view([count, rowBytes], first * rowBytes), expected.view([count, columns], first * columns)];
    const wrong = await ggufNearest(rt, parts[0] as Tensor, index, parts[1] as Tensor, type.name, weights);
    for (const each of [index, ...parts]) each.dispose();
    const fail = ({ count, row, column }: Wrong, what: string, values = {}): void => {
      if (count === 0) return;
      const place = { row: row + first, column };
      const where = `${count} ${what}, first at row ${place.row}, column ${column}`;
      const message = `'${tensor}' does not hold '${name}' of ${whose}: ${where}`;
      recorder.failures.push({ ...facts, ...place, ...values, message });
    };
    const values = { got: floatOf(wrong.codes.got), expected: floatOf(wrong.codes.expected) };
    fail(wrong.codes, 'codes are not the nearest', values);
    fail(wrong.blocks, 'blocks are far from it');
    if (wrong.codes.count + wrong.blocks.count > 0) break;
  }
  for (const each of [stored, expected, weights]) each?.dispose();
}

/** A tensor with the heads of columns as the file has them. Disposes of it: weights of a source cannot be written to. */
function inHeads(tensor: Tensor, rows: number, heads: readonly number[]): Tensor {
  const made = allocate(tensor.dtype, tensor.shape);
  made.bytes().set(inColumns(tensor.bytes(), rows, heads, true));
  tensor.dispose();
  return made;
}

/** A searched module against the weights that were searched in; without those, against the quantized ones. */
export async function compareSearched(
  context: GgufExpectation,
  name: string,
  tensor: string,
  weight: Tensor,
): Promise<void> {
  const { rt, recorder, canonical, from, source, given } = context;
  const weighed = () => ({ name, weights: columnWeights(context, given, tensor, weight.shape[1] as number) });
  if (from === 'source' && source) {
    const turned = fixOf(context.model, tensor) === 'turned' && !source.quantized?.(`${name}.weight`);
    const original = await sourceWeight(source, name, weight.shape, turned);
    if (original) await compareBlocks(context, tensor, `${name}.weight`, original, source.dir, weighed());
    else {
      const message = `${source.dir} has no '${name}.weight' of [${weight.shape}]: give the model that was packed from as --source`;
      recorder.check(false, { check: 'against', module: name, message });
    }
  }
  if (!canonical?.moduleNames().includes(name)) return;
  const quantized = await quantizedWeight(rt, canonical, name, 'f32');
  if (from !== 'source') return compareBlocks(context, tensor, `${name}.weight`, quantized, canonical.dir, weighed());
  const wrong = await nearRows(rt, weight, quantized);
  quantized.dispose();
  const column = Math.max(0, wrong.column);
  recorder.check(wrong.count === 0, {
    check: 'against',
    module: name,
    tensor,
    row: wrong.row,
    column,
    message: `module '${name}': its blocks are far from the quantized weight, first at row ${wrong.row}, column ${column}`,
  });
}

/** [N, K] of a source; `turned`: which has it as [K, N]. */
async function sourceWeight(
  source: WeightSource,
  name: string,
  shape: readonly number[],
  turned: boolean,
): Promise<Tensor | undefined> {
  const weight = `${name}.weight`;
  if (!source.has(weight) || `${source.shape(weight)}` !== `${turned ? shape.toReversed() : shape}`) return undefined;
  return asStored(await source.tensor(weight), { changed: undefined, turned });
}

/** Other numbers, or rows and columns turned over, where the file has those. Disposes of `tensor` if it is another then. */
function asStored(
  tensor: Tensor,
  { changed, turned }: { changed: ((value: number) => number) | undefined; turned: boolean },
): Tensor {
  if (!changed && !(turned && tensor.shape.length === 2)) return tensor;
  const values = numbersOf(tensor);
  const [rows = 1, columns = 1] = tensor.shape;
  const made = changed
    ? fromTyped('f32', tensor.shape, values.map(changed))
    : fromTyped(
        'f32',
        [columns, rows],
        Float32Array.from(values, (_, i) => values[(i % rows) * columns + Math.floor(i / rows)] as number),
      );
  tensor.dispose();
  return made;
}

function numbersOf(tensor: Tensor): Float32Array {
  if (tensor.dtype === 'f32') return typed<Float32Array>(tensor);
  return storedNumbers(typed<Uint16Array>(tensor), tensor.dtype as 'f16' | 'bf16');
}

/** As the file has it: the same, or f32 of it. Disposes of `tensor`. */
async function inDtype(rt: NativeRuntime, tensor: Tensor, dtype: 'f32' | 'f16' | 'bf16'): Promise<Tensor> {
  if (tensor.dtype === dtype) return tensor;
  if (tensor.dtype === 'f64') {
    const narrow = fromTyped('f32', tensor.shape, Float32Array.from(typed<Float64Array>(tensor)));
    tensor.dispose();
    return narrow;
  }
  const pending = convertExact(rt, tensor, dtype);
  await settle(rt);
  pending.wrong();
  tensor.dispose();
  return pending.output;
}
