import { allocate, type DType, type NativeRuntime, type OpParams, type Tensor, typed } from '../../native/binding.js';
import { LpqError } from '../core/error.js';

/** The first wrong value of a tensor and how many there are. Values are raw bit patterns. */
export interface Wrong {
  readonly count: number;
  readonly row: number;
  readonly column: number;
  readonly got: number;
  readonly expected: number;
}

/** Where the first of them is, for a report. */
export const placeOf = ({ row, column, got, expected }: Wrong) => ({ row, column, got, expected });

/** What the emulator found, see native/cpu/verify/emulate_lanes.cpp. */
export interface EmulatorResult {
  /** Dequantized registers that differ from q - zero; row n, column k, fp16 bits (W4Ax: sums of a block that are not exact). */
  readonly registers: Wrong;
  /** Outputs beyond the bound. row m, column n. */
  readonly outputs: { count: number; row: number; column: number; got: number; expected: number; bound: number };
  /** Largest error / bound. */
  readonly ratio: number;
}

/** Waits for the queue. Native failures become LpqErrors: LPQ_ABORTED as such, the rest LPQ_INTERNAL or LPQ_MEMORY. */
export async function settle(rt: NativeRuntime): Promise<void> {
  try {
    await rt.sync();
  } catch (cause) {
    const { code, op, message } = cause as { code?: string; op?: string; message: string };
    if (code === 'LPQ_ABORTED') throw new LpqError('LPQ_ABORTED', 'the verification was interrupted');
    throw new LpqError(code === 'LPQ_NATIVE_MEMORY' ? 'LPQ_MEMORY' : 'LPQ_INTERNAL', `${op}: ${message}`, { cause });
  }
}

const info = (): Tensor => allocate('i64', [5]);

function readWrong(tensor: Tensor): Wrong {
  const [count, row, column, got, expected] = [...typed<BigInt64Array>(tensor)].map(Number);
  tensor.dispose();
  return { count: count!, row: row!, column: column!, got: got!, expected: expected! };
}

/** The verifier's native operations. Each enqueues; `wrong()` may be read after settle(). */
export interface Pending {
  readonly output: Tensor;
  wrong(): Wrong;
}

function pending(
  rt: NativeRuntime,
  op: string,
  input: Tensor,
  dtype: DType,
  shape: readonly number[],
  p: OpParams = {},
  order?: Tensor,
): Pending {
  const output = allocate(dtype, shape);
  const report = info();
  rt.enqueue(op, order ? [input, order] : [input], [output, report], p);
  return { output, wrong: () => readWrong(report) };
}

export interface CodesShape {
  readonly bits: number;
  readonly n: number;
  readonly k: number;
  /** Exclusive-or between the stored and the canonical code: 2^(bits-1) for signed types. */
  readonly flip: number;
}

const codesShape = ({ n, k, bits }: CodesShape): number[] => [n, Math.ceil((k * bits) / 8)];

/**
 * AWQ words I32 [R, C/8] -> nibbles, transposed: with `stream` U8 [C, ceil(R/2)], else U8 or I16 [C, R]; value = (nibble ^
 * flip) - bias.
 */
export function unpackAwq(
  rt: NativeRuntime,
  packed: Tensor,
  output: Tensor,
  p: { stream?: number; flip?: number; bias?: number },
): void {
  const report = info();
  rt.enqueue('verify_decode_awq', [packed], [output, report], p);
  report.dispose();
}

/** Blocks of GGUF U8 [N, bytes] -> F32 [N, K]; stored row r is row order[r]. NaN and infinity are reported. */
export function ggufValues(
  rt: NativeRuntime,
  blocks: Tensor,
  order: Tensor,
  shape: readonly [number, number],
  type: string,
): Pending {
  return pending(rt, 'verify_gguf_values', blocks, 'f32', shape, { type }, order);
}

/** Blocks of 32 -> canonical codes (code = ((stored - add) mod 256) ^ flip), scales and minima F16 [N, K/32]. */
export function ggufFields(
  rt: NativeRuntime,
  blocks: Tensor,
  order: Tensor,
  [n, k]: readonly [number, number],
  p: { type: string; bits: number; flip: number; add: number },
): Pending & { readonly scales: Tensor; readonly minima: Tensor } {
  const output = allocate('u8', [n, Math.ceil((k * p.bits) / 8)]);
  const scales = allocate('f16', [n, k / 32]);
  const minima = allocate('f16', [n, k / 32]);
  const report = info();
  rt.enqueue('verify_gguf_fields', [blocks, order], [output, scales, minima, report], { ...p, k });
  return { output, scales, minima, wrong: () => readWrong(report) };
}

/** What is wrong with blocks as an encoding of weights [N, K] of any float type; see native/cpu/verify/gguf_nearest.cpp. */
export async function ggufNearest(
  rt: NativeRuntime,
  blocks: Tensor,
  order: Tensor,
  weight: Tensor,
  type: string,
  columns?: Tensor,
): Promise<{ readonly codes: Wrong; readonly blocks: Wrong }> {
  const [codes, norms] = [info(), info()];
  rt.enqueue('verify_gguf_nearest', [blocks, order, weight, ...(columns ? [columns] : [])], [codes, norms], { type });
  await settle(rt);
  return { codes: readWrong(codes), blocks: readWrong(norms) };
}

