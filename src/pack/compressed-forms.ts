import type { CanonicalModule } from '../../formats/canonical/schema.js';
import { scaleShape } from '../../formats/canonical/tensors.js';
import { byteTensors, fp4Tensors, packQuantizedTensors } from '../../formats/compressed-tensors/layout.js';
import type { CompressedFormat, CompressedScheme } from '../../formats/compressed-tensors/schemes.js';
import type { TensorSpec } from '../../formats/safetensors/header.js';
import { allocate, fromTyped, type Tensor, typed } from '../../native/binding.js';
import { LpqError } from '../core/error.js';
import { groupCount, printGranularity } from '../core/granularity.js';
import { quantType } from '../core/quant-type.js';
import { allPacked, pack } from '../layout/engine.js';
import { hasForm, type IntegerForm, integerForm, type NoForm } from './integer-form.js';
import { rowStreams, transposedColumnStreams, wholeWordColumns, wholeWordRows } from './layouts/stream.js';
import { groupIndex, offsetZeros } from './operands.js';
import type { ModuleFacts, PackJob } from './target.js';

/** One storage form of compressed-tensors. */
export interface CompressedForm {
  readonly format: CompressedFormat;
  /** The tensors of a module, or why it has no such form. */
  fit(name: string, module: CanonicalModule, facts: ModuleFacts): readonly TensorSpec[] | NoForm;
  /** What config.json says of a module that fits. */
  scheme(module: CanonicalModule): CompressedScheme;
  /** The tensors, in the plan's dtypes and shapes. The caller disposes of them. */
  pack(job: PackJob): Promise<Map<string, Tensor>>;
}

const SCALE_DTYPES: Readonly<Record<string, 'F16' | 'BF16' | 'F32'>> = { f16: 'F16', bf16: 'BF16', f32: 'F32' };
const none = (reason: string, remedy: string): NoForm => ({ reason, remedy });

/** Offset integers of 1 to 8 bits as dense bitstreams; in whole words where the module came from such a file. */
export const packQuantized: CompressedForm = {
  format: 'pack-quantized',

  fit(name, module, facts) {
    const form = integerForm(module, facts);
    if (!hasForm(form)) return form;
    const scaleDtype = SCALE_DTYPES[module.scales.dtype];
    if (!scaleDtype) return none(`its scales are ${module.scales.dtype}`, 'Quantize it with f16 or bf16 scales.');
    return packQuantizedTensors(name, {
      bits: form.bits,
      shape: module.shape,
      granularity: module.granularity,
      symmetric: form.symmetric,
      scaleDtype,
      groupIndex: module.groupIndex,
      packing: module.packing,
    });
  },

  scheme(module) {
    const { bits, symmetric } = integerForm(module, { zeroRange: [0, 0] }) as IntegerForm;
    const { granularity } = module;
    return {
      format: 'pack-quantized',
      bits,
      type: 'int',
      symmetric,
      strategy: granularity.kind,
      groupSize: granularity.kind === 'group' ? granularity.size : null,
      actorder: module.groupIndex ? 'group' : null,
    };
  },

  async pack(job) {
    const { rt, checkpoint, name, module, plan } = job;
    const form = integerForm(module, { zeroRange: [0, 0] }) as IntegerForm;
    const [n, k] = module.shape;
    const { bits, bias } = form;
    const out = new Map<string, Tensor>();
    const shapeOf = (part: string) => plan.tensors.find((tensor) => tensor.name === `${name}.${part}`)?.shape;
    const codes = checkpoint.require(name, 'codes');
    const packed = allocate('i32', shapeOf('weight_packed')!);
    const whole = module.packing === 'whole';
    pack(rt, (whole ? wholeWordRows : rowStreams)(n, k, bits), codes, packed, { streamColumns: k, bias });
    out.set(`${name}.weight_packed`, packed);
    out.set(`${name}.weight_scale`, checkpoint.require(name, 'scales'));
    out.set(`${name}.weight_shape`, fromTyped('i64', [2], BigInt64Array.of(BigInt(n), BigInt(k))));
    const zeroShape = shapeOf('weight_zero_point');
    if (zeroShape) {
      const zeros = offsetZeros(job, form);
      const zeroPoint = allocate('i32', zeroShape);
      const layout = (whole ? wholeWordColumns : transposedColumnStreams)(n, groupCount(module.granularity, k), bits);
      pack(rt, layout, zeros, zeroPoint);
      zeros.dispose();
      out.set(`${name}.weight_zero_point`, zeroPoint);
    }
    if (shapeOf('weight_g_idx')) out.set(`${name}.weight_g_idx`, groupIndex(job));
    codes.dispose();
    await allPacked(rt);
    return out;
  },
};

/** Signed bytes with one scale a row: W8A8, where the engine rounds activations to 8 bits as it runs. */
export const intQuantized: CompressedForm = {
  format: 'int-quantized',

  fit(name, module, facts) {
    const form = integerForm(module, facts);
    if (!hasForm(form)) return form;
    const scaleDtype = SCALE_DTYPES[module.scales.dtype];
    if (form.bits !== 8) return none(`it has ${form.bits} bits and W8A8 has 8`, 'Quantize it with --bits 8.');
    if (!form.symmetric) return none('W8A8 kernels have no zero points', 'Quantize it without --asym.');
    if (module.granularity.kind !== 'channel' || module.groupIndex)
      return none('W8A8 kernels have one scale a row', 'Quantize it with --group-size channel.');
    if (!scaleDtype) return none(`its scales are ${module.scales.dtype}`, 'Quantize it with f16, bf16 or f32 scales.');
    return byteTensors(name, {
      shape: module.shape,
      codeDtype: 'I8',
      scaleShape: storedShape(module),
      scaleDtype,
    });
  },

  scheme: (module) => ({
    format: 'int-quantized',
    bits: 8,
    type: 'int',
    symmetric: true,
    ...storedStrategy(module),
    groupSize: null,
    dynamicActivations: true,
  }),

  async pack({ checkpoint, name, module }) {
    const codes = checkpoint.require(name, 'codes');
    const weight = allocate('i8', module.shape);
    const from = codes.bytes();
    const to = weight.bytes();
    if (quantType(module.type).signed) to.set(from);
    else for (let i = 0; i < from.length; i++) to[i] = (from[i] as number) ^ 0x80;
    codes.dispose();
    return new Map([
      [`${name}.weight`, weight],
      [`${name}.weight_scale`, storedScales(name, module, checkpoint.require(name, 'scales'))],
    ]);
  },
};

