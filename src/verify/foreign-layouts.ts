import type { PackedModule } from '../../formats/artifact/schema.js';
import { groupCount } from '../core/granularity.js';
import { quantType } from '../core/quant-type.js';

/** Layouts of other programs whose codes are no dense bitstreams of integers. Tables of the verifier's own: spec 2 and 3. */
export const FOREIGN_LAYOUTS: readonly string[] = [
  'awq',
  'int-quantized',
  'float-quantized',
  'nvfp4-pack-quantized',
  'mxfp4-pack-quantized',
];

interface ForeignTensor {
  readonly suffix: string;
  readonly dtypes: readonly string[];
  readonly shape: readonly number[];
}

/** The tensors that a module of such a layout must have. */
export function foreignTensors(module: PackedModule): ForeignTensor[] {
  const [n, k] = module.shape;
  const groups = groupCount(module.granularity, k);
  const plain = ['F16', 'BF16', 'F32'];
  if (module.layout === 'awq')
    return [
      { suffix: 'qweight', dtypes: ['I32'], shape: [k, n / 8] },
      { suffix: 'qzeros', dtypes: ['I32'], shape: [groups, n / 8] },
      { suffix: 'scales', dtypes: ['F16'], shape: [groups, n] },
    ];
  if (module.layout === 'int-quantized' || module.layout === 'float-quantized')
    return [
      { suffix: 'weight', dtypes: [module.layout === 'int-quantized' ? 'I8' : 'F8_E4M3'], shape: [n, k] },
      { suffix: 'weight_scale', dtypes: plain, shape: sharedShape(module) },
    ];
  const nvfp4 = module.layout === 'nvfp4-pack-quantized';
  return [
    { suffix: 'weight_packed', dtypes: ['U8'], shape: [n, k / 2] },
    { suffix: 'weight_scale', dtypes: [nvfp4 ? 'F8_E4M3' : 'U8'], shape: [n, groups] },
    ...(nvfp4 ? [{ suffix: 'weight_global_scale', dtypes: ['F32'], shape: [1] }] : []),
  ];
}

/** Of the scales of layouts with one code a byte: rows (or whole blocks) by groups, or what `stored` says they cover. */
function sharedShape({ shape: [n, k], scales: { block, stored }, granularity }: PackedModule): number[] {
  if (stored === 'tensor') return [1];
  if (stored) return [Math.ceil(n / stored[0]), Math.ceil(k / stored[1])];
  return [n / block[0], groupCount(granularity, k)];
}

/** Contradictions of a module with such a layout. */
export function* foreignProblems(module: PackedModule): Generator<string> {
  const { layout, canonical, granularity, scales, zeros } = module;
  const type = quantType(module.type);
  const [n, k] = module.shape;
  for (const part of ['g_idx', 'permutation', 'mask'] as const)
    if (canonical[part] !== undefined) yield `layout ${layout} has no ${part}`;
  if (layout === 'awq') {
    if (type.kind !== 'int' || type.bits !== 4) yield `layout awq has no ${type.name} codes`;
    if (!['f16', 'bf16'].includes(scales.dtype) || scales.global || scales.block[0] !== 1)
      yield 'layout awq has plain f16 or bf16 scales for each row';
    if (zeros.kind === 'float') yield 'layout awq has no float zero points';
    const zero = constantZero(module);
    if (zero !== undefined && (!Number.isInteger(zero) || zero < 0 || zero > 15))
      yield `a zero point of ${zero} is outside the stored range`;
    if (n % 8 !== 0) yield `layout awq needs N % 8 = 0, not ${n}`;
    return;
  }
  const wanted = { 'int-quantized': ['i8', 'u8'], 'float-quantized': ['f8e4m3'] }[layout] ?? ['f4e2m1'];
  if (!wanted.includes(type.name)) yield `layout ${layout} has no ${type.name} codes`;
  if (layout === 'int-quantized') {
    if (constantZero(module) !== 128) yield `layout ${layout} has symmetric codes only`;
    if (granularity.kind !== 'channel' || scales.block[0] !== 1) yield `layout ${layout} has one scale a row`;
  } else if (zeros.kind !== 'none') yield 'floats have no zero points';
  const { stored, block } = scales;
  if (layout === 'float-quantized' && granularity.kind === 'group' && block[0] === 1 && stored === undefined)
    yield `layout ${layout} has scales of rows or of blocks`;
  if (layout.endsWith('t-quantized') && stored !== undefined) {
    if (block[0] !== 1) yield 'scales that blocks share are repeated for each row';
    else if (stored !== 'tensor' && stored[1] % block[1] !== 0 && stored[1] < k)
      yield `runs of ${block[1]} features cross the edges of blocks of ${stored[1]}`;
  }
  const fp4 = { 'nvfp4-pack-quantized': [16, 'f8_e4m3', true], 'mxfp4-pack-quantized': [32, 'f8_e8m0', false] }[layout];
  if (fp4) {
    const [group, dtype, global] = fp4;
    if (granularity.kind !== 'group' || granularity.size !== group || k % 2 !== 0)
      yield `layout ${layout} has groups of ${group}`;
    if (scales.dtype !== dtype || scales.global !== global || scales.block[0] !== 1)
      yield `layout ${layout} has ${dtype} scales`;
  } else if (scales.global || scales.dtype.startsWith('f8')) yield `layout ${layout} has plain scales of one level`;
}

/** The one zero point as an offset one; undefined where there is one a group. */
export function constantZero({ type: name, zeros }: PackedModule): number | undefined {
  const type = quantType(name);
  const offset = type.kind === 'int' && type.signed ? 2 ** (type.bits - 1) : 0;
  return zeros.kind === 'none' ? offset : zeros.kind === 'const' ? zeros.value + offset : undefined;
}
