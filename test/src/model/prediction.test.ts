import assert from 'node:assert/strict';
import path from 'node:path';
import test from 'node:test';
import { createRuntime, type Tensor, typed } from '../../../native/binding.js';
import { makeBatch } from '../../../src/model/batch.js';
import { loadOuter, runBlock, runForward } from '../../../src/model/forward.js';
import { openBlocks, openModel, planSource, unusedTensors } from '../../../src/model/graph.js';
import type { Block, BlockState } from '../../../src/model/program.js';
import type { WeightSource } from '../../../src/model/source.js';
import { loadWeights } from '../../../src/model/weights.js';
import { ARCHITECTURES, demanded, PlainFile, plainSource, ROOT, shapesOnly } from './fixtures.js';

/**
 * Layers of multi-token prediction beside what make.py of test/fixtures/prediction computes of them in fp64, with transformers' decoder
 * layer: the states behind the block, and what its first linears read.
 */
const PREDICTION = path.join(ROOT, 'test', 'fixtures', 'prediction');
const rt = createRuntime(2);

/** In plain loops: rows of x over their root mean square, times weight + offset. */
function normed(x: ArrayLike<number>, weight: ArrayLike<number>, offset: number, epsilon: number): Float64Array {
  const size = weight.length;
  const y = new Float64Array(x.length);
  for (let row = 0; row < x.length; row += size) {
    let squares = 0;
    for (let i = 0; i < size; i++) squares += (x[row + i] as number) ** 2;
    const scale = 1 / Math.sqrt(squares / size + epsilon);
    for (let i = 0; i < size; i++) y[row + i] = (x[row + i] as number) * scale * ((weight[i] as number) + offset);
  }
  return y;
}

const floats = (tensor: Tensor): Float64Array => {
  const bits = typed<Uint16Array>(tensor);
  return Float64Array.from(bits, (value) => new Float32Array(new Uint32Array([value << 16]).buffer)[0] as number);
};

const worst = (got: ArrayLike<number>, want: ArrayLike<number>): number => {
  assert.equal(got.length, want.length);
  return Array.from(want).reduce((most, value, i) => Math.max(most, Math.abs(value - (got[i] as number))), 0);
};

interface Form {
  readonly prefix: string;
  readonly first: string;
  readonly names: readonly [string, string, string];
  readonly offset: number;
  readonly epsilon: number;
}

const FORMS: Readonly<Record<string, Form>> = {
  glm4_moe: {
    prefix: 'model.layers.2.',
    first: 'model.layers.2.input_layernorm.weight',
    names: ['model.layers.2.enorm', 'model.layers.2.hnorm', 'model.layers.2.eh_proj'],
    offset: 0,
    epsilon: 1e-5,
  },
  qwen3_next: {
    prefix: 'mtp.',
    first: 'mtp.layers.0.input_layernorm.weight',
    names: ['mtp.pre_fc_norm_embedding', 'mtp.pre_fc_norm_hidden', 'mtp.fc'],
    offset: 1,
    epsilon: 1e-6,
  },
};

/** States behind the model's blocks, of the golden's tokens. */
async function finalStates(source: WeightSource, golden: PlainFile): Promise<BlockState> {
  const graph = openModel(source);
  const ids = golden.tensor('input_ids');
  const [rows, length] = ids.shape as [number, number];
  const flat = typed<Int32Array>(ids);
  const sequences = Array.from({ length: rows }, (_, row) => flat.slice(row * length, (row + 1) * length));
  const outer = await loadOuter(rt, source, graph);
  const [state] = await runForward(rt, source, graph, outer, [makeBatch(rt, sequences)]);
  return state as BlockState;
}

const weightsOf = (source: WeightSource, block: Block) => loadWeights(rt, source, block.tensors.keys());

for (const [name, { prefix, first, offset, epsilon }] of Object.entries(FORMS)) {
  const dir = path.join(PREDICTION, name);
  const file = new PlainFile(path.join(dir, 'model.safetensors'));
  const golden = new PlainFile(path.join(dir, 'golden.safetensors'));

  test(`${name}: a layer of multi-token prediction computes what transformers' layer does behind the projection`, async () => {
    const source = plainSource(dir);
    const graph = openBlocks(source, true);
    assert.equal(graph.blocks.length, 3);
    const block = graph.blocks[2] as Block;
    const weights = await weightsOf(source, block);
    const state = await finalStates(source, golden);
    const before = typed<Float32Array>(state.h).slice();
    const stage = block.stages[0]!;
    const captured = [...(await stage.capture(rt, weights, state)).values()][0] as Tensor;
    await rt.sync();
    assert.deepEqual(typed(state.h), before, 'capture must not change the state');
    // What q, k and v read: the norm of what enters, here of the golden's in plain loops.
    const want = normed(typed(golden.tensor('entered')), floats(file.tensor(first)), offset, epsilon);
    // Both go through fp32 states of size 1 to 4: a few 1e-6, and the bound of the logits.
    assert.ok(worst(typed(captured), want) <= 1e-5, `inputs differ by ${worst(typed(captured), want)}`);
    const made = await runBlock(rt, block, weights, state);
    await rt.sync();
    assert.deepEqual(made.batch.lengths, [11, 11], 'the last token of a sequence has no next one');
    const off = worst(typed(made.h), typed(golden.tensor('states')));
    assert.ok(off <= 1e-5, `states differ by ${off}`);
  });

  test(`${name}: without --mtp the layer is no block, and all of it is left over`, () => {
    const source = plainSource(dir);
    const left = unusedTensors(source, openModel(source));
    assert.equal(openModel(source).blocks.length, 2);
    assert.deepEqual(
      left,
      Object.keys(file.header)
        .filter((each) => each.startsWith(prefix))
        .sort(),
    );
  });
}

