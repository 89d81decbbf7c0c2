import type { PackedModule } from '../../formats/artifact/schema.js';
import type { TensorReader } from '../../formats/safetensors/read.js';
import { type NativeRuntime, type Tensor, typed } from '../../native/binding.js';
import { groupCount, groupSizeOf } from '../core/granularity.js';
import { quantType } from '../core/quant-type.js';
import type { Decoded } from './decode.js';
import { constantZeros, firstWrong, note, problem, storedScales } from './decode-scales.js';
import { isOutside, storedForm } from './layout.js';
import { type CodesShape, decodeZeros, type Pending, settle, transpose } from './native.js';

/** What tells one layout of dense bitstreams from another. */
export interface Streams {
  /** The last parts of the names of its tensors. */
  readonly names: { readonly codes: string; readonly scales: string; readonly zeros: string; readonly group: string };
  /** Streams of codes run down columns, those of zero points along rows, and scales are [G, N]. */
  readonly turned: boolean;
  /** Stored zero points are this much too small, modulo 2^bits. */
  readonly zeroBias: 0 | 1;
  codes(rt: NativeRuntime, packed: Tensor, shape: CodesShape & { readonly perWord: number }): Pending;
}

/** Codes of a word whose top bits are 0 (compressed-tensors before 0.13). */
export function valuesAWord(bits: number): number {
  return Math.trunc(32 / bits);
}

/** Words that hold `count` codes of a module. */
export function wordsFor({ type, packing }: PackedModule, count: number): number {
  const { bits } = quantType(type);
  return packing === 'whole' ? Math.ceil(count / valuesAWord(bits)) : Math.ceil((count * bits) / 32);
}

/** Contradictions of a module with a layout of integers in one stream. */
export function* streamProblems(layout: string, module: PackedModule): Generator<string> {
  const type = quantType(module.type);
  const { bits, zero } = storedForm(module);
  if (type.kind !== 'int') yield `layout ${layout} holds integers, not ${type.name}`;
  if (module.zeros.kind === 'float') yield `layout ${layout} has no float zero points`;
  if (module.scales.global) yield `layout ${layout} has no global scale`;
  if (module.scales.block[0] !== 1) yield `layout ${layout} has no scales that several rows share`;
  if (module.scales.dtype.startsWith('f8')) yield `layout ${layout} has no ${module.scales.dtype} scales`;
  if (module.canonical.mask !== undefined) yield `layout ${layout} has no 2:4 mask`;
  if (isOutside(zero, bits)) yield `a zero point of ${zero} is outside the stored range`;
  if (module.canonical.permutation !== undefined) yield `layout ${layout} has no permutation`;
}

/** Codes, scales, zero points and g_idx, back into canonical form. */
export async function decodeStreams(
  { names, turned, zeroBias, codes: decodeCodes }: Streams,
  rt: NativeRuntime,
  weights: TensorReader,
  name: string,
  module: PackedModule,
  decoded: Decoded,
): Promise<void> {
  const [n, k] = module.shape;
  const { bits, flip, zero } = storedForm(module);
  const perWord = module.packing === 'whole' ? valuesAWord(bits) : 0;
  const packedCodes = weights.tensor(`${name}.${names.codes}`);
  const packedScales = weights.tensor(`${name}.${names.scales}`);
  const codes = decodeCodes(rt, packedCodes, { bits, n, k, flip, perWord });
  const scales = turned ? transpose(rt, packedScales) : packedScales;
  let zeros: Pending | undefined;
  if (weights.has(`${name}.${names.zeros}`)) {
    const dtype = module.zeros.kind === 'int' ? module.zeros.dtype : 'i16';
    const packedZeros = weights.tensor(`${name}.${names.zeros}`);
    const options = { bits, add: zeroBias, bias: flip, down: !turned, perWord };
    zeros = decodeZeros(rt, packedZeros, [n, groupCount(module.granularity, k)], dtype, options);
    packedZeros.dispose();
  }
  await settle(rt);
  note(decoded, `${name}.${names.codes}`, codes, 'bits after the last code of a row are not 0');
  decoded.parts.set('codes', codes.output);
  if (zeros) {
    note(decoded, `${name}.${names.zeros}`, zeros, 'bits after the last zero point of a group are not 0');
    if (zero === undefined) decoded.parts.set('zeros', zeros.output);
    else constantZeros(decoded, `${name}.${names.zeros}`, zeros.output, zero - flip);
  }
  decoded.parts.set('scales', await storedScales(rt, `${name}.${names.scales}`, module, decoded, scales));
  if (weights.has(`${name}.${names.group}`)) {
    decoded.group = weights.tensor(`${name}.${names.group}`);
    if (module.canonical.g_idx !== undefined) decoded.parts.set('g_idx', decoded.group);
  }
  packedCodes.dispose();
  if (turned) packedScales.dispose();
  checkIndices(name, names.group, module, decoded);
}

/** g_idx (`suffix`) that nothing in the canonical checkpoint stands behind must be k div g; any g_idx must name groups. */
export function checkIndices(name: string, suffix: string, module: PackedModule, decoded: Decoded): void {
  const [, k] = module.shape;
  const size = groupSizeOf(module.granularity, k);
  const inspect = (what: string, ok?: (v: number) => boolean) => {
    if (!decoded.group) return;
    const wrong = firstWrong(typed<Int32Array>(decoded.group), k, (at) => Math.floor(at / size), ok);
    problem(decoded, `${name}.${suffix}`, what, wrong);
  };
  if (module.canonical.g_idx === undefined) inspect('an input feature is in the wrong group');
  else inspect('an input feature is in no group', (v) => v >= 0 && v < k / size);
  const permutation = decoded.parts.get('permutation');
  if (permutation) checkPermutation(`${name}.permutation`, permutation, decoded);
}

/** Every input feature once. False where it is not so. */
export function checkPermutation(tensor: string, permutation: Tensor, decoded: Decoded): boolean {
  const values = typed<Int32Array>(permutation);
  const seen = new Uint8Array(values.length);
  const first = (v: number) => v >= 0 && v < values.length && seen[v]++ === 0;
  const wrong = firstWrong(values, values.length, (i) => i, first);
  problem(decoded, tensor, 'it is not a permutation of the input features', wrong);
  return wrong === undefined;
}
