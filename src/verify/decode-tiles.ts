import type { PackedModule } from '../../formats/artifact/schema.js';
import type { ScaleDtype } from '../../formats/canonical/schema.js';
import type { TensorReader } from '../../formats/safetensors/read.js';
import { allocate, type DType, fromTyped, type NativeRuntime, type Tensor, typed } from '../../native/binding.js';
import { quantType } from '../core/quant-type.js';
import type { Decoded, DecodedPart } from './decode.js';
import { decodeParameters, decodeTiles, type Pending, settle, splitPairs, type Wrong } from './native.js';
import { partShape, rankPrefixes, type TileScales, tileCodes, tileScales } from './tile-layouts.js';

type Parts = Map<DecodedPart, Tensor>;

const STORED: Readonly<Record<'F16' | 'BF16' | 'U8', DType>> = { F16: 'f16', BF16: 'bf16', U8: 'u8' };

/** A module in a layout of tiles: every rank's part is decoded, and the parts are joined. */
export async function decodeTileModule(
  rt: NativeRuntime,
  weights: TensorReader,
  name: string,
  module: PackedModule,
  decoded: Decoded,
): Promise<void> {
  const parts: Parts[] = [];
  for (const prefix of rankPrefixes(name, module))
    parts.push(await decodePart(rt, weights, name, prefix, module, decoded));
  const first = parts[0]!;
  const { ranks } = module;
  for (const part of ['codes', 'scales', 'zeros', 'g_idx', 'permutation'] as const) {
    const pieces = parts.map((each) => each.get(part));
    if (!first.has(part)) continue;
    // Whole-row scales of parts of K, and orders of columns, are the same for every rank.
    const alike =
      part === 'g_idx' ||
      part === 'permutation' ||
      (part !== 'codes' && ranks?.split === 'k' && module.granularity.kind === 'channel');
    if (!ranks) decoded.parts.set(part, pieces[0]!);
    else if (alike) {
      for (const [rank, piece] of pieces.entries())
        if (!Buffer.from(piece!.bytes()).equals(pieces[0]!.bytes()))
          problem(
            decoded,
            `${name}.rank${rank}`,
            `its ${part} are not those of rank 0`,
            firstWrong(piece!, pieces[0]!),
          );
      decoded.parts.set(part, pieces[0]!);
      for (const piece of pieces.slice(1)) piece!.dispose();
    } else {
      decoded.parts.set(part, join(pieces as Tensor[], ranks.split));
      for (const piece of pieces) piece!.dispose();
    }
  }
  const group = decoded.parts.get('g_idx');
  if (group) decoded.group = group;
}

/** One rank's part, or the whole. The caller disposes of what it returns. */
export async function decodePart(
  rt: NativeRuntime,
  weights: TensorReader,
  name: string,
  prefix: string,
  module: PackedModule,
  decoded: Decoded,
): Promise<Parts> {
  const [n, k] = partShape(module);
  const [np, kp] = module.padded;
  const { bits, flip, pad, form, zero } = tileCodes(name, module);
  const scales = tileScales(module);
  const parts: Parts = new Map();
  const packedName = `${prefix}.${module.layout === 'marlin' ? 'B' : 'packed'}`;
  const packed = weights.tensor(packedName);
  const stored = weights.has(`${prefix}.permutation`) ? weights.tensor(`${prefix}.permutation`) : undefined;
  const order = stored && readOrder(`${prefix}.permutation`, module, stored, parts, decoded);
  const codes = decodeTiles(rt, form, packed, { bits, n, k, np, kp, flip, pad }, order);
  const read = readScales(rt, weights, prefix, scales, n, np, module);
  await settle(rt);
  note(decoded, packedName, codes, 'a code of the padding is not what padding holds');
  parts.set('codes', codes.output);
  note(decoded, read.name, read.scales, 'the scale of a padding column or group is not 0');
  if (scales.zeros === 'fused') await unfuse(rt, read, n, scales, module, zero, parts, decoded);
  else {
    setScales(read.name, module, read.scales.output, parts, decoded);
    if (read.zeros) {
      note(decoded, read.zeros.name, read.zeros.pending, 'the zero point of a padding column or group is not 0');
      setZeros(read.zeros.name, module, flip, zero, read.zeros.pending.output, parts, decoded);
    }
  }
  packed.dispose();
  stored?.dispose();
  return parts;
}

