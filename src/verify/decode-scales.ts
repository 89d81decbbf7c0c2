import type { PackedModule } from '../../formats/artifact/schema.js';
import type { TensorReader } from '../../formats/safetensors/read.js';
import { type DType, fromTyped, type NativeRuntime, type Tensor, typed } from '../../native/binding.js';
import type { Decoded, DecodedPart } from './decode.js';
import { convertExact, decodeParameters, type Pending, settle, splitPairs, type Wrong } from './native.js';
import type { TileCodes, TileScales } from './tile-rules.js';

/** A module or a rank's part of it, in canonical form. */
export type Parts = Map<DecodedPart, Tensor>;

const STORED = { F16: 'f16', BF16: 'bf16', U8: 'u8', I8: 'i8', F32: 'f32' } as const;

const WIDTHS = { u8: 8, i8: 8, f16: 16, bf16: 16, f32: 32 } as const;

/** Scales, and zero points where they have a tensor of their own, on their way. */
export interface ReadScales {
  readonly name: string;
  readonly scales: Pending;
  readonly zeros?: { readonly name: string; readonly pending: Pending };
}

/** Enqueues the reading of a part's scales and zero points. */
export function readScales(
  rt: NativeRuntime,
  weights: TensorReader,
  prefix: string,
  scales: TileScales,
  n: number,
  np: number,
  bits: number,
): ReadScales {
  const { name, form, groups, padded } = scales;
  const read = (suffix: string, as: string, bits: number, dtype: DType) => {
    const tensor = weights.tensor(`${prefix}.${suffix}`);
    const pending = decodeParameters(rt, as, tensor, dtype, [n, groups], { bits, np, gp: padded });
    tensor.dispose();
    return pending;
  };
  if (scales.fused) return { name: `${prefix}.${name}`, scales: read(name, form, 32, 'i32') };
  const dtype = STORED[scales.dtype];
  const found = { name: `${prefix}.${name}`, scales: read(name, form, WIDTHS[dtype], dtype) };
  if (!scales.zeros) return found;
  const { name: suffix, form: zeroForm } = scales.zeros;
  // Words hold zero points as wide as the codes.
  const [width, zeroDtype]: [number, DType] = { U8: [8, 'u8'], F16: [16, 'f16'], I32: [bits, 'u8'] }[
    scales.zeros.dtype
  ] as [number, DType];
  return { ...found, zeros: { name: `${prefix}.${suffix}`, pending: read(suffix, zeroForm, width, zeroDtype) } };
}

/** {s, -z s} taken apart. */
export async function unfuse(
  rt: NativeRuntime,
  read: ReadScales,
  module: PackedModule,
  { bits, flip, zero }: TileCodes,
  parts: Parts,
  decoded: Decoded,
): Promise<void> {
  const { shape } = read.scales.output;
  const split = splitPairs(rt, read.scales.output, { bits, constant: zero ?? -1 });
  await settle(rt);
  note(decoded, read.name, split, 'the second half is not a rounded product of a zero point and the scale');
  read.scales.output.dispose();
  parts.set('scales', split.output);
  const values = Uint8Array.from(typed<Int16Array>(split.zeros));
  split.zeros.dispose();
  setZeros(read.name, module, flip, zero, fromTyped('u8', shape, values), parts, decoded);
}

/** Stored zero points as the canonical ones, or compared with the constant. Takes `zeros`. */
export function setZeros(
  tensor: string,
  module: PackedModule,
  flip: number,
  constant: number | undefined,
  zeros: Tensor,
  parts: Parts,
  decoded: Decoded,
): void {
  const kind = module.zeros;
  if (constant !== undefined) {
    constantZeros(decoded, tensor, zeros, constant);
    return;
  }
  if (zeros.dtype === 'f16' && kind.kind === 'float') {
    parts.set('zeros', zeros);
    return;
  }
  // f16 of whole numbers up to 2048 in size, each of which has one form.
  const numberOf = zeros.dtype === 'f16' ? wholeOf : (value: number) => value;
  const stored = typed<Uint16Array | Uint8Array>(zeros);
  const whole = (bits: number): boolean => !Number.isNaN(numberOf(bits));
  const wrong = firstWrong(stored, zeros.shape[1] as number, () => 0, whole);
  problem(decoded, tensor, 'a zero point is not an integer from -2048 to 2048', wrong);
  const i16 = kind.kind === 'int' && kind.dtype === 'i16';
  const values = Array.from(stored, (bits) => numberOf(bits) - flip);
  parts.set(
    'zeros',
    i16
      ? fromTyped('i16', zeros.shape, Int16Array.from(values))
      : fromTyped('u8', zeros.shape, Uint8Array.from(values)),
  );
  zeros.dispose();
}

