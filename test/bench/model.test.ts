import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { PassThrough } from 'node:stream';
import test from 'node:test';
import { pathToFileURL } from 'node:url';
import { record } from '../../bench/model/record.js';
import { modelBenchSchema } from '../../bench/model/schema.js';
import { modelShape } from '../../bench/shapes.js';
import { createRuntime } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { main } from '../../src/cli/main.js';
import { scratch } from '../formats/scratch.js';
import { f32, typed } from '../native/support.js';
import { ARCHITECTURES, ROOT } from '../src/model/fixtures.js';

async function bench(...args: string[]) {
  const [out, err] = [new PassThrough(), new PassThrough()];
  const text = { stdout: '', stderr: '' };
  out.on('data', (chunk) => {
    text.stdout += chunk;
  });
  err.on('data', (chunk) => {
    text.stderr += chunk;
  });
  const code = await main(['bench', 'model', '--device', 'cpu', ...args], { stdout: out, stderr: err } as never);
  return { code, ...text };
}

test('what is recorded runs later, on tensors that their makers have let go of', async () => {
  const rt = createRuntime(1);
  const { runtime, calls, dispose } = record(rt);
  const x = f32([1, 2], Float32Array.of(1, 2));
  const y = runtime.allocate('f32', [1, 2]);
  y.bytes().fill(0);
  ops.add(runtime, x, x, y);
  const seen = y.view(y.shape);
  for (const tensor of [x, y]) tensor.dispose();
  await rt.sync();
  assert.deepEqual([...typed(seen)], [0, 0]);
  assert.deepEqual(
    calls.map(({ op }) => op),
    ['add'],
  );
  await rt.time(calls, { passes: 1 });
  assert.deepEqual([...typed(seen)], [2, 4]);
  dispose();
});

test('memory of a recorded step is what is held at once, views and what nobody let go of included', () => {
  const rt = createRuntime(1);
  const recorder = record(rt);
  const { runtime } = recorder;
  const a = runtime.allocate('f32', [256]);
  const b = runtime.allocate('f32', [512]);
  assert.equal(recorder.peakBytes, 4 * 768);
  const half = b.view([256], 256);
  b.dispose();
  b.dispose();
  ops.add(runtime, a, half, a);
  a.dispose();
  // Half of b still holds all of it; a is free, though a call to be timed uses it.
  runtime.allocate('u8', [1024]);
  assert.equal(recorder.peakBytes, 4 * 768);
  half.dispose();
  const c = runtime.allocate('u8', [4000]);
  assert.equal(recorder.peakBytes, 5024);
  recorder.dispose();
  assert.throws(() => c.view([4000]).dispose());
});

