import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { randomIds, readIds } from '../../bench/ids.js';
import { modelShape, SHAPE_NAMES } from '../../bench/shapes.js';
import { makeSynthetic, removeSynthetic, shapeSize } from '../../bench/synthetic.js';
import { streamSynthetic } from '../../bench/synthetic-stream.js';
import { SourceCheckpoint } from '../../formats/canonical/source.js';
import { createRuntime, typed } from '../../native/binding.js';
import { expertSource } from '../../src/model/fused-experts.js';
import { openModel } from '../../src/model/graph.js';
import { designed, scratch } from '../formats/scratch.js';
import { ARCHITECTURES } from '../src/model/fixtures.js';

const rt = createRuntime(2);
const root = scratch();

test('shapes have the parameters that their models are published with', () => {
  // From the model cards' safetensors metadata (the tied embedding counted once).
  const published = {
    'llama-3.2-1b': 1_235_814_400,
    'llama-3-8b': 8_030_261_248,
    'llama-3-70b': 70_553_706_496,
    'qwen3-8b': 8_190_735_360,
    'qwen3-30b-a3b': 30_532_122_624,
    'qwen3-235b-a22b': 235_093_634_560,
    'gpt-oss-20b': 20_914_757_184,
  };
  for (const [name, parameters] of Object.entries(published)) {
    const shape = modelShape(name);
    assert.equal(shapeSize(shape, shape.blocks).parameters, parameters, name);
  }
  for (const name of SHAPE_NAMES) assert.ok(shapeSize(modelShape(name), 1).bytes > 0);
});

test('a synthetic checkpoint opens as a model, holds finite weights and does not depend on the number of blocks', async () => {
  for (const name of ['tiny', 'tiny-moe']) {
    const shape = modelShape(name);
    const [whole, cut] = [path.join(root, `${name}-4`), path.join(root, `${name}-1`)];
    const told: number[] = [];
    const made = await makeSynthetic(rt, whole, shape, { blocks: 4, seed: 3, onBytes: (done) => told.push(done) });
    await makeSynthetic(createRuntime(1), cut, shape, { blocks: 1, seed: 3 });
    assert.equal(told.at(-1), made.bytes);
    assert.deepEqual({ parameters: made.parameters, bytes: made.bytes }, shapeSize(shape, 4));
    const [all, one] = [SourceCheckpoint.open(whole), SourceCheckpoint.open(cut)];
    assert.equal(openModel(all).blocks.length, 4);
    assert.equal(openModel(one).blocks.length, 1);
    for (const tensorName of one.names()) {
      const bits = typed<Uint16Array>(await one.tensor(tensorName));
      assert.deepEqual(bits, typed<Uint16Array>(await all.tensor(tensorName)), tensorName);
      assert.ok(bits.every((x) => (x & 0x7f80) !== 0x7f80));
      assert.ok(new Set(bits).size > 20, `${tensorName} is nearly constant`);
    }
    all.close();
    one.close();
  }
});

test('a stream has the bytes of the whole, makes shards when they are read, and leaves none', async () => {
  // Shards of one block each, so that they come and go.
  const [shape, options] = [modelShape('tiny'), { blocks: 4, seed: 5, shardBytes: 1e6 }];
  const [whole, dir] = [path.join(root, 'stream-whole'), path.join(root, 'stream')];
  const made = await makeSynthetic(rt, whole, shape, options);
  const all = SourceCheckpoint.open(whole);
  const stream = await streamSynthetic(rt, dir, shape, options);
  assert.deepEqual([stream.bytes, stream.parameters], [made.bytes, made.parameters]);
  const source = SourceCheckpoint.open(dir);
  assert.equal(source.weights.fingerprint(), all.weights.fingerprint());
  assert.deepEqual([...source.names()], [...all.names()]);
  for (const name of [...source.names()].reverse())
    assert.deepEqual(typed(await source.tensor(name)), typed(await all.tensor(name)), name);
  const { shards, bytes, peak } = stream.made();
  assert.ok(shards > 3 && bytes > 3e6 && peak < made.bytes, JSON.stringify(stream.made()));
  source.close();
  all.close();
  await stream.close();
  assert.deepEqual(readdirSync(dir).sort(), ['config.json', 'model.safetensors.index.json']);
  assert.ok(!existsSync(`${dir}.shards`));
});

