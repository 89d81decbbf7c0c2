import type { PackedModule } from '../../formats/artifact/schema.js';
import { groupCount } from '../core/granularity.js';
import { quantType } from '../core/quant-type.js';

/** Layouts of fragments, whose tensors a module has once, or once for each rank that shares it. */
export const TILE_LAYOUTS: readonly string[] = [
  'marlin',
  'sparse_marlin',
  'turbomind',
  'turbomind_sm70',
  'tilus',
  'comet',
];

export interface PartTensor {
  readonly suffix: string;
  readonly dtypes: readonly string[];
  readonly shape: readonly number[];
}

/** Stored code = canonical code exclusive-or flip; its padding; the zero point as stored, undefined for one a group. */
export interface TileCodes {
  readonly bits: number;
  readonly flip: number;
  readonly pad: number;
  readonly zero: number | undefined;
  /** As native/cpu/verify/tile_forms.h names it. */
  readonly form: string;
}

/** How the scales of a part are stored. zeros: the elements of a tensor of their own, or fused: halves {s, -z s}. */
export interface TileScales {
  readonly form: string;
  readonly dtype: 'F16' | 'BF16' | 'U8' | 'F32';
  readonly groups: number;
  readonly padded: number;
  readonly zeros: 'none' | 'U8' | 'F16' | 'I32' | 'fused';
}

/** The prefixes of a module's tensors: one for each rank. */
export function rankPrefixes(name: string, { ranks }: PackedModule): string[] {
  return ranks ? Array.from({ length: ranks.count }, (_, rank) => `${name}.rank${rank}`) : [name];
}

/** [N, K] of each rank's part. */
export function partShape({ shape: [n, k], ranks }: PackedModule): [number, number] {
  if (!ranks) return [n, k];
  return ranks.split === 'n' ? [n / ranks.count, k] : [n, k / ranks.count];
}

/** Groups along K of a part: the groups of K that are its own, or the one of a whole row. */
function partGroups(module: PackedModule): number {
  const [, k] = partShape(module);
  return module.granularity.kind === 'channel' ? 1 : groupCount(module.granularity, k);
}

/** Only the layouts for kernels of integers store two's complement as unsigned; tilus and comet keep bit patterns. */
export function tileCodes(name: string, module: PackedModule): TileCodes {
  const { bits, kind, signed } = quantType(module.type);
  const integer = module.layout !== 'tilus' && module.layout !== 'comet' && kind === 'int';
  const flip = integer && signed ? 2 ** (bits - 1) : 0;
  const { zeros } = module;
  const zero = zeros.kind === 'const' ? zeros.value : zeros.kind === 'none' ? 0 : undefined;
  const stored = zero === undefined ? undefined : zero + flip;
  const middle = stored === 2 ** (bits - 1);
  const form =
    module.layout !== 'turbomind'
      ? module.layout
      : kind === 'float'
        ? 'turbomind_a'
        : /(^|\.)experts\.\d+\./.test(name)
          ? 'turbomind_b_experts'
          : 'turbomind_b';
  return { bits, flip, zero: stored, form, pad: codeTensor(module.layout) === 'B' && middle ? 2 ** (bits - 1) : 0 };
}

export function tileScales(module: PackedModule): TileScales {
  const type = quantType(module.type);
  const groups = partGroups(module);
  const { dtype } = module.scales;
  const same = { groups, padded: groups };
  if (module.layout === 'sparse_marlin') {
    const padded = module.granularity.kind === 'channel' ? 1 : groupCount(module.granularity, module.padded[1]);
    return { form: 'sparse_marlin_scales', dtype: 'F16', groups, padded, zeros: 'none' };
  }
  if (module.layout === 'marlin') {
    const padded = module.granularity.kind === 'channel' ? 1 : groupCount(module.granularity, module.padded[1]);
    const zeros = tileCodes('', module).zero === 2 ** (type.bits - 1) ? 'none' : 'I32';
    return { form: 'marlin_scales', dtype: 'F16', groups, padded, zeros };
  }
  if (module.layout === 'tilus') {
    const { zeros } = module;
    const stored =
      zeros.kind === 'int' ? (zeros.dtype === 'u8' ? 'U8' : 'F16') : zeros.kind === 'float' ? 'F16' : 'none';
    return { form: 'tilus', dtype: dtype === 'f16' ? 'F16' : 'BF16', ...same, zeros: stored };
  }
  const form = module.layout;
  if (form === 'comet') return { form, dtype: 'F32', ...same, zeros: 'none' };
  if (type.kind === 'int') return { form, dtype: 'F16', ...same, zeros: 'fused' };
  return { form, dtype: dtype === 'f8_e8m0' ? 'U8' : dtype === 'f16' ? 'F16' : 'BF16', ...same, zeros: 'none' };
}

