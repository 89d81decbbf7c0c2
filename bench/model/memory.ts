import type { NativeRuntime } from '../../native/binding.js';
import { architectureOf } from '../../src/model/architectures/index.js';
import { buildGraph } from '../../src/model/graph.js';
import { planModel } from '../../src/model/plan.js';
import type { ModelBenchRequest } from './run.js';

/** What operations take of a device beside the tensors of a program. */
export class Scratch {
  /** Taken once and kept: cuBLAS's workspace, counters. */
  private kept = 0;

  constructor(private readonly rt: NativeRuntime) {}

  /**
   * The most bytes of scratch while `work` ran, with what operations have kept since this was made; 0 on the CPU, which does not count.
   * `work` is to leave as many tensors as it found.
   */
  async during(work: () => Promise<void>): Promise<number> {
    await this.rt.sync();
    this.rt.resetPeak();
    const before = this.rt.memory();
    await work();
    const after = this.rt.memory();
    if (!before || !after) return 0;
    const most = this.kept + Math.max(0, after.peakUsed - before.used);
    this.kept += Math.max(0, after.used - before.used);
    return most;
  }
}

/**
 * Memory of a run on a CPU, in bytes: weights at 16 bits (no form is wider), one block more while siblings are joined, the cache, and what the
 * longest step holds in f32.
 */
export function benchBytes({ shape, blocks, m, contexts, prefill }: ModelBenchRequest): number {
  const config = { ...shape.config, num_hidden_layers: blocks };
  const plan = planModel(architectureOf(config, shape.name), config, shape.name);
  const graph = buildGraph(plan);
  const elements = (tensors: ReadonlyMap<string, readonly number[]>) =>
    [...tensors.values()].reduce((sum, dims) => sum + dims.reduce((a, b) => a * b, 1), 0);
  const ofBlocks = graph.blocks.map(({ tensors }) => elements(tensors));
  const weights = 2 * (elements(graph.outer) + ofBlocks.reduce((a, b) => a + b, 0) + Math.max(0, ...ofBlocks));
  const sequences = Math.max(1, ...m);
  const kept = plan.blocks.reduce((sum, { attention }) => {
    // Keys and values in 16 bits; states of recurrent layers do not grow with the context.
    if (attention.kind === 'recurrent' || attention.kind === 'nothing') return sum;
    return sum + (attention.kind === 'mla' ? 4 * graph.hidden : 4 * attention.kvHeads * attention.headDim);
  }, 0);
  const cache = kept * Math.max(prefill, sequences * Math.max(...contexts));
  const rows = Math.max(prefill, sequences);
  // Gate, up and their product beside the residual stream; the logits of the last tokens.
  const widest = Math.max(0, ...graph.blocks.flatMap(({ tensors }) => [...tensors.values()].map(([n = 0]) => n)));
  return weights + cache + 4 * rows * (3 * widest + 6 * graph.hidden) + 4 * sequences * graph.vocab;
}
