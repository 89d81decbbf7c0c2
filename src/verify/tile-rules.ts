import type { PackedModule } from '../../formats/artifact/schema.js';
import type { TensorReader } from '../../formats/safetensors/read.js';
import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { groupCount } from '../core/granularity.js';
import { quantType } from '../core/quant-type.js';
import type { Decoded, DecodedPart } from './decode.js';
import type { ReadScales } from './decode-scales.js';
import type { ProgramOf } from './emulate-lanes.js';
import { type Emulator, isOutside, type KernelRules, type LayoutTensor } from './layout.js';
import type { CodesShape, Pending } from './native.js';

/** A rank's part of a module, or the whole, while it is decoded. */
export interface TilePart {
  readonly rt: NativeRuntime;
  readonly weights: TensorReader;
  readonly name: string;
  readonly prefix: string;
  readonly module: PackedModule;
  readonly decoded: Decoded;
}

/** What tells one layout of tiles from another. */
export interface TileRules {
  readonly name: string;
  /** N and K of a part are multiples of these. */
  readonly steps: readonly [number, number];
  /** The last part of the name of the tensor that holds the codes. */
  readonly codes: string;
  /** Two's complement is stored as unsigned codes. */
  readonly unsigned?: boolean;
  /** Padding holds the middle code where that is the zero point. */
  readonly middle?: boolean;
  /** Whole rows may share a scale. */
  readonly rows: boolean;
  /** The weight is 2:4 sparse. */
  readonly sparse?: boolean;
  readonly activations?: boolean;
  /** The form of a module, as native/cpu/verify/tile_forms.h names it. */
  form(name: string, module: PackedModule): string;
  scales(module: PackedModule): TileScales;
  tensors(module: PackedModule): LayoutTensor[];
  /** What its kernel asks for beside what all tiles do. */
  problems(module: PackedModule): Iterable<string>;
  /** Enqueues reading `packed`, where codes are not all that is to be read; `take` is called once they are there. Default: decodeTiles. */
  codesOf?(
    part: TilePart,
    packed: Tensor,
    shape: CodesShape & { readonly np: number; readonly kp: number; readonly pad: number },
  ): { readonly codes: Pending; take(parts: Map<DecodedPart, Tensor>): void };
  /** Takes the scales that were read, where they are not canonical ones; default: setScales and setZeros (decode-scales.ts). */
  takeScales?(part: TilePart, read: ReadScales, parts: Map<DecodedPart, Tensor>): Promise<void>;
  /** The program of its kernel (share/verify), or an emulator of its own. */
  readonly emulator: ProgramOf | Emulator;
  readonly kernel?: KernelRules;
}

/** Stored code = canonical code exclusive-or flip; its padding; the zero point as stored, undefined for one a group. */
export interface TileCodes {
  readonly bits: number;
  readonly flip: number;
  readonly pad: number;
  readonly zero: number | undefined;
}

