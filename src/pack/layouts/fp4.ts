import { fp4Tensors } from '../../../formats/compressed-tensors/layout.js';
import { NVFP4_INPUT } from '../../../formats/compressed-tensors/schemes.js';
import { fromTyped, typed } from '../../../native/binding.js';
import { printGranularity } from '../../core/granularity.js';
import { type CompressedLayout, floatProblem, NO_INPUT } from '../compressed.js';
import { noForm } from '../integer-form.js';
import { exactFit } from '../layout.js';
import { NVFP4_EXPERTS } from '../reader-limits.js';

/**
 * Two E2M1 codes a byte: NVFP4 and MXFP4. The canonical codes and scales have exactly these bytes. `input`: activations become codes, too,
 * with a stored second level of scales.
 */
function fp4(kind: 'nvfp4' | 'mxfp4', input = false): CompressedLayout {
  const format = `${kind}-pack-quantized` as const;
  const [group, dtype, global] =
    kind === 'nvfp4' ? ([16, 'f8_e4m3', true] as const) : ([32, 'f8_e8m0', false] as const);
  return {
    name: input ? `${kind}-w4a4` : format,
    ...(global && { limits: [NVFP4_EXPERTS] }),

    fit(name, module) {
      const remedy = 'Quantize it with --dtype nvfp4 or --dtype mxfp4.';
      if (module.type !== 'f4e2m1') return noForm(`it holds ${module.type} codes`, remedy);
      const problem = floatProblem(module);
      if (problem) return problem;
      const { granularity, scales } = module;
      const same = granularity.kind === 'group' && granularity.size === group && scales.block[0] === 1;
      if (!same || scales.dtype !== dtype || scales.global !== global)
        return noForm(
          `${scales.dtype} scales in groups of ${printGranularity(granularity)} make neither NVFP4 (f8_e4m3, 16) nor MXFP4 (f8_e8m0, 32)`,
          remedy,
        );
      const { inputMost } = module;
      if (input && inputMost === undefined) return NO_INPUT;
      const fit = exactFit(name, module, fp4Tensors(name, module.shape, kind, input));
      return input ? { ...fit, inputMost: inputMost as number } : fit;
    },

    scheme: () => ({
      format,
      bits: 4,
      type: 'float',
      symmetric: true,
      strategy: kind === 'nvfp4' ? 'tensor_group' : 'group',
      groupSize: group,
      ...(input && { activations: NVFP4_INPUT }),
    }),

    async pack({ module, codes, scales, globalScale }) {
      const out = new Map([
        ['weight_packed', codes.view(codes.shape)],
        ['weight_scale', global ? scales.view(scales.shape) : fromTyped('u8', scales.shape, scales.bytes())],
      ]);
      if (global) {
        const factor = typed<Float32Array>(globalScale!)[0] as number;
        // The format divides by its second level. One that was read from it goes back as it was.
        const { divisor } = module.scales;
        const own = divisor !== undefined && Math.fround(1 / divisor) === factor;
        out.set('weight_global_scale', fromTyped('f32', [1], Float32Array.of(own ? divisor : 1 / factor)));
      }
      if (input) out.set('input_global_scale', fromTyped('f32', [1], Float32Array.of(LARGEST / module.inputMost!)));
      return out;
    },
  };
}

/** The largest product of a scale in E4M3 and a code in E2M1. */
const LARGEST = 448 * 6;

export const nvfp4Layout = fp4('nvfp4');
export const mxfp4Layout = fp4('mxfp4');
export const nvfp4Input = fp4('nvfp4', true);