test('steps of a tiny model: a table, JSON that its schema takes, and tables in Markdown', async () => {
  const dir = scratch();
  const [results, markdown] = ['bench.json', 'bench.md'].map((name) => path.join(dir, name)) as [string, string];
  const ran = await bench(
    ...['--shape', 'tiny', '--blocks', '2', '--m', '1,2', '--context', '40', '--prefill', '16', '--passes', '2'],
    ...['--weights', 'dense', '--results', results, '--markdown', markdown],
  );
  assert.equal(ran.code, 0, ran.stderr);
  assert.match(ran.stdout, /dense +16 +decode +2 +40/);
  const found = modelBenchSchema.parse(JSON.parse(readFileSync(results, 'utf8')));
  assert.deepEqual(
    found.rows.map(({ phase, m, context }) => [phase, m, context]),
    [
      ['prefill', 1, 16],
      ['decode', 1, 40],
      ['decode', 2, 40],
    ],
  );
  const [, one] = found.rows;
  // tiny: hidden 256, MLP 768, 4 heads and 2 kv heads of 64, 4 blocks, 2048 tokens of vocabulary, twice; norms.
  const block = 256 * 256 * 2 + 256 * 128 * 2 + 3 * 256 * 768 + 2 * 256;
  assert.equal(one?.weightBytes, 2 * (4 * block + 2 * 2048 * 256 + 256));
  assert.equal(one?.cacheBytes, 4 * 2 * 40 * 128 * 2);
  // At least the logits; the residual stream f32, what a norm made of it, queries, keys, values and their attention come and go before.
  assert.ok(one!.workBytes >= 4 * 2048 && one!.workBytes < 2 ** 18);
  assert.equal(one?.memoryBytes, one!.weightBytes + one!.cacheBytes + one!.workBytes);
  const named = Object.entries(one!.kernels);
  assert.ok(named.every(([, share], i) => i === 0 || share <= named[i - 1]![1]));
  assert.ok(
    ['linear', 'cached_attention', 'rope_append', 'rmsnorm', 'gated_activation'].every((op) => one!.kernels[op]! > 0),
  );
  assert.ok(Math.abs(one!.kernels.linear! - one!.shares.products) < 1e-9);
  const { products, attention, rest } = one!.shares;
  assert.ok(Math.abs(products + attention + rest - 1) < 1e-9 && products > 0 && attention > 0 && rest > 0);
  const script = pathToFileURL(path.join(ROOT, 'scripts/plot-model.mjs')).href;
  const { plotsOf } = (await import(script)) as {
    plotsOf(file: string, options: { output: string }): { file: string; svg: string }[];
  };
  const [plot, ...others] = plotsOf(results, { output: 'here' });
  assert.equal(plot?.file, 'here-m.svg');
  assert.match(plot?.svg ?? '', />dense KV16 M=2 of 40: [\d,.]+ tokens\/s</);
  assert.deepEqual(others, []);
  const tables = readFileSync(markdown, 'utf8');
  assert.match(
    tables,
    /tiny, 2 of 4 blocks measured.*\| ms to first token \|.*\| dense \| 16 \| decode \| 2 \| 40 \|/s,
  );
  assert.match(tables, /\| dense \| 16 \| decode \| 1 \| 40 \| linear \d+[, ]/);
});

test('weights of every form, multiplied by 16 bits and by codes', async () => {
  const results = path.join(scratch(), 'forms.json');
  const ran = await bench(
    ...['--shape', 'tiny', '--blocks', '1', '--m', '3', '--context', '8', '--prefill', '0', '--passes', '1'],
    ...['--weights', 'f6e3m2,w4ax,w8a8,fp8', '--act-int4-share', '0.5', '--results', results, '--quiet'],
  );
  assert.match(ran.stdout, /f6e3m2 +16 +decode +3 +8/, ran.stderr);
  const { rows, int4Share } = modelBenchSchema.parse(JSON.parse(readFileSync(results, 'utf8')));
  assert.equal(int4Share, 0.5);
  // [n, k] of a block, of which the model has four. Scales of f6e3m2 have 16 bits; w4ax also has 9 bytes for each 128 inputs
  // of q, k and v together, of o, of gate and up together, and of down.
  const linears = [...[256, 128, 128, 256, 768, 768].map((n) => [n, 256] as const), [256, 768] as const];
  const outside = 2 * (4 * 2 * 256 + 2 * 2048 * 256 + 256);
  const sum = (bytes: (n: number, k: number) => number) =>
    outside + 4 * linears.reduce((all, [n, k]) => all + bytes(n, k), 0);
  assert.deepEqual(
    rows.map(({ weights, weightBytes }) => [weights, weightBytes]),
    [
      ['f6e3m2', sum((n, k) => (n * k * 6) / 8 + (2 * n * k) / 128)],
      ['w4ax', sum((n, k) => (n * k) / 2 + (4 * n * k) / 128) + (4 * 13 * (3 * 256 + 768)) / 128],
      ['w8a8', sum((n, k) => n * k + 4 * n)],
      ['fp8', sum((n, k) => n * k + 4 * n)],
    ],
  );
  const rounded = ['gemm_packed', 'quantize_comet', 'quantize_tokens', 'quantize_tokens'] as const;
  for (const [i, op] of rounded.entries()) assert.ok(rows[i]!.kernels[op]! > 0);
});

