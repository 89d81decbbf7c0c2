import type { PackedModule } from '../../formats/artifact/schema.js';
import { fromNativeDtype } from '../../formats/safetensors/dtypes.js';
import type { HashedFacts } from '../../formats/safetensors/hash.js';
import type { TensorReader } from '../../formats/safetensors/read.js';
import { allocate, type NativeRuntime, type Tensor, typed } from '../../native/binding.js';
import { groupCount, groupLength } from '../core/granularity.js';
import { decodeForeign } from './decode-foreign.js';
import { note, setStoredScales } from './decode-scales.js';
import { decodeTileModule } from './decode-tiles.js';
import { FOREIGN_LAYOUTS } from './foreign-layouts.js';
import { storedForm, valuesAWord } from './layouts.js';
import {
  decodeCompressedTensors,
  decodeGptq,
  decodeZeros,
  type Pending,
  settle,
  transpose,
  type Wrong,
} from './native.js';
import { TILE_LAYOUTS } from './tile-layouts.js';

export type DecodedPart = 'codes' | 'scales' | 'zeros' | 'global_scale' | 'g_idx' | 'permutation' | 'mask' | 'weight';

/** What the hash of a decoded part covers beside its values: the tensor that it was in the quantized checkpoint. */
export function canonicalFacts(module: string, part: DecodedPart, tensor: Tensor): HashedFacts {
  // E8M0 is stored as U8.
  const dtype = tensor.dtype === 'f8_e8m0' ? 'U8' : fromNativeDtype(tensor.dtype);
  return { name: `${module}.${part}`, dtype, shape: tensor.shape };
}

/** A value in the packed bytes that is no weight's and not what the layout says. */
export interface Problem {
  readonly tensor: string;
  readonly wrong: Wrong;
  readonly what: string;
}

/** A module in canonical form; of a dense one only `weight` is left. Dispose with disposeDecoded(). */
export interface Decoded {
  readonly parts: Map<DecodedPart, Tensor>;
  /** Group of each input feature, for dequantizing, where the layout stores it; parts has it only if canonical has. */
  group?: Tensor;
  readonly problems: Problem[];
}

export function disposeDecoded(decoded: Decoded): void {
  for (const tensor of new Set([...decoded.parts.values(), decoded.group])) tensor?.dispose();
}

/**
 * Reads a module's tensors back into canonical form with tables of the verifier's own. The tensors must have the shapes
 * of expectation(). Values outside [N, K], bits behind the last field, constant zero points and trivial g_idx are
 * compared on the way.
 */
export async function decodeModule(
  rt: NativeRuntime,
  weights: TensorReader,
  name: string,
  module: PackedModule,
): Promise<Decoded> {
  const decoded: Decoded = { parts: new Map(), problems: [] };
  if (module.layout === 'dense') decoded.parts.set('weight', weights.tensor(`${name}.weight`));
  else if (module.layout === 'carried') readCarried(weights, name, module, decoded);
  else if (TILE_LAYOUTS.includes(module.layout)) await decodeTileModule(rt, weights, name, module, decoded);
  else if (FOREIGN_LAYOUTS.includes(module.layout)) await decodeForeign(rt, weights, name, module, decoded);
  else await decodeStreams(rt, weights, name, module, decoded);
  checkIndices(name, module, decoded);
  return decoded;
}

function readCarried(weights: TensorReader, name: string, module: PackedModule, decoded: Decoded): void {
  for (const part of ['codes', 'scales', 'zeros', 'global_scale', 'g_idx', 'permutation', 'mask'] as const)
    if (module.canonical[part] !== undefined)
      decoded.parts.set(part, weights.tensor(`${name}.${part}`, part === 'scales' ? module.scales.dtype : undefined));
  const group = decoded.parts.get('g_idx');
  if (group) decoded.group = group;
}

