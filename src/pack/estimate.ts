import { statSync } from 'node:fs';
import path from 'node:path';
import { byRank, rankOfExperts } from '../../formats/artifact/expert-ranks.js';
import { isWeightFile } from '../../formats/directory/carry.js';
import { listFiles } from '../../formats/directory/output-directory.js';
import { planShards } from '../../formats/safetensors/shard-plan.js';
import type { PackRuntime } from '../layout/engine.js';
import { plannedTensors } from './declaration.js';
import type { PackPlan } from './plan.js';
import type { Taken } from './target.js';

/** What packing will take, in bytes; `seconds` where a module was packed to see. */
export interface PackEstimate {
  /** The finished directory: weight files to the byte, the rest to a few hundred a module. Undefined for GGUF. */
  readonly output: number | undefined;
  readonly rss: number;
  readonly seconds?: number;
}

const BASE_BYTES = 110e6;

/** Sizes by the plan alone; nothing is packed. */
export async function estimatePack(plan: PackPlan): Promise<PackEstimate> {
  const { checkpoint, decisions, carried } = plan;
  const tensors = [...decisions].map(([name, decision]) => ({
    name,
    decision,
    specs: plannedTensors(checkpoint, name, decision),
  }));
  const all = [...carried, ...tensors.flatMap(({ specs }) => specs)];
  const partOf = rankOfExperts(all, plan.expertRanks);
  const { shards } = planShards(byRank(all, partOf), { partOf });
  const weights = shards.reduce((sum, { fileBytes }) => sum + fileBytes, 0);
  const canonical = (name: string) => {
    const [n, k] = checkpoint.module(name).shape;
    return n * k;
  };
  const largest = Math.max(0, ...[...decisions.keys()].map(canonical));
  // Two modules at once, each as codes of a byte and packed, or in f32 where it stays a plain weight.
  const wide = [...decisions.values()].some(({ action }) => action === 'fallback') ? 6 : 3;
  const rss =
    BASE_BYTES +
    Math.min(2 * wide * largest, 8 * [...decisions.keys()].reduce((sum, name) => sum + canonical(name), 0)) +
    Math.min(weights, 2 ** 28);
  if (plan.target.write) return { output: undefined, rss };
  let other = 0;
  for (const file of await listFiles(checkpoint.dir))
    if (!isWeightFile(file) && file !== 'lpq.json') other += statSync(path.join(checkpoint.dir, file)).size;
  // An entry of the manifest: names, shapes and a hash for each tensor, indented.
  const manifest = tensors.reduce((sum, { name, decision, specs }) => {
    const notes =
      decision.action === 'fallback'
        ? 200 + decision.reason.length + decision.remedy.length
        : JSON.stringify(decision.notes).length;
    return sum + 860 + name.length + notes + specs.reduce((bytes, spec) => bytes + 80 + spec.name.length, 0);
  }, 1500);
  return { output: weights + other + manifest + carried.reduce((sum, { name }) => sum + 75 + name.length, 0), rss };
}

/** Packs the module of middle size, throws it away, and tells how long all will take by their sizes. */
export async function timePack(rt: PackRuntime, plan: PackPlan): Promise<number | undefined> {
  if (plan.target.write) return undefined;
  const { checkpoint } = plan;
  const size = (name: string) => {
    const [n, k] = checkpoint.module(name).shape;
    return n * k;
  };
  const taken = [...plan.decisions].filter((each): each is [string, Taken] => each[1].action !== 'fallback');
  taken.sort(([a], [b]) => size(a) - size(b));
  const middle = taken[taken.length >> 1];
  if (!middle) return undefined;
  const [name, decision] = middle;
  const total = [...plan.decisions.keys()].reduce((sum, each) => sum + size(each), 0);
  const job = { rt, checkpoint, name, module: checkpoint.module(name), plan: decision, facts: plan.facts.get(name)! };
  // The first call pays for what every later one finds there.
  let seconds = 0;
  for (let round = 0; round < 2; round++) {
    const started = performance.now();
    await checkpoint.requireHashes(name);
    const tensors = await plan.target.pack(job);
    for (const tensor of tensors.values()) tensor.dispose();
    seconds = (performance.now() - started) / 1000;
  }
  return (seconds * total) / size(name);
}
