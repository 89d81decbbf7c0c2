import type { CanonicalModule } from '../../../formats/canonical/schema.js';
import { scaleShape } from '../../../formats/canonical/tensors.js';
import { byteTensors } from '../../../formats/compressed-tensors/layout.js';
import { type CompressedScheme, STATIC_FP8, tokens } from '../../../formats/compressed-tensors/schemes.js';
import { allocate, fromTyped, type Tensor, typed } from '../../../native/binding.js';
import { LpqError } from '../../core/error.js';
import { quantType } from '../../core/quant-type.js';
import { type CompressedLayout, floatProblem, NO_INPUT, SCALE_DTYPES } from '../compressed.js';
import { hasForm, integerForm, noForm } from '../integer-form.js';
import { exactFit } from '../layout.js';
import { FP8_EXPERTS, INT8_EXPERTS } from '../reader-limits.js';

/** Signed bytes with one scale per row: W8A8, where the engine rounds activations to 8 bits as it runs. */
export const intQuantized: CompressedLayout = {
  name: 'int-quantized',
  limits: [INT8_EXPERTS],

  fit(name, module, facts) {
    const form = integerForm(module, facts);
    if (!hasForm(form)) return form;
    const scaleDtype = SCALE_DTYPES[module.scales.dtype];
    if (form.bits !== 8) return noForm(`it has ${form.bits} bits and W8A8 has 8`, 'Quantize it with --bits 8.');
    if (!form.symmetric) return noForm('W8A8 kernels have no zero points', 'Quantize it without --asym.');
    if (module.granularity.kind !== 'channel' || module.groupIndex)
      return noForm('W8A8 kernels have one scale per row', 'Quantize it with --group-size channel.');
    if (!scaleDtype)
      return noForm(`its scales are ${module.scales.dtype}`, 'Quantize it with f16, bf16 or f32 scales.');
    const shapes = { shape: module.shape, scaleShape: storedShape(module), scaleDtype };
    return exactFit(name, module, byteTensors(name, { ...shapes, codeDtype: 'I8' }));
  },

  scheme: (module) => ({
    format: 'int-quantized',
    bits: 8,
    type: 'int',
    symmetric: true,
    ...storedStrategy(module),
    groupSize: null,
    activations: tokens(8, 'int'),
  }),

  async pack({ name, module, codes, scales }) {
    const weight = allocate('i8', module.shape);
    const from = codes.bytes();
    const to = weight.bytes();
    if (quantType(module.type).signed) to.set(from);
    else for (let i = 0; i < from.length; i++) to[i] = (from[i] as number) ^ 0x80;
    return new Map([
      ['weight', weight],
      ['weight_scale', storedScales(name, module, scales)],
    ]);
  },
};

/** How the engine treats activations of FP8 weights: it keeps them, or makes codes with one scale per token or with one stored scale. */
type Reads = 'floats' | 'tokens' | 'static';