interface ReadScales {
  readonly name: string;
  readonly scales: Pending;
  readonly zeros?: { readonly name: string; readonly pending: Pending };
}

function readScales(
  rt: NativeRuntime,
  weights: TensorReader,
  prefix: string,
  scales: TileScales,
  n: number,
  np: number,
  module: PackedModule,
): ReadScales {
  const { form, groups, padded } = scales;
  const read = (suffix: string, as: string, bits: number, dtype: DType) => {
    const tensor = weights.tensor(`${prefix}.${suffix}`);
    const pending = decodeParameters(rt, as, tensor, dtype, [n, groups], { bits, np, gp: padded });
    tensor.dispose();
    return pending;
  };
  if (scales.zeros === 'fused')
    return { name: `${prefix}.scales_zeros`, scales: read('scales_zeros', form, 32, 'i32') };
  const dtype = STORED[scales.dtype];
  const suffix = module.layout === 'marlin' ? 's' : 'scales';
  const found = { name: `${prefix}.${suffix}`, scales: read(suffix, form, dtype === 'u8' ? 8 : 16, dtype) };
  if (scales.zeros === 'none') return found;
  const { bits } = quantType(module.type);
  const [zeroSuffix, zeroForm, width, zeroDtype]: [string, string, number, DType] =
    scales.zeros === 'I32'
      ? ['zp', 'marlin_zeros', bits, 'u8']
      : ['zeros', form, scales.zeros === 'U8' ? 8 : 16, scales.zeros === 'U8' ? 'u8' : 'f16'];
  return {
    ...found,
    zeros: { name: `${prefix}.${zeroSuffix}`, pending: read(zeroSuffix, zeroForm, width, zeroDtype) },
  };
}

/** {s, -z s} taken apart. */
async function unfuse(
  rt: NativeRuntime,
  read: ReadScales,
  n: number,
  { groups }: TileScales,
  module: PackedModule,
  zero: number | undefined,
  parts: Parts,
  decoded: Decoded,
): Promise<void> {
  const { bits, flip } = tileCodes('', module);
  const split = splitPairs(rt, read.scales.output, { bits, constant: zero ?? -1 });
  await settle(rt);
  note(decoded, read.name, split, 'the second half is no rounded product of a zero point and the scale');
  read.scales.output.dispose();
  parts.set('scales', split.output);
  const values = Uint8Array.from(typed<Int16Array>(split.zeros));
  split.zeros.dispose();
  setZeros(read.name, module, flip, zero, fromTyped('u8', [n, groups], values), parts, decoded);
}