/** E4M3 bytes with one scale a row or a block; weights only, or FP8 activations too. */
export function floatQuantized(dynamicActivations: boolean): CompressedForm {
  return {
    format: 'float-quantized',

    fit(name, module) {
      if (module.type !== 'f8e4m3') return none(`it holds ${module.type} codes`, 'Quantize it with --dtype f8e4m3.');
      const problem = floatProblem(module);
      if (problem) return problem;
      const { stored, block } = module.scales;
      const scaleDtype = SCALE_DTYPES[module.scales.dtype];
      if (module.scales.global || !scaleDtype)
        return none(`FP8 has no ${module.scales.dtype} scales`, 'Quantize it with f16, bf16 or f32 scales.');
      if (module.granularity.kind !== 'channel' && block[0] === 1 && stored === undefined)
        return none('FP8 kernels have a scale a row or a square block', 'Quantize it with --group-size channel.');
      if (dynamicActivations && storedStrategy(module).strategy === 'block')
        return none('its scales cover blocks', 'Pack it for compressed-tensors, which leaves activations alone.');
      return byteTensors(name, {
        shape: module.shape,
        codeDtype: 'F8_E4M3',
        scaleShape: storedShape(module),
        scaleDtype,
      });
    },

    scheme: (module) => ({
      format: 'float-quantized',
      bits: 8,
      type: 'float',
      symmetric: true,
      ...storedStrategy(module),
      groupSize: null,
      dynamicActivations,
    }),

    pack: async ({ checkpoint, name, module }) =>
      new Map([
        [`${name}.weight`, checkpoint.weights.tensor(`${name}.codes`, 'f8_e4m3')],
        [`${name}.weight_scale`, storedScales(name, module, checkpoint.require(name, 'scales'))],
      ]),
  };
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
 * The scales as the file had them, of canonical ones [N, K/bk] that repeat them. Takes `scales`. Throws LPQ_PACK where they
 * do not.
 */
function storedScales(name: string, module: CanonicalModule, scales: Tensor): Tensor {
  const { stored, block } = module.scales;
  if (stored === undefined) return scales;
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
  scales.dispose();
  return own;
}

/** Two E2M1 codes a byte: NVFP4 and MXFP4. The canonical codes and scales are these very bytes. */
export function fp4(kind: 'nvfp4' | 'mxfp4'): CompressedForm {
  const format = `${kind}-pack-quantized` as const;
  const [group, dtype, global] =
    kind === 'nvfp4' ? ([16, 'f8_e4m3', true] as const) : ([32, 'f8_e8m0', false] as const);
  return {
    format,

    fit(name, module) {
      const remedy = 'Quantize it with --dtype nvfp4 or --dtype mxfp4.';
      if (module.type !== 'f4e2m1') return none(`it holds ${module.type} codes`, remedy);
      const problem = floatProblem(module);
      if (problem) return problem;
      const { granularity, scales } = module;
      const same = granularity.kind === 'group' && granularity.size === group && scales.block[0] === 1;
      if (!same || scales.dtype !== dtype || scales.global !== global)
        return none(
          `${scales.dtype} scales in groups of ${printGranularity(granularity)} make neither NVFP4 (f8_e4m3, 16) nor MXFP4 (f8_e8m0, 32)`,
          remedy,
        );
      return fp4Tensors(name, module.shape, kind);
    },

    scheme: () => ({
      format,
      bits: 4,
      type: 'float',
      symmetric: true,
      strategy: kind === 'nvfp4' ? 'tensor_group' : 'group',
      groupSize: group,
    }),

    async pack({ checkpoint, name, module }) {
      const out = new Map([
        [`${name}.weight_packed`, checkpoint.require(name, 'codes')],
        [`${name}.weight_scale`, checkpoint.weights.tensor(`${name}.scales`, kind === 'nvfp4' ? 'f8_e4m3' : 'u8')],
      ]);
      if (kind === 'nvfp4') {
        const scale = checkpoint.require(name, 'global_scale');
        const factor = typed<Float32Array>(scale)[0] as number;
        scale.dispose();
        // The format divides by its second level. One that was read from it goes back as it was.
        const { divisor } = module.scales;
        const own = divisor !== undefined && Math.fround(1 / divisor) === factor;
        out.set(`${name}.weight_global_scale`, fromTyped('f32', [1], Float32Array.of(own ? divisor : 1 / factor)));
      }
      return out;
    },
  };
}

/** What no form of floats has. */
function floatProblem(module: CanonicalModule): NoForm | undefined {
  if (module.zeros.kind !== 'none') return none('floats have no zero points', 'Quantize it anew.');
  if (module.sparsity !== 'none')
    return none('it is 2:4 sparse', 'Pack it with --target sparse_marlin, or quantize it without --sparsity.');
  if (module.groupIndex || module.permutation)
    return none('its columns are in another order', 'Quantize it with --order static, which keeps them in place.');
  return undefined;
}
