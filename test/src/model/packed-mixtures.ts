import path from 'node:path';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { createRuntime, type NativeRuntime, readTyped } from '../../../native/binding.js';
import { makeBatch } from '../../../src/model/batch.js';
import { disposeStates, embedBatches, loadOuter, runBlock } from '../../../src/model/forward.js';
import { openModel } from '../../../src/model/graph.js';
import type { Block, BlockWeights } from '../../../src/model/program.js';
import type { WeightSource } from '../../../src/model/source.js';
import { disposeWeights, loadWeights } from '../../../src/model/weights.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { quantizeCheckpoint } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { rtnQuantizer } from '../../../src/rtn/quantizer.js';
import { scratch } from '../../formats/scratch.js';
import { ARCHITECTURES } from './fixtures.js';

/** Of two sequences. */
export const TOKENS = 24;

/** Small mixtures: gates of every kind, biases, weighed inputs, a latent vector, experts that are idle, experts apart from an MLP. */
export const MIXTURES = [
  'mixtral',
  'gpt_oss',
  'llama4_text',
  'nemotron_h-latent',
  'longcat_flash',
  'gemma4_moe',
  'deepseek_v4',
  'minimax_m3_vl_text',
];

/** A mixture rounded to 4 bits and packed for tilus: its directory. */
export async function packedMixture(name: string, scheme: Parameters<typeof schemeFromOptions>[0]): Promise<string> {
  const rt = createRuntime(2);
  const dir = scratch();
  const [quantized, output] = [path.join(dir, 'q'), path.join(dir, 'p')];
  await quantizeCheckpoint([rt], {
    source: path.join(ARCHITECTURES, name),
    output: quantized,
    scheme: schemeFromOptions(scheme),
    rules: [],
    quantizer: rtnQuantizer(),
    calibration: undefined,
    lmHead: false,
    options: {},
    version: 'test',
  });
  await packCheckpoint({ input: CanonicalCheckpoint.open(quantized), target: 'tilus', output, runtime: rt });
  return output;
}

/** The runtime, which counts what is read back to the host. */
export function counted(rt: NativeRuntime): { readonly runtime: NativeRuntime; reads: number } {
  const counter = {
    reads: 0,
    runtime: new Proxy(rt, {
      get(target, name) {
        if (name === 'download') counter.reads++;
        const value: unknown = Reflect.get(target, name, target);
        return typeof value === 'function' ? value.bind(target) : value;
      },
    }),
  };
  return counter;
}

/** States after the last block; `each`: what becomes of a block's weights first. */
export async function states(
  runtime: NativeRuntime,
  source: WeightSource,
  each: (block: Block, weights: BlockWeights) => void,
): Promise<Float32Array> {
  const graph = openModel(source);
  const outer = await loadOuter(runtime, source, graph);
  const ids = Int32Array.from({ length: TOKENS }, (_, i) => (i * 37 + 5) % graph.vocab);
  const batch = makeBatch(runtime, [ids.slice(0, 10), ids.slice(10)]);
  let [state] = embedBatches(runtime, graph, outer, [batch]);
  for (const block of graph.blocks.filter(({ predicts }) => !predicts)) {
    const weights = await loadWeights(runtime, source, block.tensors.keys(), graph.transposed);
    each(block, weights);
    state = await runBlock(runtime, block, weights, state!);
    disposeWeights(weights);
  }
  const values = (await readTyped<Float32Array>(runtime, state!.h)).slice();
  disposeStates([state!]);
  disposeWeights(outer);
  return values;
}
