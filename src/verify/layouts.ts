import type { PackedModule } from '../../formats/artifact/schema.js';
import type { ScaleDtype } from '../../formats/canonical/schema.js';
import { groupCount, groupLength } from '../core/granularity.js';
import { quantType } from '../core/quant-type.js';
import { FOREIGN_LAYOUTS, foreignProblems, foreignTensors } from './foreign-layouts.js';
import { partTensors, rankPrefixes, TILE_LAYOUTS, tileProblems } from './tile-layouts.js';

/** A tensor that a packed module must have; any dtype of the list will do. */
export interface Expected {
  readonly name: string;
  readonly dtypes: readonly string[];
  readonly shape: readonly number[];
}

/** A module as its layout sees it, or why the layout cannot hold it. */
export interface Expectation {
  readonly tensors: readonly Expected[];
  /** Clauses; empty when the layout can hold the module. */
  readonly problems: readonly string[];
}

const SCALE_STORAGE: Readonly<Record<ScaleDtype, string>> = {
  f16: 'F16',
  bf16: 'BF16',
  f32: 'F32',
  f8_e8m0: 'U8',
  f8_e4m3: 'F8_E4M3',
};
const ZERO_STORAGE = { u8: 'U8', i16: 'I16', f16: 'F16', f32: 'F32' } as const;

export const PACKED_LAYOUTS: readonly string[] = [
  ...TILE_LAYOUTS,
  'gptq',
  'gptq_v2',
  'compressed-tensors',
  ...FOREIGN_LAYOUTS,
];

/** What stored codes are: canonical code exclusive-or `flip`; the zero point as stored; undefined for one a group. */
export function storedForm(module: PackedModule): { bits: number; flip: number; zero: number | undefined } {
  const type = quantType(module.type);
  const bits = type.bits;
  const flip = type.kind === 'int' && type.signed ? 2 ** (bits - 1) : 0;
  const { zeros } = module;
  const zero = zeros.kind === 'const' ? zeros.value : zeros.kind === 'none' ? 0 : undefined;
  return { bits, flip, zero: zero === undefined ? undefined : zero + flip };
}

/** Codes of a word of compressed-tensors before 0.13, whose top bits are 0. */
export function valuesAWord(bits: number): number {
  return Math.trunc(32 / bits);
}

/** Whether the one zero point of all groups is the middle of the stored range. */
export function isSymmetric(module: PackedModule): boolean {
  const { bits, zero } = storedForm(module);
  return zero === 2 ** (bits - 1);
}

/** The tensors that `name` must have, and nothing else. Tables of the verifier's own: spec sections 1 and 3; tile-layouts.ts. */
export function expectation(name: string, module: PackedModule): Expectation {
  const problems = [...soundness(module)];
  if (problems.length > 0) return { tensors: [], problems };
  if (module.layout === 'carried') return { tensors: carried(name, module), problems };
  if (module.layout === 'dense') {
    const shape = module.transposed ? [...module.shape].reverse() : module.shape;
    return { tensors: [{ name: `${name}.weight`, dtypes: ['F32', 'F16', 'BF16'], shape }], problems };
  }
  const tiled = TILE_LAYOUTS.includes(module.layout);
  const foreign = FOREIGN_LAYOUTS.includes(module.layout);
  problems.push(...(tiled ? tileProblems : foreign ? foreignProblems : packedProblems)(module));
  if (problems.length > 0) return { tensors: [], problems };
  if (foreign)
    return {
      tensors: foreignTensors(module).map(({ suffix, ...rest }) => ({ name: `${name}.${suffix}`, ...rest })),
      problems,
    };
  if (!tiled) return { tensors: packed(name, module), problems };
  const tensors = rankPrefixes(name, module).flatMap((prefix) =>
    partTensors(module).map(({ suffix, dtypes, shape }) => ({ name: `${prefix}.${suffix}`, dtypes, shape })),
  );
  return { tensors, problems };
}

function packed(name: string, module: PackedModule): Expected[] {
  const [n, k] = module.shape;
  const { bits } = quantType(module.type);
  const groups = groupCount(module.granularity, k);
  const one = (suffix: string, shape: readonly number[], ...dtypes: string[]): Expected => ({
    name: `${name}.${suffix}`,
    dtypes,
    shape,
  });
  const words = (count: number): number =>
    module.packing === 'whole' ? Math.ceil(count / valuesAWord(bits)) : Math.ceil((count * bits) / 32);
  if (module.layout === 'compressed-tensors')
    return [
      one('weight_packed', [n, words(k)], 'I32'),
      one('weight_scale', [n, groups], 'F16', 'BF16', 'F32'),
      one('weight_shape', [2], 'I64'),
      ...(isSymmetric(module) ? [] : [one('weight_zero_point', [words(n), groups], 'I32')]),
      ...(module.canonical.g_idx ? [one('weight_g_idx', [k], 'I32')] : []),
    ];
  return [
    one('qweight', [words(k), n], 'I32'),
    one('qzeros', [groups, words(n)], 'I32'),
    one('scales', [groups, n], 'F16'),
    one('g_idx', [k], 'I32'),
  ];
}