test('experts are published in MXFP4, whole and streamed, and opened as floats', async () => {
  const shape = modelShape(path.join(ARCHITECTURES, 'gpt_oss', 'config.json'));
  const mxfp4 = { ...shape, config: { ...shape.config, quantization_config: { quant_method: 'mxfp4' } } };
  const options = { blocks: 2, seed: 3 };
  const [whole, dir] = [path.join(root, 'mxfp4'), path.join(root, 'mxfp4-stream')];
  const made = await makeSynthetic(rt, whole, mxfp4, options);
  assert.equal(made.parameters, (await makeSynthetic(rt, path.join(root, 'wide'), shape, options)).parameters);
  const [all, wide] = [SourceCheckpoint.open(whole), SourceCheckpoint.open(path.join(root, 'wide'))];
  const stream = await streamSynthetic(rt, dir, mxfp4, options);
  const source = SourceCheckpoint.open(dir);
  assert.equal(source.weights.fingerprint(), all.weights.fingerprint());
  for (const { tensors } of openModel(all).blocks)
    for (const [name, dims] of tensors) {
      const [own, other] = [await expertSource(all).tensor(name), await expertSource(source).tensor(name)];
      assert.deepEqual([own.shape, own.dtype], [dims, 'bf16'], name);
      assert.deepEqual(typed(own), typed(other), name);
      // The spread of fan-in scale, as that of the weights that are not in MXFP4.
      if (!/experts.*weight/.test(name)) continue;
      const spread = (tensor: typeof own) => {
        const values = typed<Uint16Array>(tensor).map((bits) => bits & 0x7fff);
        return values.sort()[values.length >> 1]! >> 7;
      };
      assert.ok(Math.abs(spread(own) - spread(await wide.tensor(name))) <= 2, name);
    }
  for (const each of [source, all, wide]) each.close();
  await stream.close();
});

test('an equal checkpoint is taken again, another one refused and left alone', async () => {
  const shape = modelShape('tiny');
  const dir = path.join(root, 'again');
  const first = await makeSynthetic(rt, dir, shape, { blocks: 2, seed: 1 });
  assert.ok(first.seconds !== undefined);
  const second = await makeSynthetic(rt, dir, shape, { blocks: 2, seed: 1 });
  assert.deepEqual(second, { ...first, seconds: undefined });
  for (const other of [
    { blocks: 2, seed: 2 },
    { blocks: 1, seed: 1 },
  ])
    await assert.rejects(makeSynthetic(rt, dir, shape, other), designed('LPQ_OUTPUT_EXISTS', dir));
  assert.ok(readFileSync(path.join(dir, 'model.safetensors')).length > first.bytes);
  await removeSynthetic(dir);
  assert.ok((await makeSynthetic(rt, dir, shape, { blocks: 1, seed: 1 })).seconds !== undefined);
});

test('shapes and blocks that do not exist are refused', async () => {
  assert.throws(() => modelShape('llama-9-8b'), designed('LPQ_USAGE', 'llama-3-8b'));
  assert.throws(() => modelShape(path.join(root, 'none.json')), designed('LPQ_FILE', 'none.json'));
  const bad = path.join(root, 'bad.json');
  for (const [text, code] of [
    ['{', 'LPQ_CONFIG'],
    ['[]', 'LPQ_CONFIG'],
    ['{"num_hidden_layers": 4}', 'LPQ_ARCH_UNKNOWN'],
    ['{"model_type": "llama", "num_hidden_layers": "many"}', 'LPQ_CONFIG'],
  ] as const) {
    writeFileSync(bad, text);
    assert.throws(() => modelShape(bad), designed(code, path.dirname(bad)));
  }
  const tiny = modelShape('tiny');
  for (const blocks of [0, 5])
    await assert.rejects(
      makeSynthetic(rt, path.join(root, 'never'), tiny, { blocks, seed: 0 }),
      designed('LPQ_USAGE', '1 to 4'),
    );
  const fp8 = { ...tiny, config: { ...tiny.config, quantization_config: { quant_method: 'fp8' } } };
  assert.throws(() => shapeSize(fp8, 1), designed('LPQ_USAGE', 'no weights of fp8'));
  writeFileSync(bad, JSON.stringify({ ...tiny.config, num_hidden_layers: 7 }));
  assert.equal(modelShape(bad).blocks, 7);
});

test('ids come from the seed or from a file, and are checked against the vocabulary', () => {
  const options = { samples: 3, length: 8, seed: 5, vocab: 100 };
  const drawn = randomIds(options);
  assert.deepEqual(randomIds(options), drawn);
  assert.equal(drawn.tokens, 24);
  assert.ok(drawn.sequences.every((ids) => ids.every((id) => id >= 0 && id < 100)));
  assert.notEqual(randomIds({ ...options, seed: 6 }).sha256, drawn.sha256);
  const file = path.join(root, 'ids.json');
  const write = (value: unknown) => writeFileSync(file, JSON.stringify(value));
  write(Array.from({ length: 20 }, (_, i) => i));
  assert.deepEqual(
    readIds(file, options).sequences.map((ids) => [...ids]),
    [
      [0, 1, 2, 3, 4, 5, 6, 7],
      [8, 9, 10, 11, 12, 13, 14, 15],
    ],
  );
  write([[1, 2], [], [3, 4, 5, 6, 7, 8, 9, 10, 11]]);
  assert.deepEqual(
    readIds(file, options).sequences.map((ids) => [...ids]),
    [
      [1, 2],
      [3, 4, 5, 6, 7, 8, 9, 10],
    ],
  );
  for (const wrong of [[1, 2, 100, 4, 5, 6, 7, 8], [1.5], ['a'], { ids: [] }, [[-1]], [[], []]]) {
    write(wrong);
    assert.throws(() => readIds(file, options), designed('LPQ_CALIBRATION_TEXT', 'ids.json'), JSON.stringify(wrong));
  }
  assert.throws(() => readIds(path.join(root, 'no-ids.json'), options), designed('LPQ_FILE', 'no-ids.json'));
});
