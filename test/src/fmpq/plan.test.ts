import assert from 'node:assert/strict';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { CanonicalSource, SourceCheckpoint } from '../../../formats/canonical/source.js';
import { SafetensorsWriter } from '../../../formats/safetensors/write.js';
import { allocate, createRuntime, readTyped, type Tensor, typed } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import type { Calibration } from '../../../src/calibrate/text.js';
import { LpqError } from '../../../src/core/error.js';
import { logitsOf } from '../../../src/eval/logits.js';
import { FMPQ_DEFAULTS, type FmpqOptions } from '../../../src/fmpq/options.js';
import { type FmpqPlan, planFmpq } from '../../../src/fmpq/plan.js';
import { fmpqQuantizer } from '../../../src/fmpq/quantizer.js';
import { makeBatch } from '../../../src/model/batch.js';
import { embedBatches, loadOuter } from '../../../src/model/forward.js';
import { openModel } from '../../../src/model/graph.js';
import { loadWeights } from '../../../src/model/weights.js';
import { planQuantization } from '../../../src/quantize/plan.js';
import type { Quantizer } from '../../../src/quantize/quantizer.js';
import { roundWeight } from '../../../src/quantize/round.js';
import { quantizeCheckpoint } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { expectClose, Random } from '../../native/support.js';
import { injectOutliers } from './outliers.js';

const rt = createRuntime(2);
const tiny = path.join(shareDirectory(), 'tiny-llama');
const work = mkdtempSync(path.join(tmpdir(), 'lpq-fmpq-test-'));
after(() => rmSync(work, { recursive: true, force: true }));

const random = new Random(3);
const sequences = Array.from({ length: 4 }, () => Int32Array.from({ length: 64 }, () => random.integer(1, 2047)));
const calibration: Calibration = {
  ...{
    name: 'made',
    sha256: '0'.repeat(64),
    seed: 0,
    length: 64,
    kind: 'windows',
    sequences,
    tokens: 256,
    available: 4,
  },
};
const grid = { ids: sequences[0] as Int32Array, shape: [1, 64] as const };
const scheme = schemeFromOptions({ bits: 4, groupSize: 128 });

/** tiny-llama with outliers, made once. */
const injected = path.join(work, 'injected', 'tiny-llama');
const channels = await injectOutliers(tiny, injected, { factor: 64, share: 0.02 });

async function planned(dir: string, options: Partial<FmpqOptions>): Promise<FmpqPlan> {
  const source = SourceCheckpoint.open(dir);
  try {
    const graph = openModel(source);
    const schemes = planQuantization(graph, { scheme, rules: [], lmHead: false });
    return await planFmpq(rt, source, graph, schemes, sequences, { ...FMPQ_DEFAULTS, rows: 256, scale: 0, ...options });
  } finally {
    source.close();
  }
}

/** Rounds to nearest, and keeps the diagonal of every Hessian that it is given. */
function watching(diagonals: Map<string, Float64Array>): Quantizer {
  return {
    method: 'rtn',
    statistics: true,
    original: false,
    options: {},
    feed: (on, statistics) => ({
      async solve(name, weight, wanted) {
        const { h } = statistics as { h: Tensor };
        const diagonal = on.allocate('f64', [h.shape[0] as number]);
        ops.diagonal(on, h, diagonal);
        diagonals.set(name, await readTyped<Float64Array>(on, diagonal));
        diagonal.dispose();
        return roundWeight(on, weight, wanted, name);
      },
      dispose() {},
    }),
  };
}

async function quantized(
  dir: string,
  plan: FmpqPlan,
  name: string,
  kv?: { bits: number; group: number },
  text = calibration,
) {
  const diagonals = new Map<string, Float64Array>();
  const output = path.join(work, name);
  await quantizeCheckpoint([rt], {
    source: dir,
    output,
    scheme,
    rules: [],
    quantizer: fmpqQuantizer(watching(diagonals), FMPQ_DEFAULTS, plan),
    calibration: text,
    rewrite: plan.rewrite,
    activations: plan.forms,
    ...(kv && { kv }),
    lmHead: false,
    options: {},
    version: 'test',
  });
  return { output, diagonals };
}

