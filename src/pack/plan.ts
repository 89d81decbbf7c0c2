import { expertRanks } from '../../formats/artifact/expert-ranks.js';
import type { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import type { CanonicalModule } from '../../formats/canonical/schema.js';
import type { TensorSpec } from '../../formats/safetensors/header.js';
import { type Tensor, typed } from '../../native/binding.js';
import { LpqError } from '../core/error.js';
import { groupCount } from '../core/granularity.js';
import { lostScales } from './kv-scales.js';
import { splitOf } from './parallel.js';
import { readerLimits } from './reader-limits.js';
import { type ModelRoles, rolesOf } from './roles.js';
import type { Decision, Fallback, ModuleFacts, PackTarget } from './target.js';
import { packTarget } from './targets/index.js';

/** What packing will do, before anything is written: for --dry-run and for packCheckpoint. */
export interface PackPlan {
  readonly target: PackTarget;
  readonly checkpoint: CanonicalCheckpoint;
  /** What was asked for; differs from target.name when the checkpoint needed another. */
  readonly requested: string;
  readonly notes: readonly string[];
  readonly decisions: ReadonlyMap<string, Decision>;
  /** Tensors that go through unchanged. */
  readonly carried: readonly TensorSpec[];
  /** Two-dimensional NAME.weight among them that are linears: what readers must be told is not quantized. */
  readonly plainLinears: readonly string[];
  /** Ranks of tensor parallelism, 1 without. */
  readonly ranks: number;
  /** Ranks of expert parallelism; 1: none. */
  readonly expertRanks: number;
  readonly roles: ModelRoles;
  readonly facts: ReadonlyMap<string, ModuleFacts>;
  /** Set when the target takes no module at all: packing would throw this. */
  readonly refusal: LpqError | undefined;
}

/** Most ranks that a model is shared by. */
const MOST_RANKS = 1024;

/**
 * Decides every module of a checkpoint for a target, in whole or for `ranks` ranks. Reads zero points and g_idx, and else
 * only the manifest. Throws LPQ_TARGET, LPQ_USAGE for ranks that the target does not have.
 */
export function planPack(checkpoint: CanonicalCheckpoint, targetName: string, ranks = 1, experts = 1): PackPlan {
  if (!Number.isSafeInteger(ranks) || ranks < 1 || ranks > MOST_RANKS)
    throw new LpqError('LPQ_USAGE', '--tp is not a number of ranks', { got: ranks, expected: `1 to ${MOST_RANKS}` });
  const modules = new Map(
    checkpoint
      .moduleNames()
      .map((name) => [name, { module: checkpoint.module(name), facts: factsOf(checkpoint, name, ranks) }]),
  );
  const wanted = packTarget(targetName);
  const redirect = wanted.resolve?.(modules);
  const chosen = redirect?.target ?? wanted;
  const target = chosen.bind?.(checkpoint) ?? chosen;
  if (ranks > 1 && !target.tensorParallel) throw noRanks(target, ranks);
  requireExpertRanks(checkpoint, target, { ranks, experts });
  const decisions = new Map<string, Decision>();
  for (const [name, { module, facts }] of modules) decisions.set(name, target.plan(name, module, facts));
  const carried = Object.keys(checkpoint.manifest.carried).map((name): TensorSpec => {
    const { dtype, shape } = checkpoint.weights.spec(name);
    return { name, dtype, shape };
  });
  const quantized = checkpoint.moduleNames().map((name) => `${name}.weight`);
  const roles = rolesOf(checkpoint.config, [...quantized, ...carried.map(({ name }) => name)]);
  const plainLinears = carried.filter(isLinear).map(({ name }) => name.slice(0, -'.weight'.length));
  const model = { checkpoint, decisions, plainLinears, ranks, roles };
  return {
    ...model,
    target,
    expertRanks: experts,
    requested: targetName,
    notes: [
      ...(redirect?.note === undefined ? [] : [redirect.note]),
      ...readerLimits(target, model),
      ...lostScales(checkpoint.manifest, target),
    ],
    carried,
    facts: new Map([...modules].map(([name, { facts }]) => [name, facts])),
    refusal: refusal(checkpoint.dir, target, decisions, roles, ranks),
  };
}

function requireExpertRanks(
  { dir, manifest }: CanonicalCheckpoint,
  { name, write }: PackTarget,
  { ranks, experts }: { readonly ranks: number; readonly experts: number },
): void {
  const wrong = (why: string, more: { expected?: string; hint?: string } = {}): never => {
    throw new LpqError('LPQ_USAGE', why, { got: `--ep ${experts}`, ...more });
  };
  if (experts === 1) return;
  if (!Number.isSafeInteger(experts) || experts < 1 || experts > MOST_RANKS)
    wrong('--ep is not a number of ranks', { expected: `1 to ${MOST_RANKS}` });
  if (write) wrong(`--ep does not go with target ${name}, which is one file`);
  if (ranks > 1) wrong('--ep does not go with --tp', { hint: 'Leave one of them out: each rank has whole experts.' });
  const names = [...Object.keys(manifest.modules).map((each) => `${each}.weight`), ...Object.keys(manifest.carried)];
  const { least } = expertRanks(names, experts);
  if (least === 0) wrong(`${dir} has no experts with tensors of their own`, { hint: 'Leave --ep out.' });
  if (least < experts)
    wrong(`${dir} has fewer experts than ranks`, { expected: `2 to ${least}`, hint: 'Give fewer ranks.' });
}

function factsOf(checkpoint: CanonicalCheckpoint, name: string, ranks: number): ModuleFacts {
  const module = checkpoint.module(name);
  const shared = ranks > 1 ? { ranks: splitOf(checkpoint, name, ranks) } : {};
  const zeros = module.zeros.kind === 'int' ? { zeroRange: rangeOf(checkpoint.require(name, 'zeros')) } : {};
  const half = module.scales.dtype === 'bf16' ? { halfScales: areHalf(checkpoint.require(name, 'scales')) } : {};
  const even = module.groupIndex ? { evenGroups: isEven(checkpoint.require(name, 'g_idx'), module) } : {};
  return { ...shared, ...zeros, ...half, ...even };
}

function rangeOf(zeros: Tensor): [number, number] {
  let [low, high] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (const zero of typed<Uint8Array | Int16Array>(zeros)) {
    low = Math.min(low, zero);
    high = Math.max(high, zero);
  }
  zeros.dispose();
  return [low, high];
}

/** Whether bf16 numbers are f16 numbers, too: their 8 significant bits fit from 2^-17 on, fewer below. */
function areHalf(scales: Tensor): boolean {
  const fits = typed<Uint16Array>(scales).every((bits) => {
    const exponent = ((bits >> 7) & 255) - 127;
    const trailing = bits & 127 ? 31 - Math.clz32(bits & -bits & 127) : 7;
    return (bits & 0x7fff) === 0 || (exponent <= 15 && exponent - 7 + trailing >= -24);
  });
  scales.dispose();
  return fits;
}

function isEven(groupIndex: Tensor, module: CanonicalModule): boolean {
  const [, k] = module.shape;
  const counts = new Array<number>(groupCount(module.granularity, k)).fill(0);
  for (const group of typed<Int32Array>(groupIndex)) counts[group] = (counts[group] ?? 0) + 1;
  groupIndex.dispose();
  return counts.every((count) => count * counts.length === k);
}

function isLinear({ name, dtype, shape }: TensorSpec): boolean {
  return (
    name.endsWith('.weight') &&
    shape.length === 2 &&
    ['F64', 'F32', 'F16', 'BF16'].includes(dtype) &&
    !/(^|\.)(embed(?!_out|\w*proj)\w*|\w*_embed|wte|wpe|\w*embeddings?)\.weight$/.test(name)
  );
}

/** The error of ranks that a target does not have. */
export function noRanks(target: PackTarget, ranks: number): LpqError {
  return new LpqError('LPQ_USAGE', `target ${target.name} has no tensors for each rank`, {
    got: `--tp ${ranks}`,
    hint: 'Leave --tp out: loaders of this format split tensors themselves.',
  });
}

/** Why the target cannot take the checkpoint at all. */
export function refusal(
  dir: string,
  target: PackTarget,
  decisions: ReadonlyMap<string, Decision>,
  roles: ModelRoles,
  ranks: number,
): LpqError | undefined {
  const fallbacks = [...decisions].filter((entry): entry is [string, Fallback] => entry[1].action === 'fallback');
  const [first] = fallbacks;
  if (decisions.size === 0)
    return new LpqError('LPQ_TARGET', `${dir} has no quantized module to pack`, {
      hint: 'Give the output of lpq quantize.',
    });
  if (target.byName && roles.fusedExperts)
    return new LpqError('LPQ_TARGET', `target ${target.name} has no names for the experts of ${dir}`, {
      got: 'an architecture whose loaders expect the experts of a block in one tensor',
      expected: 'one whose checkpoints name each expert',
      hint: "Its loaders would leave these experts at random without an error. Use one of lpq's own targets (sm90, tilus, ...).",
    });
  const shared = [...decisions.values()].some((each) => each.action !== 'fallback' && each.ranks);
  if (ranks > 1 && fallbacks.length < decisions.size && !shared)
    return new LpqError('LPQ_TARGET', `no module of ${dir} can be split over ${ranks} ranks`, {
      got: `--tp ${ranks}`,
      hint: 'Use a number of ranks that divides the heads and gives each rank whole groups of K.',
    });
  if (!first || fallbacks.length < decisions.size) return undefined;
  const [name, { reason, remedy }] = first;
  return new LpqError('LPQ_TARGET', `target ${target.name} takes no module of ${dir}: ${name}: ${reason}`, {
    got: [...new Set(fallbacks.map(([, each]) => each.reason))].slice(0, 5).join('; '),
    expected: target.describe,
    hint: remedy,
  });
}
