import type { PackedModule } from '../../../formats/artifact/schema.js';
import { hashTensor } from '../../../formats/safetensors/hash.js';
import { fromTyped, type Tensor, typed } from '../../../native/binding.js';
import { groupCount } from '../../core/granularity.js';
import type { Decoded } from '../decode.js';
import { firstWrong, problem } from '../decode-scales.js';
import { codeProblems, type VerifiedLayout } from '../layout.js';
import { withInput } from './input.js';

/** Forms of compressed-tensors with two f4e2m1 codes a byte; `global`: with a second level of scales, stored as a divisor. */
function fp4(form: string, group: number, dtype: string, stored: string, global: boolean, name = form): VerifiedLayout {
  return {
    name,
    compressed: { format: form },

    *problems(module) {
      const { granularity, scales, shape, zeros } = module;
      yield* codeProblems(name, module, ['f4e2m1']);
      if (zeros.kind !== 'none') yield 'floats have no zero points';
      if (granularity.kind !== 'group' || granularity.size !== group || shape[1] % 2 !== 0)
        yield `layout ${name} has groups of ${group}`;
      if (scales.dtype !== dtype || scales.global !== global || scales.block[0] !== 1)
        yield `layout ${name} has ${dtype} scales`;
    },

    tensors: ({ shape: [n, k], granularity }) => [
      { suffix: 'weight_packed', dtypes: ['U8'], shape: [n, k / 2] },
      { suffix: 'weight_scale', dtypes: [stored], shape: [n, groupCount(granularity, k)] },
      ...(global ? [{ suffix: 'weight_global_scale', dtypes: ['F32'], shape: [1] }] : []),
    ],

    async decode(_rt, weights, module, entry, decoded) {
      decoded.parts.set('codes', weights.tensor(`${module}.weight_packed`, 'u8'));
      decoded.parts.set('scales', weights.tensor(`${module}.weight_scale`, entry.scales.dtype));
      if (!global) return;
      const tensor = `${module}.weight_global_scale`;
      const divisor = weights.tensor(tensor);
      const value = typed<Float32Array>(divisor)[0] as number;
      decoded.parts.set('global_scale', await inverseOf(module, tensor, value, entry, decoded));
      divisor.dispose();
    },
  };
}

export const nvfp4 = fp4('nvfp4-pack-quantized', 16, 'f8_e4m3', 'F8_E4M3', true);

/** With the divisor of scales of activations: the largest is 448 * 6. */
export const nvfp4Input = withInput(
  fp4('nvfp4-pack-quantized', 16, 'f8_e4m3', 'F8_E4M3', true, 'nvfp4-w4a4'),
  'input_global_scale',
  (most) => 2688 / most,
);

export const mxfp4 = fp4('mxfp4-pack-quantized', 32, 'f8_e8m0', 'U8', false);

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
    const wrong = firstWrong([stored], 1, () => divisor);
    problem(decoded, tensor, 'it is not the divisor that lpq.json states', wrong);
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
  const wrong = first ? undefined : firstWrong([stored], 1, () => Math.fround(1 / middle));
  problem(decoded, tensor, 'it is not the reciprocal of a second level of scales', wrong);
  return fromTyped('f32', [1], first ?? Float32Array.of(middle));
}
