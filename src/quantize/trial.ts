import type { SourceCheckpoint } from '../../formats/canonical/source.js';
import type { NativeRuntime } from '../../native/binding.js';
import { tell } from '../core/activity.js';
import { openBlocks } from '../model/graph.js';
import type { Block, ModelGraph } from '../model/program.js';
import type { BlockContext } from './blocks.js';
import { linearsOf } from './linears.js';
import { quantizeModel } from './model.js';
import { planQuantization } from './plan.js';
import type { Finished } from './progress.js';
import type { QuantizeRequest } from './run.js';
import { SourceView } from './source-view.js';

/** What quantizing the whole model will take, by one block of it. */
export interface Trial {
  /** The block that was quantized, and how long it took. */
  readonly block: number;
  readonly blockSeconds: number;
  /** Of all blocks, in proportion to their multiplications; without reading the text and writing. */
  readonly seconds: number;
}

/**
 * Quantizes one block, the first with a module to quantize, and throws the result away. Blocks behind it are as costly as
 * their weights say: each token meets each weight once, each Hessian is factored once.
 */
export async function timeBlock(
  rts: readonly NativeRuntime[],
  checkpoint: SourceCheckpoint,
  request: Pick<QuantizeRequest, 'scheme' | 'rules' | 'quantizer' | 'calibration' | 'statistics' | 'mtp'>,
  check: () => void = () => {},
): Promise<Trial> {
  const source = new SourceView(checkpoint);
  const graph = openBlocks(source, request.mtp);
  const schemes = new Map(
    [...planQuantization(graph, { ...request, lmHead: false })].map(([name, { scheme }]) => [name, scheme]),
  );
  const block = graph.blocks.find((each) => costOf(each, schemes) > 0) ?? (graph.blocks[0] as Block);
  const first = graph.blocks.slice(0, block.index + 1);
  const context: BlockContext = {
    quantizer: request.quantizer,
    schemes: new Map([...schemes].filter(([name]) => linearsOf(block).some((linear) => linear.name === name))),
    onStage: check,
    onModule: async () => check(),
  };
  const unfinished: Finished = { has: () => false, replayed: () => new Map(), resumed: (view) => view };
  const alone: ModelGraph = { ...graph, blocks: first };
  const whole = { ...request, lmHead: false } as QuantizeRequest;
  let blockSeconds = 0;
  tell(`quantizing block ${block.index + 1} to time it`);
  const started = performance.now();
  await quantizeModel(
    context,
    rts,
    whole,
    source,
    alone,
    {
      onSpan: (span, seconds) => {
        if (span === 'block') blockSeconds = seconds;
      },
    },
    unfinished,
  );
  for (const rt of rts) await rt.sync();
  // Methods without calibration only queue the modules of a block.
  if (!request.quantizer.statistics) blockSeconds = (performance.now() - started) / 1000;
  const total = graph.blocks.reduce((sum, each) => sum + costOf(each, schemes), 0);
  const seconds = (blockSeconds * total) / Math.max(1, costOf(block, schemes));
  return { block: block.index, blockSeconds, seconds };
}

/** Weights that are quantized; 0 where there is nothing to do. */
function costOf(block: Block, schemes: ReadonlyMap<string, unknown>): number {
  return linearsOf(block).reduce((sum, { name, n, k }) => sum + (schemes.has(name) ? n * k : 0), 0);
}