/** How the scales of a part are stored. */
export interface TileScales {
  /** The last part of their tensor's name. */
  readonly name: string;
  readonly form: string;
  readonly dtype: 'F16' | 'BF16' | 'U8' | 'I8' | 'F32';
  readonly groups: number;
  readonly padded: number;
  /** Halves {s, -z s} in the one tensor. */
  readonly fused?: boolean;
  /** Zero points in a tensor of their own. */
  readonly zeros?: { readonly name: string; readonly form: string; readonly dtype: 'U8' | 'F16' | 'I32' };
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

/** Groups along K of a part: the groups of K that are its own, or the one of a whole row. `k`: with padding, where they have it. */
export function partGroups(module: PackedModule, k = partShape(module)[1]): number {
  return module.granularity.kind === 'channel' ? 1 : groupCount(module.granularity, k);
}

/** Where an order of columns is stored. */
export function orderTensor(module: PackedModule): LayoutTensor[] {
  const { permutation, g_idx } = module.canonical;
  if (permutation === undefined && g_idx === undefined) return [];
  return [{ suffix: 'permutation', dtypes: ['I32'], shape: [partShape(module)[1]] }];
}

export function tileCodes(rules: Pick<TileRules, 'unsigned' | 'middle'>, module: PackedModule): TileCodes {
  const { bits, kind, signed } = quantType(module.type);
  const flip = rules.unsigned && kind === 'int' && signed ? 2 ** (bits - 1) : 0;
  const { zeros } = module;
  const zero = zeros.kind === 'const' ? zeros.value : zeros.kind === 'none' ? 0 : undefined;
  const stored = zero === undefined ? undefined : zero + flip;
  const middle = stored === 2 ** (bits - 1);
  return { bits, flip, zero: stored, pad: rules.middle && middle ? 2 ** (bits - 1) : 0 };
}

/** Contradictions of a module with its layout of tiles. */
export function* tileProblems(rules: TileRules, module: PackedModule): Generator<string> {
  const { name } = rules;
  const { canonical, granularity } = module;
  if (module.scales.global) yield `layout ${name} has no global scale`;
  if (module.scales.block[0] !== 1) yield `layout ${name} has no scales that several rows share`;
  if (canonical.mask !== undefined && !rules.sparse) yield `layout ${name} has no 2:4 mask`;
  yield* rankProblems(rules, module);
  const [n, k] = partShape(module);
  if (module.padded[0] < n || module.padded[1] < k)
    yield `a padded shape of [${module.padded}] is smaller than [${[n, k]}]`;
  const [stepN, stepK] = rules.steps;
  if (module.padded[0] % stepN !== 0 || module.padded[1] % stepK !== 0)
    yield `layout ${name} needs N % ${stepN} = 0 and K % ${stepK} = 0, not [${module.padded}]`;
  if (granularity.kind === 'group' ? ![32, 64, 128].includes(granularity.size) : !rules.rows)
    yield `layout ${name} has no groups of ${granularity.kind === 'group' ? granularity.size : 'whole rows'}`;
  if (canonical.g_idx !== undefined && canonical.permutation !== undefined)
    yield `layout ${name} has one order of columns, not g_idx and a permutation`;
  yield* rules.problems(module);
}

function* rankProblems({ sparse }: TileRules, { canonical, granularity, ranks, shape, type }: PackedModule) {
  if (!ranks) return;
  const { bits } = quantType(type);
  const [whole, group] =
    ranks.split === 'n' ? [shape[0], 1] : [shape[1], granularity.kind === 'group' ? granularity.size : 1];
  if (whole % (ranks.count * group) !== 0) yield `${ranks.count} ranks cannot share its ${whole} features`;
  else if (ranks.split === 'k' && (canonical.g_idx !== undefined || canonical.permutation !== undefined))
    yield 'ranks cannot share input features that are reordered';
  else if (ranks.split === 'k' && ((whole / ranks.count) * bits) % 8 !== 0)
    yield 'the codes of a rank do not fill whole bytes';
  else if (ranks.split === 'k' && sparse && (whole / ranks.count) % 8 !== 0)
    yield 'the mask of a rank does not fill whole bytes';
}

/** What kernels of integers of 4 and 8 bits ask for, beside or instead of floats. */
export function* integerProblems(rules: TileRules, module: PackedModule): Generator<string> {
  const { bits } = quantType(module.type);
  if (bits !== 4 && bits !== 8) yield `layout ${rules.name} has no ${bits}-bit codes`;
  if (module.zeros.kind === 'float') yield `layout ${rules.name} has no float zero points`;
  if (module.scales.dtype !== 'f16') yield `layout ${rules.name} has f16 scales only, not ${module.scales.dtype}`;
  const { zero } = tileCodes(rules, module);
  if (isOutside(zero, bits)) yield `a zero point of ${zero} is outside the stored range`;
}

/** Of kernels that read columns in place. */
export function* orderProblems({ name }: TileRules, { canonical }: PackedModule): Generator<string> {
  if (canonical.g_idx !== undefined || canonical.permutation !== undefined)
    yield `layout ${name} has no order of columns`;
}
