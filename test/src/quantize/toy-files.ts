import type { Touched } from '../../toy-tree.js';

/** A method that clips weights and rounds them: of each linear by the clip with which the block's output errs least. */
const method = `import { fromTyped, type Tensor, typed } from '../../native/binding.js';
import { runBlock } from '../model/forward.js';
import type { BlockTask } from '../quantize/block-task.js';
import type { Method } from '../quantize/method.js';
import type { Quantizer } from '../quantize/quantizer.js';
import { disposeModule, type QuantizedModule } from '../quantize/result.js';
import { nearest, roundWeight } from '../quantize/round.js';
import { dequantizeResult } from '../quantize/stored.js';

export const toy: Method = {
  name: 'toy',
  needs: 'activations',
  options: [
    {
      field: 'toyClips',
      flags: '--toy-clips <n>',
      help: 'toy: clips to try (default: 3)',
      takes: { least: 1, most: 9, integer: true },
      otherwise: 3,
    },
  ],
  cpuOnly: true,
  quantizer: async (settings) => toyQuantizer(Number(settings.toyClips)),
};

function toyQuantizer(clips: number): Quantizer {
  return {
    method: 'toy',
    statistics: true,
    original: false,
    options: { clips },
    feed: nearest,
    async solveBlock(task) {
      const { rt, weights } = task.lanes[0]!;
      const chosen = new Map(weights);
      const modules = new Map<string, QuantizedModule>();
      for (const [name, scheme] of task.schemes) {
        const key = \`\${name}.weight\`;
        let best = { error: Number.POSITIVE_INFINITY, module: undefined as QuantizedModule | undefined };
        for (let i = 0; i < clips; i++) {
          task.check();
          const module = await roundWeight(rt, clipped(weights.get(key)!, 1 - i / 10), scheme, name);
          const trial = new Map(chosen).set(key, dequantizeResult(rt, module));
          const error = await outputError(task, trial);
          if (error < best.error) {
            if (best.module) disposeModule(best.module);
            best = { error, module };
            chosen.set(key, trial.get(key)!);
          } else disposeModule(module);
        }
        modules.set(name, { ...best.module!, quality: { ...best.module!.quality, method: 'toy' } });
      }
      return modules;
    },
  };
}

function clipped(weight: Tensor, share: number): Tensor {
  const words = typed<Uint16Array>(weight);
  const values = weight.dtype === 'f32' ? typed<Float32Array>(weight) : Float32Array.from(words, (word) => fromBf16(word));
  const most = share * values.reduce((a, b) => Math.max(a, Math.abs(b)), 0);
  return fromTyped('f32', weight.shape, values.map((value) => Math.min(most, Math.max(-most, value))));
}

function fromBf16(word: number): number {
  return new Float32Array(Uint32Array.of(word * 2 ** 16).buffer)[0]!;
}

async function outputError({ block, lanes }: BlockTask, weights: Map<string, Tensor>): Promise<number> {
  let sum = 0;
  for (const { rt, inputs, outputs } of lanes)
    for (let batch = 0; batch < inputs.count; batch++) {
      const made = await runBlock(rt, block, weights, inputs.state(batch));
      const wanted = outputs.state(batch);
      await rt.sync();
      const goal = typed<Float32Array>(wanted.h);
      sum = typed<Float32Array>(made.h).reduce((all, value, i) => all + (value - goal[i]!) ** 2, sum);
      for (const { h } of [made, wanted]) h.dispose();
    }
  return sum;
}
`;

/** All that is written by hand; \`npm run man\` and \`npm run schemas\` make the rest. */
export const METHOD: readonly Touched[] = [
  { file: 'src/toy/method.ts', text: method },
  {
    file: 'src/cli/quantize/methods.ts',
    text: "import { toy } from '../../toy/method.js';\n",
    before: '\n/** Every method',
  },
  { file: 'src/cli/quantize/methods.ts', text: ', toy', before: '];\n\n/** The method that' },
];

/** What tells of it: rows of tables. */
export const TABLES = ['test/arrows.test.ts', 'ARCHITECTURE.md', 'docs/methods.md'];