/** The tensors of each part. Tables of the verifier's own. */
export function partTensors(module: PackedModule): PartTensor[] {
  const [np, kp] = module.padded;
  const { bits } = quantType(module.type);
  const scales = tileScales(module);
  const permutation = module.canonical.permutation !== undefined || module.canonical.g_idx !== undefined;
  const ordered: PartTensor[] = permutation
    ? [{ suffix: 'permutation', dtypes: ['I32'], shape: [partShape(module)[1]] }]
    : [];
  if (module.layout === 'marlin')
    return [
      { suffix: 'B', dtypes: ['I32'], shape: [kp / 16, (np * bits) / 2] },
      { suffix: 's', dtypes: ['F16'], shape: [scales.padded, np] },
      ...(scales.zeros === 'none' ? [] : [{ suffix: 'zp', dtypes: ['I32'], shape: [scales.padded, (np * bits) / 32] }]),
      ...ordered,
    ];
  if (module.layout === 'sparse_marlin')
    return [
      { suffix: 'B', dtypes: ['I32'], shape: [kp / 32, (np * bits) / 2] },
      { suffix: 'meta', dtypes: ['I16'], shape: [kp / 32, 2 * np] },
      { suffix: 's', dtypes: ['F16'], shape: [scales.padded, np] },
    ];
  if (module.layout === 'tilus') {
    const shape = [np / 32, scales.groups, 32];
    return [
      { suffix: 'packed', dtypes: ['U8'], shape: [np / 32, kp / 128, 512 * bits] },
      { suffix: 'scales', dtypes: [scales.dtype], shape },
      ...(scales.zeros === 'none' ? [] : [{ suffix: 'zeros', dtypes: [scales.zeros], shape }]),
      ...ordered,
    ];
  }
  if (module.layout === 'comet')
    return [
      { suffix: 'packed', dtypes: ['U8'], shape: [np / 16, kp / 128, 1024] },
      { suffix: 'scales', dtypes: ['F32'], shape: [kp / 128, np] },
      { suffix: 'bits', dtypes: ['U8'], shape: [kp / 128] },
      { suffix: 'clip', dtypes: ['F32'], shape: [kp / 128] },
      { suffix: 'blocks', dtypes: ['I32'], shape: [kp / 128] },
      ...ordered,
    ];
  return [
    { suffix: 'packed', dtypes: ['I32'], shape: [(np * kp * bits) / 32] },
    scales.zeros === 'fused'
      ? { suffix: 'scales_zeros', dtypes: ['F16'], shape: [scales.groups, np, 2] }
      : { suffix: 'scales', dtypes: [scales.dtype], shape: [scales.groups, np] },
  ];
}

/** The last part of the name of the tensor that holds the codes. */
export function codeTensor(layout: string): 'B' | 'packed' {
  return layout === 'marlin' || layout === 'sparse_marlin' ? 'B' : 'packed';
}

/** What the kernel of 2:4 weights asks for besides. */
function* sparseProblems(module: PackedModule): Generator<string> {
  const { canonical, granularity } = module;
  const { bits } = quantType(module.type);
  if (canonical.mask === undefined) yield 'layout sparse_marlin needs a 2:4 mask';
  if (partShape(module)[1] % 4 !== 0) yield 'layout sparse_marlin needs fours of input features';
  if (granularity.kind === 'group' && granularity.size !== 128)
    yield `layout sparse_marlin has no groups of ${granularity.size}`;
  if (canonical.g_idx !== undefined) yield 'layout sparse_marlin has no order of columns';
  if (tileCodes('', module).zero !== 2 ** (bits - 1)) yield 'layout sparse_marlin has no zero points';
}

/** What the kernel of codes with codes asks for besides. */
function* cometProblems(module: PackedModule): Generator<string> {
  const { activations, canonical, granularity, scales, type, zeros } = module;
  const [n, k] = partShape(module);
  if (type !== 'i4') yield `layout comet has no ${type} codes`;
  if (zeros.kind !== 'none') yield 'layout comet has no zero points';
  if (granularity.kind !== 'group' || granularity.size !== 128) yield 'layout comet has groups of 128 alone';
  if (!['f16', 'bf16', 'f32'].includes(scales.dtype)) yield `layout comet has no ${scales.dtype} scales`;
  if (canonical.g_idx !== undefined) yield 'layout comet has no groups that are named';
  if (module.padded[1] !== k || module.padded[0] >= n + 16) yield 'layout comet pads N to sixteens, and K not at all';
  if (!activations) yield 'layout comet needs the precisions of activations';
}