/** Two layers, the second with the block of the first. */
function twice(name: string): WeightSource {
  const one = plainSource(path.join(PREDICTION, name));
  const [from, to] = name === 'glm4_moe' ? ['model.layers.2.', 'model.layers.3.'] : ['mtp.layers.0.', 'mtp.layers.1.'];
  const source = (each: string) => (each.startsWith(to) ? from + each.slice(to.length) : each);
  const all = [...one.names()].flatMap((each) =>
    each.startsWith(from) ? [each, to + each.slice(from.length)] : [each],
  );
  return {
    ...one,
    names: () => all,
    has: (each) => one.has(source(each)),
    shape: (each) => one.shape(source(each)),
    tensor: (each) => one.tensor(source(each)),
  };
}

for (const [name, { names, offset, epsilon }] of Object.entries(FORMS))
  test(`${name}: a second layer reads what the first made, and the token after next`, async () => {
    const source = twice(name);
    const golden = new PlainFile(path.join(PREDICTION, name, 'golden.safetensors'));
    const graph = openBlocks(source, true);
    const [one, two] = graph.blocks.slice(2) as [Block, Block];
    const weights = [await weightsOf(source, one), await weightsOf(source, two)] as const;
    const state = await runBlock(rt, one, weights[0], await finalStates(source, golden));
    const captured = [...(await two.stages[0]!.capture(rt, weights[1], state)).values()][0] as Tensor;
    await rt.sync();
    const tensor = async (each: string) => floats(await source.tensor(`${each}.weight`));
    const [embeddingNorm, hiddenNorm, projection] = (await Promise.all(names.map(tensor))) as [
      Float64Array,
      Float64Array,
      Float64Array,
    ];
    const width = 32;
    const table = await tensor('model.embed_tokens');
    const ids = typed<Int32Array>(golden.tensor('input_ids'));
    const states = typed<Float32Array>(golden.tensor('states'));
    const entered = [0, 1].flatMap((row) =>
      Array.from({ length: 10 }, (_, t) => {
        const id = ids[row * 12 + t + 2] as number;
        const e = normed(table.subarray(id * width, (id + 1) * width), embeddingNorm, offset, epsilon);
        const from = (row * 11 + t) * width;
        let h: ArrayLike<number> = states.subarray(from, from + width);
        if (name === 'qwen3_next') h = normed(h, finalNorm, offset, epsilon);
        const x = [...e, ...normed(h, hiddenNorm, offset, epsilon)];
        return Array.from({ length: width }, (_, n) =>
          x.reduce((sum, value, k) => sum + value * (projection[n * 2 * width + k] as number), 0),
        );
      }).flat(),
    );
    const block = name === 'glm4_moe' ? 'model.layers.3' : 'mtp.layers.1';
    const want = normed(entered, await tensor(`${block}.input_layernorm`), offset, epsilon);
    const off = worst(typed(captured), want);
    assert.ok(off <= 1e-5, `inputs differ by ${off}`);
  });

const finalNorm = floats(
  new PlainFile(path.join(PREDICTION, 'qwen3_next', 'model.safetensors')).tensor('mtp.norm.weight'),
);

test('--mtp on a model without such layers, or of an architecture whose names are not known, is refused', () => {
  for (const name of ['glm4_moe', 'llama'])
    assert.throws(() => openBlocks(plainSource(path.join(ARCHITECTURES, name)), true), {
      code: 'LPQ_USAGE',
      message: new RegExp(`^--mtp has no effect on .*${name}, which has no layers of multi-token prediction`),
    });
});

test('layers of other families: the attention of the first block or of one behind the last, experts or none', () => {
  const planned = (name: string) => {
    const { config } = plainSource(path.join(ARCHITECTURES, name));
    const { blocks, predictions } = planSource(shapesOnly(config, demanded(config, 1)));
    const [layer] = predictions;
    assert.equal(predictions.length, 1, name);
    assert.ok(layer?.prediction && layer.attention.kind === 'attention' && blocks[0]?.attention.kind === 'attention');
    return { layer, attention: layer.attention, first: blocks[0].attention, projection: layer.prediction.projection };
  };
  const exaone = planned('exaone_moe');
  assert.ok(exaone.first.window > 0 && exaone.attention.window === exaone.first.window);
  assert.equal(exaone.attention.rope === undefined, exaone.first.rope === undefined);
  assert.equal(exaone.layer.mlp.kind, 'gated');
  assert.equal(planned('ernie4_5_moe').layer.mlp.kind, 'gated');
  assert.equal(planned('ernie4_5_moe').projection.name, 'model.mtp_linear_proj.0');
  const mimo = planned('mimo_v2_flash');
  assert.ok(mimo.first.window === 0 && mimo.attention.window > 0 && mimo.attention.sinks?.startsWith('model.mtp.'));
  assert.ok(mimo.layer.mlp.kind === 'gated' && mimo.layer.mlp.norm?.weight?.endsWith('.pre_mlp_layernorm.weight'));
  assert.equal(planned('hy_v3').layer.mlp.kind, 'experts');
});