/** E4M3 bytes with one scale per row or per block. */
function floats(reads: Reads): CompressedLayout {
  return {
    name: reads === 'static' ? 'float-quantized-static' : 'float-quantized',
    codes: 'f8_e4m3',
    ...(reads === 'floats' && { limits: [FP8_EXPERTS] }),

    fit(name, module) {
      if (module.type !== 'f8e4m3') return noForm(`it holds ${module.type} codes`, 'Quantize it with --dtype f8e4m3.');
      const problem = floatProblem(module);
      if (problem) return problem;
      const { stored, block } = module.scales;
      const scaleDtype = SCALE_DTYPES[module.scales.dtype];
      if (module.scales.global || !scaleDtype)
        return noForm(`FP8 has no ${module.scales.dtype} scales`, 'Quantize it with f16, bf16 or f32 scales.');
      if (module.granularity.kind !== 'channel' && block[0] === 1 && stored === undefined)
        return noForm(
          'FP8 kernels have one scale per row or per square block',
          'Quantize it with --group-size channel.',
        );
      if (reads !== 'floats' && storedStrategy(module).strategy === 'block')
        return noForm('its scales cover blocks', 'Pack it for compressed-tensors, which leaves activations alone.');
      const { inputMost } = module;
      if (reads === 'static' && inputMost === undefined) return NO_INPUT;
      const shapes = { shape: module.shape, scaleShape: storedShape(module), scaleDtype, input: reads === 'static' };
      const fit = exactFit(name, module, byteTensors(name, { ...shapes, codeDtype: 'F8_E4M3' }));
      return reads === 'static' ? { ...fit, inputMost: inputMost as number } : fit;
    },

    scheme: (module) => ({
      format: 'float-quantized',
      bits: 8,
      type: 'float',
      symmetric: true,
      ...storedStrategy(module),
      groupSize: null,
      ...(reads !== 'floats' && { activations: reads === 'static' ? STATIC_FP8 : tokens(8, 'float') }),
    }),

    pack: async ({ name, module, codes, scales }) =>
      new Map([
        ['weight', codes.view(codes.shape)],
        ['weight_scale', storedScales(name, module, scales)],
        ...(reads === 'static' ? [['input_scale', fp8Scale(module.inputMost as number)] as const] : []),
      ]),
  };
}

/** Weights only. */
export const floatQuantized = floats('floats');
export const floatTokens = floats('tokens');
export const floatStatic = floats('static');

/** The largest number of E4M3. */
const MOST_E4M3 = 448;

/** F32 [1], or a scalar: the factor of E4M3 codes. */
export function fp8Scale(most: number, shape: readonly number[] = [1]): Tensor {
  return fromTyped('f32', shape, Float32Array.of(most / MOST_E4M3));
}

/** How the scales of a module with one code a byte are shared, where the file that it came from says no more: by rows or blocks. */
function storedStrategy({ granularity, scales }: CanonicalModule): Pick<CompressedScheme, 'strategy' | 'block'> {
  const { stored, block } = scales;
  if (stored === 'tensor') return { strategy: 'tensor' };
  if (stored !== undefined) return { strategy: 'block', block: stored };
  return granularity.kind === 'channel' ? { strategy: 'channel' } : { strategy: 'block', block };
}

/** Of weight_scale: one number, or one for each block, cut or not. */
function storedShape(module: CanonicalModule): readonly number[] {
  const { stored } = module.scales;
  if (stored === undefined) return scaleShape(module);
  const [n, k] = module.shape;
  return stored === 'tensor' ? [1] : [Math.ceil(n / stored[0]), Math.ceil(k / stored[1])];
}

/**
 * The scales as the file had them, of canonical ones [N, K/bk] that repeat them. The caller disposes of it. Throws LPQ_PACK
 * where they do not.
 */
function storedScales(name: string, module: CanonicalModule, scales: Tensor): Tensor {
  const { stored, block } = module.scales;
  if (stored === undefined) return scales.view(scales.shape);
  const [n, k] = module.shape;
  const [rows, features] = stored === 'tensor' ? [n, k] : stored;
  const [width, columns] = [k / block[1], Math.ceil(k / features)];
  const own = allocate(scales.dtype, storedShape(module));
  const [from, to] = [typed<Uint16Array | Float32Array>(scales), typed<Uint16Array | Float32Array>(own)];
  for (let row = 0; row < n; row++)
    for (let run = 0; run < width; run++) {
      const at = Math.floor(row / rows) * columns + Math.floor((run * block[1]) / features);
      const scale = from[row * width + run] as number;
      const first = row % rows === 0 && (run === 0 || Math.floor(((run - 1) * block[1]) / features) !== at % columns);
      if (first) to[at] = scale;
      else if (to[at] !== scale)
        throw new LpqError(
          'LPQ_PACK',
          `module '${name}' is said to have one scale for blocks of weights, and has more`,
          {
            got: `another at row ${row}, group ${run}`,
            expected: stored === 'tensor' ? 'one for the tensor' : `one for each ${rows} x ${features}`,
          },
        );
    }
  return own;
}
