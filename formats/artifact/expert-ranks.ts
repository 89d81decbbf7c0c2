import type { TensorSpec } from '../safetensors/header.js';

/** A routed expert in the name of a tensor: what holds a block's experts, and which of them it is. */
const EXPERT = /^(.*\.experts)\.(\d+)\./;

/** The rank of a tensor that is an expert's; undefined where every rank has it. */
export type ExpertRank = (tensor: string) => number | undefined;

/**
 * How `ranks` of expert parallelism share experts: in order, as many each, the first ones one more where it does not come out even (vLLM's
 * linear placement). `names` are the model's tensors. Also the least number of experts of a block, 0 where none has a tensor of its own.
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

/** What all ranks have, then what each has, in the order given. */
export function byRank(specs: readonly TensorSpec[], rankOf: ExpertRank): TensorSpec[] {
  const key = ({ name }: TensorSpec) => rankOf(name) ?? -1;
  return [...specs].sort((a, b) => key(a) - key(b));
}

/** Of tensors that one pack holds; with one rank every tensor is all ranks'. */
export function rankOfExperts(specs: readonly TensorSpec[], ranks = 1): ExpertRank {
  if (ranks === 1) return () => undefined;
  return expertRanks(
    specs.map(({ name }) => name),
    ranks,
  ).rankOf;
}
