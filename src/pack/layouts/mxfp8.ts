import { mxfp8Tensors } from '../../../formats/compressed-tensors/layout.js';
import { MXFP8_INPUT } from '../../../formats/compressed-tensors/schemes.js';
import { fromTyped } from '../../../native/binding.js';
import { type CompressedLayout, floatProblem } from '../compressed.js';
import { noForm } from '../integer-form.js';
import { exactFit } from '../layout.js';

/** E4M3 bytes with a power of two for every 32: the canonical codes and scales, unchanged. */
function mxfp8(input: boolean): CompressedLayout {
  return {
    name: 'mxfp8-quantized',
    codes: 'f8_e4m3',

    fit(name, module) {
      const remedy = 'Quantize it with --dtype mxfp8.';
      if (module.type !== 'f8e4m3') return noForm(`it holds ${module.type} codes`, remedy);
      const problem = floatProblem(module);
      if (problem) return problem;
      const { granularity, scales } = module;
      const same = granularity.kind === 'group' && granularity.size === 32 && scales.block[0] === 1;
      if (!same || scales.dtype !== 'f8_e8m0' || scales.global)
        return noForm(`it holds no powers of two for groups of 32, as MXFP8 does`, remedy);
      return exactFit(name, module, mxfp8Tensors(name, module.shape));
    },

    scheme: () => ({
      ...{ format: 'mxfp8-quantized', bits: 8, type: 'float', symmetric: true, strategy: 'group', groupSize: 32 },
      scaleDtype: 'torch.uint8',
      ...(input && { activations: MXFP8_INPUT }),
    }),

    pack: async ({ codes, scales }) =>
      new Map([
        ['weight', codes.view(codes.shape)],
        ['weight_scale', fromTyped('u8', scales.shape, scales.bytes())],
      ]),
  };
}

/** Weights only. */
export const mxfp8Layout = mxfp8(false);
/** With activations, which the engine rounds in the same way. */
export const mxfp8Input = mxfp8(true);
