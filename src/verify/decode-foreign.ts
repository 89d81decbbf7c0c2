import type { PackedModule } from '../../formats/artifact/schema.js';
import { hashTensor } from '../../formats/safetensors/hash.js';
import type { TensorReader } from '../../formats/safetensors/read.js';
import { allocate, fromTyped, type NativeRuntime, type Tensor, typed } from '../../native/binding.js';
import { groupCount } from '../core/granularity.js';
import { quantType } from '../core/quant-type.js';
import type { Decoded } from './decode.js';
import { setStoredScales } from './decode-scales.js';
import { constantZero } from './foreign-layouts.js';
import { settle, transpose, unpackAwq } from './native.js';

/** AWQ, and the forms of compressed-tensors with whole bytes or pairs of nibbles, back into canonical form. */
export async function decodeForeign(
  rt: NativeRuntime,
  weights: TensorReader,
  name: string,
  module: PackedModule,
  decoded: Decoded,
): Promise<void> {
  if (module.layout === 'awq') return decodeAwq(rt, weights, name, module, decoded);
  const { parts } = decoded;
  const codes = module.layout.endsWith('pack-quantized') ? 'weight_packed' : 'weight';
  const stored = weights.tensor(`${name}.${codes}`, 'u8');
  const unsigned = module.layout === 'int-quantized' && !quantType(module.type).signed;
  parts.set(
    'codes',
    unsigned
      ? fromTyped(
          'u8',
          stored.shape,
          stored.bytes().map((code) => code ^ 0x80),
        )
      : stored,
  );
  if (unsigned) stored.dispose();
  const scales = weights.tensor(`${name}.weight_scale`, module.scales.dtype);
  const shared = codes === 'weight' && module.scales.stored !== undefined;
  parts.set('scales', shared ? repeated(scales, module) : scales);
  if (module.layout === 'nvfp4-pack-quantized') {
    const tensor = `${name}.weight_global_scale`;
    const global = weights.tensor(tensor);
    parts.set('global_scale', await inverseOf(name, tensor, typed<Float32Array>(global)[0] as number, module, decoded));
    global.dispose();
  }
}

/** One scale for each row and run of features, of those that blocks of weights or the whole tensor share. Takes `scales`. */
function repeated(scales: Tensor, { shape: [n, k], scales: { block, stored } }: PackedModule): Tensor {
  const [high, wide] = stored === 'tensor' || stored === undefined ? [n, k] : stored;
  const across = Math.ceil(k / wide);
  const runs = k / block[1];
  const size = scales.byteLength / scales.shape.reduce((a, b) => a * b, 1);
  const all = allocate(scales.dtype, [n, runs]);
  const [from, to] = [scales.bytes(), all.bytes()];
  for (let row = 0; row < n; row++)
    for (let run = 0; run < runs; run++) {
      const at = Math.trunc(row / high) * across + Math.trunc((run * block[1]) / wide);
      to.set(from.subarray(at * size, (at + 1) * size), (row * runs + run) * size);
    }
  scales.dispose();
  return all;
}

async function decodeAwq(
  rt: NativeRuntime,
  weights: TensorReader,
  name: string,
  module: PackedModule,
  decoded: Decoded,
): Promise<void> {
  const [n, k] = module.shape;
  const groups = groupCount(module.granularity, k);
  const flip = quantType(module.type).signed ? 8 : 0;
  const [qweight, qzeros, stored] = ['qweight', 'qzeros', 'scales'].map((part) =>
    weights.tensor(`${name}.${part}`),
  ) as [Tensor, Tensor, Tensor];
  const codes = allocate('u8', [n, Math.ceil(k / 2)]);
  unpackAwq(rt, qweight, codes, { stream: 1, flip });
  const zeros = allocate(module.zeros.kind === 'int' ? module.zeros.dtype : 'i16', [n, groups]);
  unpackAwq(rt, qzeros, zeros, { bias: flip });
  const scales = transpose(rt, stored);
  await settle(rt);
  for (const tensor of [qweight, qzeros, stored]) tensor.dispose();
  decoded.parts.set('codes', codes);
  await setStoredScales(rt, `${name}.scales`, module, decoded, scales);
  const constant = constantZero(module);
  if (constant === undefined) {
    decoded.parts.set('zeros', zeros);
    return;
  }
  const expected = constant - flip;
  const values = typed<Int16Array>(zeros);
  const at = values.findIndex((value) => value !== expected);
  if (at >= 0)
    decoded.problems.push({
      tensor: `${name}.qzeros`,
      wrong: {
        count: values.reduce((sum, value) => sum + (value === expected ? 0 : 1), 0),
        row: Math.floor(at / groups),
        column: at % groups,
        got: values[at] as number,
        expected,
      },
      what: 'a zero point is not the one of the manifest',
    });
  zeros.dispose();
}

/**
 * The second level whose reciprocal, rounded to f32, is stored. Up to three neighbours share a reciprocal; the hash in the
 * manifest tells which was meant. One that came from this format is stated in the manifest and needs no search. A stored value that is nobody's reciprocal is a problem.
 */
async function inverseOf(
  name: string,
  tensor: string,
  stored: number,
  module: PackedModule,
  decoded: Decoded,
): Promise<Tensor> {
  const middle = Math.fround(1 / stored);
  const { divisor } = module.scales;
  if (divisor !== undefined) {
    if (stored !== divisor)
      decoded.problems.push({
        tensor,
        wrong: { count: 1, row: 0, column: 0, got: stored, expected: divisor },
        what: 'it is not the divisor that lpq.json states',
      });
    return fromTyped('f32', [1], Float32Array.of(middle));
  }
  const [bits] = new Int32Array(Float32Array.of(middle).buffer) as unknown as [number];
  const near = [0, 1, -1, 2, -2]
    .map((step) => new Float32Array(Int32Array.of(bits + step).buffer))
    .filter(([value]) => Math.fround(1 / (value as number)) === stored);
  const facts = { name: `${name}.global_scale`, dtype: 'F32', shape: [1] };
  for (const value of near)
    if ((await hashTensor(facts, value)) === module.canonical.global_scale) return fromTyped('f32', [1], value);
  const [first] = near;
  if (!first)
    decoded.problems.push({
      tensor,
      wrong: { count: 1, row: 0, column: 0, got: stored, expected: Math.fround(1 / middle) },
      what: 'it is no reciprocal of a second level of scales',
    });
  return fromTyped('f32', [1], first ?? Float32Array.of(middle));
}
