import type { NativeRuntime, Tensor } from '../../../native/binding.js';
import { copyState, disposeState } from '../../calibrate/streams.js';
import { tell } from '../../core/activity.js';
import { batchSequences, disposeBatch, type TokenBatch } from '../../model/batch.js';
import { disposeStates, embedBatches, loadOuter, runBlock } from '../../model/forward.js';
import type { BlockPlan, ModelPlan } from '../../model/plan.js';
import type { Block, BlockState, BlockWeights, LinearRef, ModelGraph } from '../../model/program.js';
import { RopeCache } from '../../model/rope-cache.js';
import type { WeightSource } from '../../model/source.js';
import { disposeWeights, loadWeights } from '../../model/weights.js';
import type { QuantScheme } from '../../quantize/scheme.js';
import type { Unit } from '../../quantize/sensitivity.js';
import { passBlock } from '../block.js';
import { headLoss } from '../scales/head.js';
import { NextTokens } from '../scales/next-tokens.js';
import { STEP_TOKENS } from '../scales/options.js';
import { Candidates } from './candidates.js';

/** A model, its units and what to round them to, with text as tokens. */
export interface LossRequest {
  readonly rt: NativeRuntime;
  readonly source: WeightSource;
  readonly graph: ModelGraph;
  readonly plan: ModelPlan;
  readonly units: readonly Unit[];
  readonly schemes: readonly QuantScheme[];
  readonly sequences: readonly Int32Array[];
}

export interface LossEvents {
  /** After each linear. */
  readonly onLinear?: (done: number, name: string) => void;
  /** Now and then: throws where the run is to stop. */
  readonly check?: () => void;
}

/** Bytes of what blocks are given, which is held for the way back: fewer sequences are read where they would take more. */
const STATE_BYTES = 2 ** 31;

/**
 * What rounding every unit to each scheme adds to the loss of the next tokens, nats a token, by unit and scheme. To second order, with squared
 * gradients of tokens in the place of the Hessian (the empirical Fisher matrix; GuidedQuant, Kim et al., arXiv:2505.07004, weighs errors
 * alike): half the mean over tokens of (dy · (Wq - W) x)², where dy is the gradient of the summed loss with respect to what a linear makes
 * of a token. One backward pass of the unquantized model, block by block; experts by their own tokens. Only on the CPU, for models whose
 * blocks all have gradients; layers of multi-token prediction count as 0. Throws what roundWeight() does.
 */
export async function measureLosses(request: LossRequest, events: LossEvents = {}): Promise<number[][]> {
  const { rt, source, graph, units, schemes } = request;
  const outer = await loadOuter(rt, source, graph);
  const batches = batchSequences(rt, fitting(request), STEP_TOKENS);
  const pass = new LossPass(request, events, outer, batches);
  try {
    await pass.forward();
    await pass.atHead();
    for (;;) if (!(await pass.backward())) break;
    const none = schemes.map(() => 0);
    const of = ({ name }: LinearRef, i: number) => (pass.losses.get(name) ?? none)[i] as number;
    return units.map(({ linears }) => none.map((_, i) => linears.reduce((sum, linear) => sum + of(linear, i), 0)));
  } finally {
    pass.dispose();
    disposeWeights(outer);
    batches.forEach(disposeBatch);
  }
}

/** The first sequences, as many as STATE_BYTES has room for; one at least. */
function fitting({ graph, sequences }: LossRequest): readonly Int32Array[] {
  let room = STATE_BYTES / (4 * graph.stream * (graph.blocks.length + 2));
  return sequences.filter(({ length }, i) => {
    room -= length;
    return i === 0 || room >= 0;
  });
}

/** The gradient of a batch on its way back: with respect to what the next block is given, and to keys and values that blocks share. */
interface Way {
  dy: Tensor | undefined;
  readonly kept: Map<string, Tensor>;
}

/** Batches on their way through the unquantized model and back. */
class LossPass {
  /** By linear and scheme. */
  readonly losses = new Map<string, number[]>();
  private readonly ropes = new RopeCache();
  private readonly blocks: readonly Block[];
  private readonly linears: readonly LinearRef[];
  private readonly tokens: number;
  /** What each block is given, and what the head is, batch by batch; the last is taken first. */
  private readonly entered: BlockState[][];
  private readonly ways: readonly Way[];