/** Contradictions of a module with its layout of tiles. */
export function* tileProblems(module: PackedModule): Generator<string> {
  const { layout, canonical, granularity, ranks, shape } = module;
  const type = quantType(module.type);
  const { bits } = type;
  if (module.scales.global) yield `layout ${layout} has no global scale`;
  if (module.scales.block[0] !== 1) yield `layout ${layout} has no scales that several rows share`;
  const sparse = layout === 'sparse_marlin';
  if (canonical.mask !== undefined && !sparse) yield `layout ${layout} has no 2:4 mask`;
  if (sparse) yield* sparseProblems(module);
  if (layout === 'comet') yield* cometProblems(module);
  if (ranks) {
    const [whole, group] =
      ranks.split === 'n' ? [shape[0], 1] : [shape[1], granularity.kind === 'group' ? granularity.size : 1];
    if (whole % (ranks.count * group) !== 0) yield `${ranks.count} ranks cannot share its ${whole} features`;
    else if (ranks.split === 'k' && (canonical.g_idx !== undefined || canonical.permutation !== undefined))
      yield 'ranks cannot share input features that are reordered';
    else if (ranks.split === 'k' && ((whole / ranks.count) * bits) % 8 !== 0)
      yield 'the codes of a rank are no whole bytes';
    else if (ranks.split === 'k' && sparse && (whole / ranks.count) % 8 !== 0)
      yield 'the mask of a rank is no whole bytes';
  }
  const [n, k] = partShape(module);
  if (module.padded[0] < n || module.padded[1] < k)
    yield `a padded shape of [${module.padded}] is smaller than [${[n, k]}]`;
  const steps = {
    marlin: [256, 128],
    sparse_marlin: [256, 128],
    tilus: [32, 128],
    turbomind: [64, 32],
    turbomind_sm70: [64, 32],
    comet: [16, 128],
  } as const;
  const [stepN, stepK] = steps[layout as keyof typeof steps];
  if (module.padded[0] % stepN !== 0 || module.padded[1] % stepK !== 0)
    yield `layout ${layout} needs N % ${stepN} = 0 and K % ${stepK} = 0, not [${module.padded}]`;
  if (granularity.kind === 'group' ? ![32, 64, 128].includes(granularity.size) : layout.startsWith('turbomind'))
    yield `layout ${layout} has no groups of ${granularity.kind === 'group' ? granularity.size : 'whole rows'}`;
  if (canonical.g_idx !== undefined && canonical.permutation !== undefined)
    yield `layout ${layout} has one order of columns, not g_idx and a permutation`;
  if (layout === 'comet') return;
  const { zero } = tileCodes('', module);
  const whole = zero === undefined || (Number.isInteger(zero) && zero >= 0 && zero < 2 ** bits);
  if (layout === 'tilus') {
    if (!['f16', 'bf16', 'f8_e8m0'].includes(module.scales.dtype))
      yield `layout tilus has no ${module.scales.dtype} scales`;
    if (module.zeros.kind === 'float' && module.zeros.dtype !== 'f16') yield 'layout tilus has f16 zero points only';
    return;
  }
  if (type.kind === 'int') {
    if (bits !== 4 && bits !== 8) yield `layout ${layout} has no ${bits}-bit codes`;
    if (module.zeros.kind === 'float') yield `layout ${layout} has no float zero points`;
    if (module.scales.dtype !== 'f16') yield `layout ${layout} has f16 scales only, not ${module.scales.dtype}`;
    if (!whole) yield `a zero point of ${zero} is outside the stored range`;
  } else if (codeTensor(layout) === 'B') yield `layout ${layout} holds integers, not ${type.name}`;
  else {
    if (type.name !== 'f4e2m1' && type.name !== 'f8e4m3') yield `layout ${layout} has no ${type.name} codes`;
    const dtypes = bits === 4 ? ['f8_e8m0'] : ['f16', 'bf16'];
    if (!dtypes.includes(module.scales.dtype))
      yield `layout ${layout} has ${dtypes.join(' or ')} scales for ${type.name}`;
    if (zero !== 0) yield 'floats have no zero points';
  }
  if (layout !== 'marlin' && (canonical.g_idx !== undefined || canonical.permutation !== undefined))
    yield `layout ${layout} has no order of columns`;
  if (
    layout === 'marlin' &&
    tileScales(module).zeros !== 'none' &&
    granularity.kind === 'channel' &&
    module.padded[1] !== k
  )
    yield 'layout marlin pads K of whole channels only where the zero point is the middle code';
}