/** Rows (column -1) and runs of 256 columns of F32 [N, K] that are not a rounding of `weight`'s. */
export async function nearRows(rt: NativeRuntime, got: Tensor, weight: Tensor): Promise<Wrong> {
  const report = info();
  rt.enqueue('verify_near_rows', [got, weight], [report]);
  await settle(rt);
  return readWrong(report);
}

/** Packed codes -> U8 [N, ceil(K*b/8)], the canonical form; perWord (ct): whole codes of each word, 0 where they are one stream. */
export const decodeStream =
  (form: 'gptq' | 'ct') =>
  (rt: NativeRuntime, packed: Tensor, c: CodesShape & { readonly perWord?: number }): Pending => {
    const p = { bits: c.bits, k: c.k, flip: c.flip, ...(form === 'ct' && { perWord: c.perWord ?? 0 }) };
    return pending(rt, `verify_decode_${form}`, packed, 'u8', codesShape(c), p);
  };

/** Tiles of [np, kp] codes; column j of them is column order[j] of the result. Stored codes outside [N, K] must be `pad`. */
export const decodeTiles = (
  rt: NativeRuntime,
  form: string,
  packed: Tensor,
  c: CodesShape & { np: number; kp: number; pad: number },
  order?: Tensor,
): Pending => {
  const p = { form, bits: c.bits, k: c.k, np: c.np, kp: c.kp, flip: c.flip, pad: c.pad };
  return pending(rt, 'verify_decode_tiles', packed, 'u8', codesShape(c), p, order);
};

/** Scales or zero points of a layout of tiles, `bits` wide, [N, G]; those of padding must be 0. */
export const decodeParameters = (
  rt: NativeRuntime,
  form: string,
  packed: Tensor,
  dtype: DType,
  shape: readonly [number, number],
  p: { bits: number; np: number; gp: number },
): Pending => pending(rt, 'verify_decode_parameters', packed, dtype, shape, { form, ...p });

/** Pairs {s, -z s} I32 [N, G] -> scales F16 and zero points I16; where s is 0, z is `constant` (-1: none can be). */
export function splitPairs(
  rt: NativeRuntime,
  pairs: Tensor,
  p: { bits: number; constant: number },
): Pending & { readonly zeros: Tensor } {
  const output = allocate('f16', pairs.shape);
  const zeros = allocate('i16', pairs.shape);
  const report = info();
  rt.enqueue('verify_split_pairs', [pairs], [output, zeros, report], p);
  return { output, zeros, wrong: () => readWrong(report) };
}

/** A Sparse-MARLIN module in canonical order; `places` names fours whose metadata is invalid. See decode_sparse.cpp. */
export function decodeSparse(
  rt: NativeRuntime,
  packed: Tensor,
  meta: Tensor,
  p: CodesShape & { readonly np: number; readonly kp: number; readonly pad: number },
): Pending & { readonly mask: Tensor; places(): Wrong } {
  const output = allocate('u8', codesShape(p));
  const mask = allocate('u8', [p.n, Math.ceil(p.k / 8)]);
  const [padding, places] = [info(), info()];
  const { n: _, ...params } = p; // of the outputs' shapes
  rt.enqueue('verify_decode_sparse', [packed, meta], [output, mask, padding, places], params);
  return { output, mask, wrong: () => readWrong(padding), places: () => readWrong(places) };
}

/** Zero points [N, G] from one bitstream of N values a group; value = ((stored + add) mod 2^b) - bias. */
export const decodeZeros = (
  rt: NativeRuntime,
  packed: Tensor,
  shape: readonly [number, number],
  dtype: 'u8' | 'i16',
  p: { bits: number; add: number; bias: number; down: boolean; perWord?: number },
): Pending => pending(rt, 'verify_decode_zeros', packed, dtype, shape, p);

export function transpose(rt: NativeRuntime, x: Tensor): Tensor {
  const y = allocate(x.dtype, [...x.shape].reverse());
  rt.enqueue('verify_transpose', [x], [y]);
  return y;
}

/** Between f16, bf16 and f32; values that do not survive the change are reported. */
export const convertExact = (rt: NativeRuntime, x: Tensor, dtype: DType): Pending =>
  pending(rt, 'verify_convert_exact', x, dtype, x.shape);

/** Compares two tensors of `rows` rows of equal bytes, elements of `bits` bits. */
export async function compare(
  rt: NativeRuntime,
  got: Tensor,
  expected: Tensor,
  p: { rows: number; bits: number },
): Promise<Wrong> {
  const report = info();
  rt.enqueue('verify_compare', [got, expected], [report], p);
  await settle(rt);
  return readWrong(report);
}

/** Runs strips of a part through the emulated kernel `op`; native/cpu/verify/emulate_*.cpp say what each takes. */
export async function emulate(
  rt: NativeRuntime,
  op: 'lanes' | 'comet',
  inputs: readonly Tensor[],
  p: OpParams & { readonly seed: number; readonly strips: readonly number[] },
): Promise<EmulatorResult> {
  const registers = info();
  const outputs = allocate('f64', [7]);
  rt.enqueue(`verify_emulate_${op}`, inputs, [registers, outputs], p);
  await settle(rt);
  const [count, row, column, got, expected, bound, ratio] = typed<Float64Array>(outputs);
  outputs.dispose();
  return {
    registers: readWrong(registers),
    outputs: { count: count!, row: row!, column: column!, got: got!, expected: expected!, bound: bound! },
    ratio: ratio!,
  };
}
