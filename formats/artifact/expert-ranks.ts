import type { TensorSpec } from '../safetensors/header.js';

/** A routed expert in the name of a tensor: the path of its block's experts, and its index. */
const EXPERT = /^(.*\.experts)\.(\d+)\./;

/** The rank of an expert's tensor; undefined for tensors that every rank has. */
export type ExpertRank = (tensor: string) => number | undefined;

/**
 * How `ranks` of expert parallelism share experts: in order, the same number each, the first ranks one more if the division has a rest (vLLM's
 * linear placement). `names` are the model's tensors. Also the least number of experts of a block; 0 if no expert has separate tensors.
 */
export function expertRanks(names: Iterable<string>, ranks: number): { readonly rankOf: ExpertRank; least: number } {
  const counts = new Map<string, number>();
  for (const name of names) {
    const [, block, index] = EXPERT.exec(name) ?? [];
    if (block !== undefined) counts.set(block, Math.max(counts.get(block) ?? 0, Number(index) + 1));
  }
  const rankOf = (name: string): number | undefined => {
    const [, block, index] = EXPERT.exec(name) ?? [];
    if (block === undefined) return undefined;
    const count = counts.get(block) as number;
    const [each, more] = [Math.floor(count / ranks), count % ranks];
    const large = more * (each + 1);
    return Number(index) < large
      ? Math.floor(Number(index) / (each + 1))
      : more + Math.floor((Number(index) - large) / each);
  };
  return { rankOf, least: counts.size > 0 ? Math.min(...counts.values()) : 0 };
}

/** The tensors of all ranks, then those of each rank, in the given order. */
export function byRank(specs: readonly TensorSpec[], rankOf: ExpertRank): TensorSpec[] {
  const key = ({ name }: TensorSpec) => rankOf(name) ?? -1;
  return [...specs].sort((a, b) => key(a) - key(b));
}

/** For the tensors of one pack; with one rank, all ranks have every tensor. */
export function rankOfExperts(specs: readonly TensorSpec[], ranks = 1): ExpertRank {
  if (ranks === 1) return () => undefined;
  return expertRanks(
    specs.map(({ name }) => name),
    ranks,
  ).rankOf;
}