test('injected outliers change no logit', async () => {
  assert.equal(channels.length, 5);
  const [before, after] = [SourceCheckpoint.open(tiny), SourceCheckpoint.open(injected)];
  const want = typed(await logitsOf(rt, before, grid)).slice();
  const got = typed(await logitsOf(rt, after, grid));
  // A power of two leaves every product as it is.
  assert.deepEqual([...got], [...want]);
  for (const source of [before, after]) source.close();
});

test('the stream is folded so that the outliers of all norms share a block; the model computes the same', async () => {
  const plan = await planned(injected, { share: 0.75 });
  assert.equal(plan.sites.find(({ site }) => site === 'residual')?.done, 'folded');
  const source = SourceCheckpoint.open(injected);
  for (const layer of [0, 3]) {
    const name = `model.layers.${layer}.post_attention_layernorm.weight`;
    const sizes = (tensor: Tensor) => [...typed<Uint16Array>(tensor)].map((bits) => bits & 0x7fff);
    const moved = sizes(plan.rewrite(name, source.weights.tensor(name)));
    const largest = [...sizes(source.weights.tensor(name))].sort((a, b) => b - a)[4] as number;
    const places = moved.flatMap((size, i) => (size >= largest ? [i >> 7] : []));
    assert.equal(new Set(places).size, 1, `the outliers of ${name} lie in blocks ${places}`);
  }
  assert.ok(plan.share.macs >= 0.75 && plan.error.chosen < plan.error.all4 / 2);
  const again = await planned(injected, { share: 0.75 });
  assert.equal(again.sha256, plan.sha256);
  source.close();
});

test('powers of two take injected outliers back, and touch no other channel of the norms', async () => {
  const options = { share: 0.75, scale: 0.5, search: 'none' } as const;
  const [before, after] = [await planned(tiny, options), await planned(injected, options)];
  assert.ok(after.scaled >= before.scaled + 8, `${after.scaled} sites, ${before.scaled} without outliers`);
  // Channels come down to the median's balance, from which they stood a little apart before: their own steps change.
  assert.ok(
    Math.abs(after.error.chosen / before.error.chosen - 1) < 0.1,
    `${after.error.chosen}, ${before.error.chosen}`,
  );
  const source = SourceCheckpoint.open(injected);
  for (const name of ['input_layernorm', 'post_attention_layernorm'].map((norm) => `model.layers.1.${norm}.weight`)) {
    const was = typed<Uint16Array>(source.weights.tensor(name));
    const now = typed<Uint16Array>(after.rewrite(name, source.weights.tensor(name)));
    const changed = [...was.keys()].filter((c) => was[c] !== now[c]);
    for (const channel of channels) assert.ok(changed.includes(channel), `${name} [${channel}]`);
    for (const channel of changed) assert.equal((was[channel] as number) & 0x7f, (now[channel] as number) & 0x7f);
  }
  source.close();
});

/** The grid of ops.quantizeActivations, in JavaScript: x as a linear reads it. */
function read(
  x: Float32Array,
  k: number,
  bits: Uint8Array,
  clip: Float32Array,
  order: Int32Array | undefined,
): Float32Array {
  const y = new Float32Array(x.length);
  for (let at = 0; at < x.length; at += 128) {
    const row = Math.floor(at / k) * k;
    const block = (at - row) / 128;
    const values = Array.from({ length: 128 }, (_, i) => x[row + (order?.[at - row + i] ?? at - row + i)] as number);
    const top = bits[block] === 4 ? 7 : 127;
    const scale = Math.fround(Math.max(...values.map(Math.abs)) * Math.fround((clip[block] as number) / top));
    const inverse = Math.fround(1 / scale);
    values.forEach((value, i) => {
      const code = Math.max(-top, Math.min(top, Math.fround(value * inverse)));
      const low = Math.floor(code);
      const even = code - low === 0.5 ? low + (low % 2 === 0 ? 0 : 1) : Math.round(code);
      y[at + i] = Math.fround(even * scale);
    });
  }
  return y;
}

