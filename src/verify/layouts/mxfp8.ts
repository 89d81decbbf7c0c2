import { codeProblems, type VerifiedLayout } from '../layout.js';

/** E4M3, one code per byte, and a power of two for every 32 codes: the form of compressed-tensors and ModelOpt. */
export const mxfp8: VerifiedLayout = {
  name: 'mxfp8-quantized',
  compressed: { format: 'mxfp8-quantized', scaleDtype: 'torch.uint8' },

  *problems(module) {
    const { granularity, scales, zeros } = module;
    yield* codeProblems('mxfp8-quantized', module, ['f8e4m3']);
    if (zeros.kind !== 'none') yield 'floats have no zero points';
    if (granularity.kind !== 'group' || granularity.size !== 32 || scales.block[0] !== 1)
      yield 'layout mxfp8-quantized has groups of 32';
    if (scales.dtype !== 'f8_e8m0' || scales.global) yield 'layout mxfp8-quantized has powers of two';
  },

  tensors: ({ shape: [n, k] }) => [
    { suffix: 'weight', dtypes: ['F8_E4M3'], shape: [n, k] },
    { suffix: 'weight_scale', dtypes: ['U8'], shape: [n, k / 32] },
  ],

  decode(_rt, weights, name, entry, { parts }) {
    parts.set('codes', weights.tensor(`${name}.weight`, 'u8'));
    parts.set('scales', weights.tensor(`${name}.weight_scale`, entry.scales.dtype));
  },
};