async function decodeStreams(
  rt: NativeRuntime,
  weights: TensorReader,
  name: string,
  module: PackedModule,
  decoded: Decoded,
): Promise<void> {
  const gptq = module.layout !== 'compressed-tensors';
  const [n, k] = module.shape;
  const { bits, flip, zero } = storedForm(module);
  const groups = groupCount(module.granularity, k);
  const names = gptq
    ? { codes: 'qweight', scales: 'scales', zeros: 'qzeros', group: 'g_idx' }
    : { codes: 'weight_packed', scales: 'weight_scale', zeros: 'weight_zero_point', group: 'weight_g_idx' };
  const packedCodes = weights.tensor(`${name}.${names.codes}`);
  const storedScales = weights.tensor(`${name}.${names.scales}`);
  const perWord = module.packing === 'whole' ? valuesAWord(bits) : 0;
  const codes = gptq
    ? decodeGptq(rt, packedCodes, { bits, n, k, flip })
    : decodeCompressedTensors(rt, packedCodes, { bits, n, k, flip, perWord });
  const scales = gptq ? transpose(rt, storedScales) : storedScales;
  let zeros: Pending | undefined;
  if (weights.has(`${name}.${names.zeros}`)) {
    const dtype = module.zeros.kind === 'int' ? module.zeros.dtype : 'i16';
    // v1 stores z - 1 without a borrow into its neighbours; adding modulo 2^b undoes it for every z.
    const add = module.layout === 'gptq' ? 1 : 0;
    const packedZeros = weights.tensor(`${name}.${names.zeros}`);
    zeros = decodeZeros(rt, packedZeros, [n, groups], dtype, {
      bits,
      add,
      bias: flip,
      down: !gptq,
      perWord,
    });
    packedZeros.dispose();
  }
  await settle(rt);
  note(decoded, `${name}.${names.codes}`, codes, 'bits behind the last code of a row are not 0');
  decoded.parts.set('codes', codes.output);
  if (zeros) {
    note(decoded, `${name}.${names.zeros}`, zeros, 'bits behind the last zero point of a group are not 0');
    if (zero === undefined) decoded.parts.set('zeros', zeros.output);
    else constantZeros(decoded, `${name}.${names.zeros}`, zeros.output, zero - flip);
  }
  await setStoredScales(rt, `${name}.${names.scales}`, module, decoded, scales);
  if (weights.has(`${name}.${names.group}`)) {
    decoded.group = weights.tensor(`${name}.${names.group}`);
    if (module.canonical.g_idx !== undefined) decoded.parts.set('g_idx', decoded.group);
  }
  if (!gptq) checkShape(weights, name, module, decoded);
  packedCodes.dispose();
  if (gptq) storedScales.dispose();
}

function constantZeros(decoded: Decoded, tensor: string, zeros: Tensor, expected: number): void {
  const values = typed<Int16Array>(zeros);
  const groups = zeros.shape[1] as number;
  const at = values.findIndex((value) => value !== expected);
  if (at >= 0) {
    const count = values.reduce((sum, value) => sum + (value === expected ? 0 : 1), 0);
    const wrong = { count, row: Math.floor(at / groups), column: at % groups, got: values[at]!, expected };
    decoded.problems.push({ tensor, wrong, what: 'a zero point is not the one of the manifest' });
  }
  zeros.dispose();
}

function checkShape(weights: TensorReader, name: string, module: PackedModule, decoded: Decoded): void {
  const stored = weights.tensor(`${name}.weight_shape`);
  const values = [...typed<BigInt64Array>(stored)].map(Number);
  stored.dispose();
  module.shape.forEach((dim, i) => {
    if (values[i] === dim) return;
    const wrong = { count: 1, row: 0, column: i, got: values[i]!, expected: dim };
    decoded.problems.push({ tensor: `${name}.weight_shape`, wrong, what: 'the stored shape is not the module’s' });
  });
}

/** g_idx that nothing in the canonical checkpoint stands behind must be k div g; any g_idx must name groups. */
function checkIndices(name: string, module: PackedModule, decoded: Decoded): void {
  if (TILE_LAYOUTS.includes(module.layout)) return; // checked where it was read
  const [, k] = module.shape;
  const size = groupLength(module.granularity, k);
  const inspect = (tensor: Tensor | undefined, suffix: string, what: string, ok: (v: number, i: number) => boolean) => {
    if (!tensor) return;
    const values = typed<Int32Array>(tensor);
    const at = values.findIndex((value, i) => !ok(value, i));
    if (at < 0) return;
    const count = values.reduce((sum, value, i) => sum + (ok(value, i) ? 0 : 1), 0);
    const wrong = { count, row: 0, column: at, got: values[at]!, expected: Math.floor(at / size) };
    decoded.problems.push({ tensor: `${name}.${suffix}`, wrong, what });
  };
  const suffix = module.layout === 'compressed-tensors' ? 'weight_g_idx' : 'g_idx';
  if (module.canonical.g_idx === undefined)
    inspect(decoded.group, suffix, 'an input feature is in the wrong group', (v, i) => v === Math.floor(i / size));
  else inspect(decoded.group, suffix, 'an input feature is in no group', (v) => v >= 0 && v < k / size);
  const seen = new Uint8Array(k);
  const permutation = decoded.parts.get('permutation');
  const first = (v: number) => v >= 0 && v < k && seen[v]++ === 0;
  if (permutation && !typed<Int32Array>(permutation).every(first))
    decoded.problems.push({
      tensor: `${name}.permutation`,
      wrong: { count: 1, row: 0, column: 0, got: 0, expected: 0 },
      what: 'it is not a permutation of the input features',
    });
}

/** A tensor of the module's shape in `dtype`, for dequantizing into. */
export function weightLike(module: PackedModule, dtype: 'f32' | 'f16' | 'bf16'): Tensor {
  return allocate(dtype, module.shape);
}