/** A copy with a tensor that the graph does not use, as wide as the stream. */
async function withStray(from: string, to: string): Promise<void> {
  mkdirSync(to, { recursive: true });
  for (const file of ['config.json', 'tokenizer.json', 'tokenizer_config.json'])
    cpSync(path.join(from, file), path.join(to, file));
  const source = SourceCheckpoint.open(from);
  const extra = { name: 'model.layers.4.eh_proj.weight', dtype: 'F32', shape: [2, 256] } as const;
  const names = [...source.names()];
  const writer = await SafetensorsWriter.create(to, [...names.map((name) => source.weights.spec(name)), extra]);
  for (const name of names) await writer.write(name, source.weights.tensor(name));
  const zeros = allocate('f32', extra.shape);
  ops.zero(rt, zeros);
  await rt.sync();
  await writer.write(extra.name, zeros);
  await writer.finish();
  source.close();
}

test('where a fold is refused the permutation is stored, and read back; Hessians are those of the codes', async () => {
  const dir = path.join(work, 'stray', 'tiny-llama');
  await withStray(injected, dir);
  const plan = await planned(dir, { share: 0.75 });
  const residual = plan.sites.find(({ site }) => site === 'residual');
  assert.equal(residual?.done, 'kept');
  assert.match(residual?.reason ?? '', /eh_proj.*256/);
  const q = 'model.layers.0.self_attn.q_proj';
  const form = plan.forms.get(q);
  assert.ok(form?.order && form.blocks, 'the input of q is gathered');
  assert.equal(plan.forms.get('model.layers.0.self_attn.k_proj')?.order, form.order);
  const { output, diagonals } = await quantized(dir, plan, 'gathered');

  // What q reads of the first batch, in plain JavaScript from the unquantized model.
  const source = SourceCheckpoint.open(dir);
  const graph = openModel(source);
  const block = graph.blocks[0];
  assert.ok(block);
  const outer = await loadOuter(rt, source, graph);
  const weights = await loadWeights(rt, source, block.tensors.keys());
  const [state] = embedBatches(rt, graph, outer, [makeBatch(rt, sequences)]);
  assert.ok(state);
  const captured = await block.stages[0]?.capture(rt, weights, state);
  const x = await readTyped(rt, captured?.get('qkv') as Tensor);
  const codes = read(x, 256, form.blocks.bits, form.blocks.clip, form.order);
  const want = new Float64Array(256);
  codes.forEach((value, i) => {
    want[i % 256] = (want[i % 256] as number) + value * value;
  });
  // Sums of 256 squares in f32, at most 2^-24 each.
  expectClose('diagonal', diagonals.get(q) as Float64Array, want, (i) => (want[i] as number) * 2 ** -14);

  // The same linear of the finished checkpoint: in integers, and with its dequantized weight in the order of the source.
  const made = CanonicalSource.open(output, rt);
  assert.equal(made.checkpoint.module(q).permutation, true);
  const mixed = await made.mixed(`${q}.weight`);
  assert.ok(mixed);
  assert.deepEqual(mixed.form.order, form.order);
  assert.deepEqual(mixed.form.blocks, form.blocks);
  const weight = typed(await made.tensor(`${q}.weight`));
  const original = await readTyped(rt, weights.get(`${q}.weight`) as Tensor).catch(() => new Float32Array());
  assert.equal(weight.length, 256 * 256);
  assert.ok(original.length > 0);
  const loaded = await loadWeights(rt, made, [`${q}.weight`]);
  const { applyLinear } = await import('../../../src/model/weights.js');
  const rows = allocate('f32', [256, 256]);
  typed(rows).set(x);
  const y = await readTyped(rt, applyLinear(rt, loaded, { name: q, n: 256, k: 256, bias: false }, rows));
  for (let t = 0; t < 256; t += 37)
    for (let n = 0; n < 256; n++) {
      let [sum, size] = [0, 0];
      for (let j = 0; j < 256; j++) {
        const product = (codes[t * 256 + j] as number) * (weight[n * 256 + (form.order[j] as number)] as number);
        sum += product;
        size += Math.abs(product);
      }
      // Codes and scales are exact in both; what differs is rounding scale * code and two sums.
      assert.ok(Math.abs((y[t * 256 + n] as number) - sum) <= size * 2 ** -21, `[${t}][${n}]`);
    }
  made.close();
  source.close();

  // Fewer rows than the Hessian needs: the module falls back to rounding, and keeps its gather.
  const short = { ...calibration, sequences: [sequences[0]?.slice(0, 16) as Int32Array], tokens: 16 };
  const rounded = CanonicalSource.open((await quantized(dir, plan, 'few', undefined, short)).output, rt);
  assert.match(rounded.checkpoint.module(q).quality?.note ?? '', /only 16/);
  assert.equal(rounded.checkpoint.module(q).permutation, true);
  rounded.close();
});

