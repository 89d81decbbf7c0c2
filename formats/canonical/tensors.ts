import { groupCount } from '../../src/core/granularity.js';
import { INPUT_TYPES } from '../../src/core/input-type.js';
import { quantType } from '../../src/core/quant-type.js';
import type { SafetensorsDtype } from '../safetensors/dtypes.js';
import type { TensorSpec } from '../safetensors/header.js';
import type { CanonicalModule, ScaleDtype } from './schema.js';

/** The last part of a module tensor's name. */
export type Part = 'codes' | 'scales' | 'zeros' | 'global_scale' | 'g_idx' | 'permutation' | 'mask';

export const PARTS: readonly Part[] = ['codes', 'scales', 'zeros', 'global_scale', 'g_idx', 'permutation', 'mask'];

/** What decides which tensors a module has; everything of its manifest entry that is known before quantizing. */
export type ModuleDeclaration = Omit<CanonicalModule, 'sha256' | 'quality'>;

/** E8M0 is stored as U8, for the torch versions that read F8_E8M0 are few. */
const SCALE_STORAGE: Readonly<Record<ScaleDtype, SafetensorsDtype>> = {
  f16: 'F16',
  bf16: 'BF16',
  f32: 'F32',
  f8_e8m0: 'U8',
  f8_e4m3: 'F8_E4M3',
};

const ZERO_STORAGE = { u8: 'U8', i16: 'I16', f16: 'F16', f32: 'F32' } as const;

/** [N/blockN, groups]: the shape of scales and zeros. With g_idx the groups need not be runs, so granularity counts them. */
export function scaleShape(module: ModuleDeclaration): [number, number] {
  const [n, k] = module.shape;
  const [blockN, blockK] = module.scales.block;
  return [Math.ceil(n / blockN), Math.ceil(k / blockK)];
}

/** The tensors that a module must have, by part, in the order of PARTS: the whole storage format in one table. */
export function moduleTensors(name: string, module: ModuleDeclaration): Map<Part, TensorSpec> {
  const [n, k] = module.shape;
  const { bits } = quantType(module.type);
  const list: [Part, SafetensorsDtype, number[]][] = [
    ['codes', 'U8', [n, Math.ceil((k * bits) / 8)]],
    ['scales', SCALE_STORAGE[module.scales.dtype], scaleShape(module)],
  ];
  if (module.zeros.kind === 'int' || module.zeros.kind === 'float')
    list.push(['zeros', ZERO_STORAGE[module.zeros.dtype], scaleShape(module)]);
  if (module.scales.global) list.push(['global_scale', 'F32', [1]]);
  if (module.groupIndex) list.push(['g_idx', 'I32', [k]]);
  if (module.permutation) list.push(['permutation', 'I32', [k]]);
  if (module.sparsity === '2:4') list.push(['mask', 'U8', [n, Math.ceil(k / 8)]]);
  return new Map(list.map(([part, dtype, shape]) => [part, { name: `${name}.${part}`, dtype, shape }]));
}

/** What contradicts itself in a declaration, as a path inside it and a sentence; undefined when it is sound. */
export function declarationProblem(module: ModuleDeclaration): { path: string; what: string } | undefined {
  const [n, k] = module.shape;
  const [blockN, blockK] = module.scales.block;
  try {
    quantType(module.type);
  } catch {
    return { path: 'type', what: `'${module.type}' is not a quantized type` };
  }
  const groups = groupCount(module.granularity, k);
  if (!Number.isInteger(groups)) return { path: 'granularity.size', what: `it does not divide K = ${k}` };
  if (k % blockK !== 0 || n % blockN !== 0)
    return { path: 'scales.block', what: `[${blockN}, ${blockK}] does not divide the shape [${n}, ${k}]` };
  if (k / blockK !== groups)
    return {
      path: 'scales.block',
      what: `blocks of ${blockK} make ${k / blockK} groups, the granularity says ${groups}`,
    };
  const { activations } = module;
  if (activations) {
    const type = quantType(module.type);
    const { bits, clip } = activations;
    if (k % 128 !== 0 || bits.length !== k / 128 || clip.length !== k / 128)
      return { path: 'activations', what: `${bits.length} blocks of 128 channels, not K / 128 = ${k / 128}` };
    if (type.kind !== 'int' || !type.signed || module.zeros.kind !== 'none' || module.scales.global)
      return { path: 'activations', what: `they need symmetric integer weights, not ${module.type}` };
    if (blockN !== 1 || blockK !== 128 || module.groupIndex)
      return {
        path: 'activations',
        what: `they need weight groups of 128 columns, not blocks of [${blockN}, ${blockK}]`,
      };
  }
  const { inputType, inputMost } = module;
  if (inputType) {
    const { block, calibrated } = INPUT_TYPES[inputType];
    if (k % block !== 0) return { path: 'inputType', what: `blocks of ${block} channels do not divide K = ${k}` };
    if (calibrated && inputMost === undefined) return { path: 'inputType', what: `${inputType} needs inputMost` };
    if (activations) return { path: 'inputType', what: 'it does not go with activations' };
  }
  const { twoLevel, dtype, global } = module.scales;
  if (twoLevel && (module.type !== 'i4' || module.zeros.kind !== 'none' || module.sparsity !== 'none'))
    return { path: 'scales.twoLevel', what: 'it needs dense codes of i4 without zero points' };
  if (twoLevel && (blockN !== 1 || blockK !== 128 || global || (dtype !== 'f16' && dtype !== 'f32')))
    return { path: 'scales.twoLevel', what: 'it needs one f16 or f32 scale for each row and 128 columns' };
  if (module.sparsity === '2:4' && k % 4 !== 0)
    return { path: 'sparsity', what: `2:4 needs K divisible by 4, not ${k}` };
  return undefined;
}