/** Stored zero points as the canonical ones, or compared with the constant. Takes `zeros`. */
function setZeros(
  tensor: string,
  module: PackedModule,
  flip: number,
  constant: number | undefined,
  zeros: Tensor,
  parts: Parts,
  decoded: Decoded,
): void {
  const groups = zeros.shape[1] as number;
  const kind = module.zeros;
  if (constant !== undefined) {
    const values = zeros.bytes();
    const at = values.findIndex((value) => value !== constant);
    if (at >= 0)
      problem(decoded, tensor, 'a zero point is not the one of the manifest', {
        count: values.reduce((sum, value) => sum + (value === constant ? 0 : 1), 0),
        row: Math.floor(at / groups),
        column: at % groups,
        got: values[at]!,
        expected: constant,
      });
    zeros.dispose();
    return;
  }
  if (zeros.dtype === 'f16' && kind.kind === 'float') {
    parts.set('zeros', zeros);
    return;
  }
  // f16 of whole numbers up to 2048 in size, each of which has one form.
  const whole = zeros.dtype === 'f16' ? Array.from(typed<Uint16Array>(zeros), wholeOf) : [...zeros.bytes()];
  const at = whole.findIndex(Number.isNaN);
  if (at >= 0)
    problem(decoded, tensor, 'a zero point is no whole number from -2048 to 2048', {
      count: whole.filter(Number.isNaN).length,
      row: Math.floor(at / groups),
      column: at % groups,
      got: typed<Uint16Array>(zeros)[at]!,
      expected: 0,
    });
  const i16 = kind.kind === 'int' && kind.dtype === 'i16';
  const values = whole.map((value) => value - flip);
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
function setScales(tensor: string, module: PackedModule, scales: Tensor, parts: Parts, decoded: Decoded): void {
  const { dtype } = module.scales;
  if (dtype === 'f8_e8m0' && scales.dtype === 'bf16') {
    // bf16 of 2^(e - 127): exponent field e, but for the subnormal 2^-127.
    const bits = typed<Uint16Array>(scales);
    const bytes = Uint8Array.from(bits, (value) => value >> 7);
    const at = bits.findIndex((value) => (value !== 0x40 && (value & 0x807f) !== 0) || value === 0 || value >= 0x7f80);
    if (at >= 0)
      problem(decoded, tensor, 'a stored bf16 scale is no power of two', {
        count: 1,
        row: Math.floor(at / scales.shape[1]!),
        column: at % scales.shape[1]!,
        got: bits[at]!,
        expected: bits[at]! & 0x7f80,
      });
    parts.set('scales', fromTyped('f8_e8m0', scales.shape, bytes));
    scales.dispose();
    return;
  }
  const same: Partial<Record<ScaleDtype, DType>> = { f8_e8m0: 'u8' };
  if ((same[dtype] ?? dtype) === 'u8') {
    parts.set('scales', fromTyped('f8_e8m0', scales.shape, scales.bytes()));
    scales.dispose();
  } else parts.set('scales', scales);
}

/**
 * What `permutation` says: the canonical permutation itself, or g_idx, sorted by group with features of a group in order.
 * Returns the order to undo, for g_idx.
 */
function readOrder(
  tensor: string,
  module: PackedModule,
  stored: Tensor,
  parts: Parts,
  decoded: Decoded,
): Tensor | undefined {
  const values = typed<Int32Array>(stored);
  const k = values.length;
  const seen = new Uint8Array(k);
  const bad = values.findIndex((value) => value < 0 || value >= k || seen[value]++ !== 0);
  if (bad >= 0)
    problem(decoded, tensor, 'it is not a permutation of the input features', {
      count: 1,
      row: 0,
      column: bad,
      got: values[bad]!,
      expected: bad,
    });
  if (module.canonical.permutation !== undefined) {
    parts.set('permutation', stored.view(stored.shape));
    return undefined;
  }
  const group = new Int32Array(k);
  if (bad >= 0) {
    parts.set('g_idx', fromTyped('i32', [k], group));
    return undefined;
  }
  const size = module.granularity.kind === 'group' ? module.granularity.size : k;
  for (let j = 0; j < k; j++) group[values[j]!] = Math.floor(j / size);
  const fall = values.findIndex((value, j) => j % size !== 0 && value < values[j - 1]!);
  if (fall >= 0)
    problem(decoded, tensor, 'the input features of a group are not in order', {
      count: 1,
      row: 0,
      column: fall,
      got: values[fall]!,
      expected: values[fall - 1]!,
    });
  parts.set('g_idx', fromTyped('i32', [k], group));
  return stored;
}

/** The parts of ranks side by side: one under another (n), or row by row (k). */
function join(pieces: readonly Tensor[], split: 'n' | 'k'): Tensor {
  const [rows, columns] = pieces[0]!.shape as [number, number];
  const count = pieces.length;
  const whole = allocate(pieces[0]!.dtype, split === 'n' ? [rows * count, columns] : [rows, columns * count]);
  const to = whole.bytes();
  const rowBytes = pieces[0]!.byteLength / rows;
  for (const [rank, piece] of pieces.entries()) {
    const from = piece.bytes();
    if (split === 'n') to.set(from, rank * from.length);
    else
      for (let row = 0; row < rows; row++)
        to.set(from.subarray(row * rowBytes, (row + 1) * rowBytes), (row * count + rank) * rowBytes);
  }
  return whole;
}

function firstWrong(got: Tensor, expected: Tensor): Wrong {
  const [a, b] = [got.bytes(), expected.bytes()];
  const at = a.findIndex((value, i) => value !== b[i]);
  const columns = got.byteLength / got.shape[0]!;
  return { count: 1, row: Math.floor(at / columns), column: at % columns, got: a[at]!, expected: b[at]! };
}

function note(decoded: Decoded, tensor: string, from: { wrong(): Wrong }, what: string): void {
  const wrong = from.wrong();
  if (wrong.count > 0) problem(decoded, tensor, what, wrong);
}

function problem(decoded: Decoded, tensor: string, what: string, wrong: Wrong): void {
  decoded.problems.push({ tensor, wrong, what });
}