test('4 bits everywhere without an order, against FMPQ, on the model with outliers; KV4 joins in', async () => {
  const source = SourceCheckpoint.open(injected);
  const want = typed(await logitsOf(rt, source, grid)).slice();
  source.close();
  const power = want.reduce((sum, value) => sum + value * value, 0);
  const error = async (options: Partial<FmpqOptions>, name: string, kv?: { bits: number; group: number }) => {
    const { output } = await quantized(injected, await planned(injected, options), name, kv);
    const made = CanonicalSource.open(output, rt);
    const got = typed(await logitsOf(rt, made, grid));
    made.close();
    return got.reduce((sum, value, i) => sum + (value - (want[i] as number)) ** 2, 0) / power;
  };
  const plain = await error({ share: 1, search: 'none', gather: false, clip: false }, 'plain4');
  const fmpq = await error({ share: 0.75 }, 'fmpq');
  const cached = await error({ share: 0.75 }, 'fmpq-kv', { bits: 4, group: 64 });
  const balanced = await error({ share: 0.75, scale: 0.5 }, 'balanced');
  assert.ok(balanced < fmpq / 2, `balanced ${balanced}, permuted only ${fmpq}`);
  assert.ok(fmpq < plain / 4, `FMPQ ${fmpq}, W4A4 ${plain}`);
  assert.ok(cached !== fmpq && cached < plain / 3, `with KV4 ${cached}`);
});

test('a run that stops and goes on gives the bytes of one that did not', async () => {
  const plan = await planned(injected, { share: 0.75, search: 'absmax' });
  const request = (name: string) => ({
    ...{ source: injected, output: path.join(work, name), scheme, rules: [], calibration },
    quantizer: fmpqQuantizer(watching(new Map()), FMPQ_DEFAULTS, plan),
    ...{ rewrite: plan.rewrite, activations: plan.forms, kv: { bits: 4, group: 64 } },
    ...{ lmHead: false, options: {}, version: 'test' },
  });
  const stop = (block: number) => {
    if (block === 2) throw new Error('stopped');
  };
  await quantizeCheckpoint([rt], request('whole'));
  await assert.rejects(quantizeCheckpoint([rt], request('resumed'), { onStage: stop }), /stopped/);
  let kept = 0;
  const onResume = ({ blocks }: { blocks: number }) => {
    kept = blocks;
  };
  await quantizeCheckpoint([rt], { ...request('resumed'), partial: 'resume' }, { onResume });
  assert.ok(kept > 0, 'nothing was resumed');
  const manifest = (name: string) => readFileSync(path.join(work, name, 'lpq.json'), 'utf8');
  assert.equal(manifest('resumed'), manifest('whole'));
});

test('modules that cannot be multiplied in W4Ax are refused by name', async () => {
  const source = SourceCheckpoint.open(tiny);
  const graph = openModel(source);
  const refusal = async (options: Parameters<typeof schemeFromOptions>[0], code: string, fragment: RegExp) => {
    const other = schemeFromOptions(options);
    const schemes = planQuantization(graph, { scheme: other, rules: [], lmHead: false });
    await assert.rejects(
      planFmpq(rt, source, graph, schemes, sequences, FMPQ_DEFAULTS),
      (error) => error instanceof LpqError && error.code === code && fragment.test(`${error.message} ${error.got}`),
    );
  };
  await refusal({ bits: 4, groupSize: 64 }, 'LPQ_USAGE', /layers\.0\.self_attn\.q_proj.*64/);
  await refusal({ bits: 4, groupSize: 'channel' }, 'LPQ_USAGE', /q_proj.*channel/);
  await refusal({ bits: 4, asym: true, groupSize: 128 }, 'LPQ_USAGE', /symmetric/);
  await refusal({ dtype: 'f4e2m1', groupSize: 128 }, 'LPQ_USAGE', /integers.*f4e2m1/);
  source.close();
});