/** The whole number that f16 bits stand for, NaN for anything else, -0 included. */
function wholeOf(bits: number): number {
  const exponent = (bits >> 10) & 31;
  if (bits === 0) return 0;
  const value = (1 + (bits & 1023) / 1024) * 2 ** (exponent - 15);
  if (exponent < 15 || exponent > 26 || !Number.isInteger(value) || value > 2048) return Number.NaN;
  return bits & 0x8000 ? -value : value;
}

/** Scales in the canonical dtype. Takes `scales`. */
export function setScales(tensor: string, module: PackedModule, scales: Tensor, parts: Parts, decoded: Decoded): void {
  const { dtype } = module.scales;
  if (dtype === 'f8_e8m0' && scales.dtype === 'bf16') {
    // bf16 of 2^(e - 127): exponent field e, but for the subnormal 2^-127.
    const bits = typed<Uint16Array>(scales);
    const bytes = Uint8Array.from(bits, (value) => value >> 7);
    const power = (value: number) => (value === 0x40 || (value & 0x807f) === 0) && value !== 0 && value < 0x7f80;
    const wrong = firstWrong(bits, scales.shape[1]!, (i) => bits[i]! & 0x7f80, power);
    problem(decoded, tensor, 'a stored bf16 scale is not a power of two', wrong);
    parts.set('scales', fromTyped('f8_e8m0', scales.shape, bytes));
    scales.dispose();
    return;
  }
  if (dtype === 'f8_e8m0') {
    parts.set('scales', fromTyped('f8_e8m0', scales.shape, scales.bytes()));
    scales.dispose();
  } else parts.set('scales', scales);
}

/** The scales in the canonical dtype; a value that would change on the way is a difference, not a rounding. Takes `scales`. */
export async function storedScales(
  rt: NativeRuntime,
  tensor: string,
  module: PackedModule,
  decoded: Decoded,
  scales: Tensor,
): Promise<Tensor> {
  if (scales.dtype === module.scales.dtype) return scales;
  const converted = convertExact(rt, scales, module.scales.dtype);
  await settle(rt);
  note(decoded, tensor, converted, `a stored ${scales.dtype} scale is not a ${module.scales.dtype} number`);
  scales.dispose();
  return converted.output;
}

/** A difference, where there is one. */
export function problem(
  decoded: Pick<Decoded, 'problems'>,
  tensor: string,
  what: string,
  wrong: Wrong | undefined,
): void {
  if (wrong && wrong.count > 0) decoded.problems.push({ tensor, wrong, what });
}

export function note(decoded: Decoded, tensor: string, from: { wrong(): Wrong }, what: string): void {
  problem(decoded, tensor, what, from.wrong());
}

/** The first of values in rows of `columns` that is not `ok` (default: what is expected), and how many are not. */
export function firstWrong(
  values: ArrayLike<number>,
  columns: number,
  expected: (i: number) => number,
  ok: (value: number, i: number) => boolean = (value, i) => value === expected(i),
): Wrong | undefined {
  const wrong = Array.from(values, (value, i) => (ok(value, i) ? -1 : i)).filter((i) => i >= 0);
  const [at] = wrong;
  if (at === undefined) return undefined;
  const [row, column] = [Math.floor(at / columns), at % columns];
  return { count: wrong.length, row, column, got: values[at] as number, expected: expected(at) };
}

/** Stored zero points against the one of the manifest, `expected` as it is decoded. Takes `zeros`. */
export function constantZeros(decoded: Decoded, tensor: string, zeros: Tensor, expected: number): void {
  const [, groups] = zeros.shape as [number, number];
  const wrong = firstWrong(typed<Int16Array>(zeros), groups, () => expected);
  problem(decoded, tensor, 'a zero point is not the one of the manifest', wrong);
  zeros.dispose();
}