  constructor(
    private readonly request: LossRequest,
    private readonly events: LossEvents,
    private readonly outer: BlockWeights,
    private readonly batches: readonly TokenBatch[],
  ) {
    const { rt, graph, units } = request;
    this.blocks = graph.blocks.filter(({ predicts }) => !predicts);
    this.linears = units.flatMap(({ linears }) => linears);
    this.tokens = batches.reduce((sum, { tokens }) => sum + tokens, 0);
    this.entered = [embedBatches(rt, graph, outer, batches)];
    this.ways = batches.map(() => ({ dy: undefined, kept: new Map() }));
  }

  async forward(): Promise<void> {
    const { rt } = this.request;
    for (const block of this.blocks) {
      const weights = await this.weightsOf(block);
      const next: BlockState[] = [];
      const given = this.entered.at(-1) as BlockState[];
      this.entered.push(next);
      try {
        for (const state of given) {
          this.begin(`block ${block.index + 1} of ${this.blocks.length}, batch`, next.length);
          next.push(await runBlock(rt, block, weights, copyState(rt, state)));
          await rt.sync();
        }
      } finally {
        disposeWeights(weights);
      }
    }
  }

  /** The gradients of the loss with respect to what the last block makes, and what the head itself loses. */
  async atHead(): Promise<void> {
    const { outer } = this;
    const { plan } = this.request;
    const { name } = plan.head;
    await this.measure(outer, [name], async (candidates, batch, state) => {
      const { tokens } = batch;
      const head = { plan, weights: outer, source: outer, gradient: candidates.sinks(tokens).get(name) };
      return (await headLoss(this.request.rt, head, state.h, new NextTokens(batch), true)).gradient;
    });
  }

  /** Takes the last block that is left back; false: there is none. */
  async backward(): Promise<boolean> {
    const block = this.blocks[this.entered.length - 1];
    if (!block) return false;
    const { rt, plan } = this.request;
    const weights = await this.weightsOf(block);
    const names = [...block.tensors.keys()].map((name) => name.replace(/\.weight$/, ''));
    try {
      await this.measure(weights, names, async (candidates, { tokens }, state, { dy, kept }) => {
        const own = plan.blocks[block.index] as BlockPlan;
        const sinks = candidates.sinks(tokens);
        const pass = await passBlock(rt, own, weights, this.ropes, state, sinks, undefined, true);
        try {
          return pass.backward(dy as Tensor, kept);
        } finally {
          await rt.sync();
          pass.dispose();
        }
      });
    } finally {
      disposeWeights(weights);
    }
    return this.entered.length > 0;
  }

  dispose(): void {
    for (const states of this.entered) disposeStates(states);
    for (const { dy, kept } of this.ways) for (const tensor of [dy, ...kept.values()]) tensor?.dispose();
  }

  /** Takes every batch a part back by `back`, which gives the gradient with respect to what that part is given. */
  private async measure(
    weights: BlockWeights,
    names: readonly string[],
    back: (candidates: Candidates, batch: TokenBatch, state: BlockState, way: Way) => Promise<Tensor | undefined>,
  ): Promise<void> {
    const { rt, schemes } = this.request;
    const inside = new Set(names);
    const linears = this.linears.filter(({ name }) => inside.has(name));
    const states = this.entered.at(-1) as BlockState[];
    const candidates = await Candidates.of(rt, weights, linears, schemes);
    try {
      for (const [i, state] of states.entries()) {
        this.begin('the loss, block', this.entered.length - 1);
        const way = this.ways[i] as Way;
        const before = await back(candidates, this.batches[i] as TokenBatch, state, way);
        way.dy?.dispose();
        way.dy = before;
        await rt.sync();
      }
      this.entered.pop();
      states.forEach(disposeState);
      for (const [name, sums] of await candidates.sums()) {
        const losses = sums.map((sum) => sum / (2 * this.tokens));
        this.losses.set(name, losses);
        this.events.onLinear?.(this.losses.size, name);
      }
    } finally {
      candidates.dispose();
    }
  }

  private begin(what: string, done: number): void {
    this.events.check?.();
    tell(what, done, this.blocks.length);
  }

  private weightsOf({ tensors }: Block): Promise<BlockWeights> {
    const { rt, source, graph } = this.request;
    return loadWeights(rt, source, tensors.keys(), graph.transposed);
  }
}