function carried(name: string, module: PackedModule): Expected[] {
  const [n, k] = module.shape;
  const [blockN, blockK] = module.scales.block;
  const perScale = [n / blockN, k / blockK];
  const list: Expected[] = [
    { name: `${name}.codes`, dtypes: ['U8'], shape: [n, Math.ceil((k * quantType(module.type).bits) / 8)] },
    { name: `${name}.scales`, dtypes: [SCALE_STORAGE[module.scales.dtype]], shape: perScale },
  ];
  if (module.zeros.kind === 'int' || module.zeros.kind === 'float')
    list.push({ name: `${name}.zeros`, dtypes: [ZERO_STORAGE[module.zeros.dtype]], shape: perScale });
  if (module.scales.global) list.push({ name: `${name}.global_scale`, dtypes: ['F32'], shape: [1] });
  return [...list, ...extra(name, module, ['g_idx', 'permutation', 'mask'])];
}

function extra(name: string, module: PackedModule, parts: readonly ('g_idx' | 'permutation' | 'mask')[]): Expected[] {
  const [n, k] = module.shape;
  return parts
    .filter((part) => module.canonical[part] !== undefined)
    .map((part) => ({
      name: `${name}.${part}`,
      dtypes: [part === 'mask' ? 'U8' : 'I32'],
      shape: part === 'mask' ? [n, Math.ceil(k / 8)] : [k],
    }));
}

/** Contradictions inside the manifest's entry, whatever the layout. */
function* soundness(module: PackedModule): Generator<string> {
  const [n, k] = module.shape;
  const [blockN, blockK] = module.scales.block;
  try {
    quantType(module.type);
  } catch {
    yield `'${module.type}' is not a quantized type`;
    return;
  }
  if (![...PACKED_LAYOUTS, 'carried', 'dense'].includes(module.layout)) yield `'${module.layout}' is not a layout`;
  if (k % groupLength(module.granularity, k) !== 0) yield `its groups do not divide K = ${k}`;
  else if (blockK !== groupLength(module.granularity, k) || n % blockN !== 0)
    yield `scale blocks of [${blockN}, ${blockK}] contradict the granularity or N = ${n}`;
  const zeros = module.zeros.kind === 'int' || module.zeros.kind === 'float';
  if (zeros !== (module.canonical.zeros !== undefined)) yield 'zeros and the canonical hash of zeros contradict';
  if (module.scales.global !== (module.canonical.global_scale !== undefined))
    yield 'scales.global and the canonical hash of global_scale contradict';
  if (module.layout !== 'dense' && module.canonical.weight !== undefined) yield 'only a dense module has a weight hash';
  if (module.packing !== undefined && module.layout !== 'compressed-tensors')
    yield `layout ${module.layout} has one packing, not words of ${module.packing} codes`;
  const { activations } = module;
  if (activations && module.layout !== 'comet' && module.layout !== 'carried')
    yield `layout ${module.layout} is for activations of 16 bits`;
  if (activations && (activations.bits.length !== k / 128 || activations.clip.length !== k / 128))
    yield `${activations.bits.length} blocks of activations are not K / 128 = ${k / 128}`;
  if (!TILE_LAYOUTS.includes(module.layout)) {
    if (`${module.padded}` !== `${[n, k]}`)
      yield `a padded shape of [${module.padded}] does not suit [${n}, ${k}] in layout ${module.layout}`;
    if (module.ranks) yield `layout ${module.layout} has no tensors for each rank`;
  }
}

function* packedProblems(module: PackedModule): Generator<string> {
  const { layout } = module;
  const type = quantType(module.type);
  const { bits, zero } = storedForm(module);
  if (type.kind !== 'int') yield `layout ${layout} holds integers, not ${type.name}`;
  if (module.zeros.kind === 'float') yield `layout ${layout} has no float zero points`;
  if (module.scales.global) yield `layout ${layout} has no global scale`;
  if (module.scales.block[0] !== 1) yield `layout ${layout} has no scales that several rows share`;
  if (module.scales.dtype.startsWith('f8')) yield `layout ${layout} has no ${module.scales.dtype} scales`;
  if (module.canonical.mask !== undefined) yield `layout ${layout} has no 2:4 mask`;
  if (zero !== undefined && (!Number.isInteger(zero) || zero < 0 || zero >= 2 ** bits))
    yield `a zero point of ${zero} is outside the stored range`;
  if (module.canonical.permutation !== undefined) yield `layout ${layout} has no permutation`;
  if (layout.startsWith('gptq') && ![2, 3, 4, 8].includes(bits)) yield `layout ${layout} has no ${bits}-bit codes`;
}