test('lm_head in a form of its own', async () => {
  const of = async (...head: string[]) => {
    const results = path.join(scratch(), 'head.json');
    const ran = await bench(
      ...['--shape', 'tiny', '--blocks', '1', '--m', '2', '--context', '8', '--prefill', '0', '--passes', '1'],
      ...['--weights', 'dense', '--results', results, '--quiet', ...head],
    );
    assert.equal(ran.code, 0, ran.stderr);
    return modelBenchSchema.parse(JSON.parse(readFileSync(results, 'utf8')));
  };
  const [plain, u4] = [await of(), await of('--head', 'u4')];
  assert.deepEqual([plain.head, u4.head], ['dense', 'u4']);
  // 2048 x 256: 16 bits, or 4 and a scale of 16 for each 128.
  const [wide = 0, packed = 0] = [plain, u4].map(({ rows }) => rows[0]?.weightBytes);
  assert.equal(wide - packed, 2048 * 256 * (2 - 0.5 - 2 / 128));
  assert.ok(u4.rows[0]!.kernels.gemm_packed! > 0);
});

test('all blocks of activations may have 4 bits, or 8', async () => {
  for (const share of ['0', '1']) {
    const ran = await bench(
      ...['--shape', 'tiny', '--blocks', '1', '--m', '1', '--context', '4', '--prefill', '0', '--passes', '1'],
      ...['--weights', 'w4ax', '--act-int4-share', share, '--quiet'],
    );
    assert.match(ran.stdout, /w4ax +16 +decode +1 +4/, ran.stderr);
  }
});

/** Mixtures (one with experts by tokens' ids), layers with a state, indexers, alternating updates, a config with the text's in it. */
for (const name of ['deepseek_v4', 'gemma3n_text', 'minimax_m3_vl_text', 'nemotron_h', 'qwen3_5_moe', 'qwen3_next'])
  test(`steps of ${name}, with random weights`, async (t) => {
    const results = path.join(scratch(), 'bench.json');
    const config = path.join(ARCHITECTURES, name, 'config.json');
    const size = ['--m', '2', '--context', '12', '--prefill', '10', '--weights', 'dense', '--passes', '1'];
    const ran = await bench('--shape', config, ...size, '--results', results);
    assert.equal(ran.code, 0, ran.stderr);
    const { rows, leftOut } = modelBenchSchema.parse(JSON.parse(readFileSync(results, 'utf8')));
    assert.deepEqual([rows.map(({ phase }) => phase), leftOut], [['prefill', 'decode'], []]);
    t.diagnostic(rows.map(({ phase, ms }) => `${phase} ${ms} ms`).join(', '));
  });

test('what cannot be timed is refused', async () => {
  const odd = path.join(scratch(), 'config.json');
  const { config } = modelShape('tiny');
  const sizes = { hidden_size: 192, intermediate_size: 520, num_attention_heads: 3, num_key_value_heads: 3 };
  writeFileSync(odd, JSON.stringify({ ...config, ...sizes }));
  for (const [args, words] of [
    [['--shape', 'none'], /--shape does not take 'none'/],
    [['--shape', 'tiny', '--blocks', '5'], /--blocks does not take 5/],
    [['--shape', 'tiny', '--kv', '3'], /--kv does not take '3'/],
    [['--shape', 'tiny', '--m', '0'], /--m does not take '0'/],
    [['--shape', 'tiny', '--context', '1'], /--context does not take '1'/],
    [['--shape', 'tiny', '--weights', 'u9'], /u9/],
    [['--shape', 'tiny', '--weights', 'u4,'], /--weights names nothing/],
    [['--shape', 'tiny', '--weights', 'w8a8,fp8,w8a8'], /--weights names w8a8 twice/],
    [['--shape', 'tiny', '--act-int4-share', '1.5'], /--act-int4-share does not take 1\.5/],
    [
      ['--shape', odd, '--weights', 'w4ax'],
      /--weights w4ax does not fit .*'model\.layers\.0\.self_attn\.q_proj' has 192 inputs/,
    ],
    [
      ['--shape', odd, '--weights', 'fp8'],
      /--weights fp8 does not fit .*'model\.layers\.0\.mlp\.down_proj' has 520 inputs/,
    ],
    [['--shape', 'tiny', '--kv', '4'], /low-bit KV cache can be timed on a CUDA device only/],
    [['--shape', 'tiny', '--head', 'u4,u3'], /--head does not take 'u4,u3'/],
    [
      ['--shape', 'llama-3.2-1b', '--head', 'u4', '--blocks', '1'],
      /--head u4 does not fit .*: its lm_head is the embedding/,
    ],
  ] as const) {
    const ran = await bench(...args);
    assert.notEqual(ran.code, 0);
    assert.match(ran.stderr, words);
  }
});
