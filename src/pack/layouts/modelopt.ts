import type { SafetensorsDtype } from '../../../formats/safetensors/dtypes.js';
import { allocate, fromTyped } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { floatProblem, NO_INPUT, SCALE_DTYPES } from '../compressed.js';
import { noForm } from '../integer-form.js';
import type { Fit, PackLayout } from '../layout.js';
import { mxfp8Layout } from './mxfp8.js';

/** A storage form of NVIDIA's ModelOpt. */
export interface ModelOptLayout extends PackLayout {
  /** quant_algo of its modules. */
  readonly algo: string;
  /** The number of weights that share a scale, if the configuration states it. */
  readonly group?: number;
}

const fit = (
  padded: Fit['padded'],
  ...tensors: readonly (readonly [suffix: string, dtype: SafetensorsDtype, shape: readonly number[]])[]
): Fit => ({ padded, notes: [], tensors: tensors.map(([suffix, dtype, shape]) => ({ suffix, dtype, shape })) });

/** E4M3 with one scale per row, F32 [N]; the engine rounds activations with one scale per token. */
export const modelOptFp8: ModelOptLayout = {
  name: 'modelopt-fp8',
  algo: 'FP8_PER_CHANNEL_PER_TOKEN',
  codes: 'f8_e4m3',

  fit(_name, module) {
    if (module.type !== 'f8e4m3') return noForm(`it holds ${module.type} codes`, 'Quantize it with --dtype f8e4m3.');
    const problem = floatProblem(module);
    if (problem) return problem;
    const { stored, dtype, global, block } = module.scales;
    if (
      module.granularity.kind !== 'channel' ||
      block[0] !== 1 ||
      stored !== undefined ||
      global ||
      !SCALE_DTYPES[dtype]
    )
      return noForm('FP8 of ModelOpt has one plain scale per row', 'Quantize it with --group-size channel.');
    return fit(module.shape, ['weight', 'F8_E4M3', module.shape], ['weight_scale', 'F32', [module.shape[0]]]);
  },

  async pack({ rt, codes, scales }) {
    const wide = allocate('f32', scales.shape);
    ops.cast(rt, scales, wide);
    await rt.sync();
    const rows = wide.view([scales.shape[0] as number]);
    wide.dispose();
    return new Map([
      ['weight', codes.view(codes.shape)],
      ['weight_scale', rows],
    ]);
  },
};

/** The largest product of a scale in E4M3 and a code in E2M1. */
const LARGEST = 448 * 6;

/** Two E2M1 codes per byte, an E4M3 scale for every 16, and one F32 scale that multiplies these; `input`: a second level for activations, too. */
function nvfp4(input: boolean): ModelOptLayout {
  return {
    name: input ? 'modelopt-nvfp4' : 'modelopt-w4a16-nvfp4',
    algo: input ? 'NVFP4' : 'W4A16_NVFP4',
    group: 16,

    fit(_name, module) {
      const remedy = 'Quantize it with --dtype nvfp4.';
      if (module.type !== 'f4e2m1') return noForm(`it holds ${module.type} codes`, remedy);
      const problem = floatProblem(module);
      if (problem) return problem;
      const { granularity, scales, inputMost } = module;
      const grouped = granularity.kind === 'group' && granularity.size === 16 && scales.block[0] === 1;
      if (!grouped || scales.dtype !== 'f8_e4m3' || !scales.global)
        return noForm('it has no E4M3 scales of 16 weights under a second level', remedy);
      if (input && inputMost === undefined) return NO_INPUT;
      const [n, k] = module.shape;
      const found = fit(
        module.shape,
        ['weight', 'U8', [n, k / 2]],
        ['weight_scale', 'F8_E4M3', [n, k / 16]],
        ['weight_scale_2', 'F32', []],
        ...(input ? [['input_scale', 'F32', []] as const] : []),
      );
      return input ? { ...found, inputMost: inputMost as number } : found;
    },

    pack: async ({ module, codes, scales, globalScale }) =>
      new Map([
        ['weight', codes.view(codes.shape)],
        ['weight_scale', scales.view(scales.shape)],
        ['weight_scale_2', globalScale!.view([])],
        ...(input
          ? [['input_scale', fromTyped('f32', [], Float32Array.of(module.inputMost! / LARGEST))] as const]
          : []),
      ]),
  };
}

/** Weights and activations. */
export const modelOptNvfp4Input = nvfp4(true);
/** Weights only. */
export const modelOptNvfp4 = nvfp4(false);

/** E4M3 with powers of two as scales, for weights and activations. */
export const modelOptMxfp8: ModelOptLayout = { ...mxfp8Layout, algo: 'MXFP8' };
