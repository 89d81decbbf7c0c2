import type { PackedModule } from '../../../formats/artifact/schema.js';
import { storedScales } from '../decode-scales.js';
import { codeProblems, type VerifiedLayout } from '../layout.js';
import { withInput } from './input.js';

/** FP8 of ModelOpt: E4M3 [N, K], F32 [N]. */
export const modelOptFp8: VerifiedLayout = {
  name: 'modelopt-fp8',

  *problems(module) {
    const { granularity, scales, zeros } = module;
    yield* codeProblems('modelopt-fp8', module, ['f8e4m3']);
    if (zeros.kind !== 'none') yield 'floats have no zero points';
    if (granularity.kind !== 'channel' || scales.block[0] !== 1 || scales.stored !== undefined)
      yield 'layout modelopt-fp8 has one scale per row';
    if (scales.global || scales.dtype.startsWith('f8')) yield 'layout modelopt-fp8 has plain scales of one level';
  },

  tensors: ({ shape: [n, k] }) => [
    { suffix: 'weight', dtypes: ['F8_E4M3'], shape: [n, k] },
    { suffix: 'weight_scale', dtypes: ['F32'], shape: [n] },
  ],

  async decode(rt, weights, name, entry, decoded) {
    decoded.parts.set('codes', weights.tensor(`${name}.weight`, 'u8'));
    const tensor = `${name}.weight_scale`;
    const stored = weights.tensor(tensor);
    const column = stored.view([entry.shape[0], 1]);
    stored.dispose();
    decoded.parts.set('scales', await storedScales(rt, tensor, entry, decoded, column));
  },
};

function* nvfp4Problems(name: string, module: PackedModule): Generator<string> {
  const { granularity, scales, zeros } = module;
  yield* codeProblems(name, module, ['f4e2m1']);
  if (zeros.kind !== 'none') yield 'floats have no zero points';
  if (granularity.kind !== 'group' || granularity.size !== 16) yield `layout ${name} has groups of 16`;
  if (scales.dtype !== 'f8_e4m3' || !scales.global || scales.block[0] !== 1)
    yield `layout ${name} has E4M3 scales under a second level`;
}

/** NVFP4 of ModelOpt: two codes a byte, the even one low; the second level multiplies. */
const nvfp4 = (name: string): VerifiedLayout => ({
  name,
  problems: (module) => nvfp4Problems(name, module),

  tensors: ({ shape: [n, k] }) => [
    { suffix: 'weight', dtypes: ['U8'], shape: [n, k / 2] },
    { suffix: 'weight_scale', dtypes: ['F8_E4M3'], shape: [n, k / 16] },
    { suffix: 'weight_scale_2', dtypes: ['F32'], shape: [] },
  ],

  decode(_rt, weights, module, entry, { parts }) {
    parts.set('codes', weights.tensor(`${module}.weight`, 'u8'));
    parts.set('scales', weights.tensor(`${module}.weight_scale`, entry.scales.dtype));
    const second = weights.tensor(`${module}.weight_scale_2`);
    parts.set('global_scale', second.view([1]));
    second.dispose();
  },
});

/** Weights only. */
export const modelOptNvfp4 = nvfp4('modelopt-w4a16-nvfp4');

/** With the second level of activations, which multiplies, too. */
export const modelOptNvfp4Input = withInput(nvfp4('modelopt-nvfp4'), 'input_scale', (most) => most / 2688, []);
