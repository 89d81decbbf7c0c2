import assert from 'node:assert/strict';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { SourceCheckpoint } from '../../../formats/canonical/source.js';
import { GgufFile } from '../../../formats/gguf/read.js';
import { createRuntime, typed } from '../../../native/binding.js';
import { artifactSource } from '../../../src/artifact/open.js';
import { openTokenizer } from '../../../src/calibrate/tokenizer.js';
import { logitsOf } from '../../../src/eval/logits.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { sampled } from '../../sample.js';
import { lpq, model, root } from '../cli/lpq.js';
import { SHARED, writeWidened } from '../model/fixtures.js';
import { decodeMatrix } from './gguf-blocks.js';
import { BYTES, ggmlBlocks, inFloats, type LlamaModel, llamaLogits, openLlama } from './llama-cpp.js';

const runtime = createRuntime(2);
const VOCAB = 2048;
const TOKENS = 160;

/** A way to make each type of block that lpq writes. */
const TYPES: readonly (readonly [type: string, target: string, quantize: readonly string[]])[] = [
  ['q4_0', 'gguf', ['--bits', '4', '--group-size', '32']],
  ['q4_1', 'gguf', ['--bits', '4', '--asym', '--group-size', '32']],
  ['q5_0', 'gguf', ['--bits', '5', '--group-size', '64']],
  ['q5_1', 'gguf', ['--bits', '5', '--asym', '--group-size', '128']],
  ['q8_0', 'gguf', ['--bits', '8', '--group-size', 'channel']],
  ['mxfp4', 'gguf', ['--dtype', 'mxfp4']],
  ['q2_k', 'gguf-q2_k', ['--bits', '8', '--group-size', '32']],
  ['q3_k', 'gguf-q3_k', ['--bits', '8', '--group-size', '32']],
  ['q4_k', 'gguf-q4_k', ['--bits', '8', '--group-size', '32']],
  ['q5_k', 'gguf-q5_k', ['--bits', '8', '--group-size', '32']],
  ['q6_k', 'gguf-q6_k', ['--bits', '8', '--group-size', '32']],
];
const DRAWN = sampled('types of blocks in llama.cpp', TYPES, 3);

async function run(...args: string[]): Promise<void> {
  const { code, stderr } = await lpq(args);
  assert.equal(code, 0, stderr);
}

// Every packed directory is made once for all tests.
const dir = mkdtempSync(path.join(os.tmpdir(), 'lpq-llama-'));
after(() => rmSync(dir, { recursive: true, force: true }));

/** Quantizes by rounding (each scheme once for all types that take it) and packs; the directory. */
async function packed(name: string, target: string, quantize: readonly string[], from = model): Promise<string> {
  const output = path.join(dir, name);
  if (existsSync(output)) return output;
  const canonical = path.join(dir, `${path.basename(from)} ${quantize.join(' ')}`);
  if (!existsSync(canonical)) await run('quantize', from, '-o', canonical, '--method', 'rtn', ...quantize);
  const source = target.startsWith('gguf-') ? ['--source', from] : [];
  await run('pack', canonical, '--target', target, '-o', output, ...source);
  const { failures } = await verifyArtifact({ dir: output, against: canonical, source: source[1], runtime });
  assert.deepEqual(failures, []);
  return output;
}

interface Score {
  readonly loss: number;
  readonly shares: Float64Array;
}

/** -log p of the token that comes next, on average over all but the last, and the probabilities [T, V]. */
function score(logits: Float32Array, ids: readonly number[]): Score {
  const shares = new Float64Array(logits.length);
  let loss = 0;
  for (const row of ids.keys()) {
    const at = logits.subarray(row * VOCAB, (row + 1) * VOCAB);
    const most = at.reduce((a, b) => Math.max(a, b));
    const total = at.reduce((sum, logit) => sum + Math.exp(logit - most), 0);
    for (const [i, logit] of at.entries()) shares[row * VOCAB + i] = Math.exp(logit - most) / total;
    if (row + 1 < ids.length) loss -= Math.log(shares[row * VOCAB + ids[row + 1]!]!) / (ids.length - 1);
  }
  return { loss, shares };
}

/** The mean over tokens of half the sum of |p - q|. */
function variation(a: Float64Array, b: Float64Array): number {
  return a.reduce((sum, share, i) => sum + Math.abs(share - b[i]!), 0) / 2 / (a.length / VOCAB);
}

async function ours(dir: string, ids: readonly number[]): Promise<Float32Array> {
  const source = artifactSource(dir, runtime);
  const logits = await logitsOf(runtime, source, { ids: Int32Array.from(ids), shape: [1, ids.length] });
  const values = typed<Float32Array>(logits).slice();
  logits.dispose();
  source.close();
  return values;
}

const text = readFileSync(path.join(root, 'share', 'text', 'books-valid.txt'), 'utf8').slice(2000, 4000);

test("llama.cpp's own reader gives every block of ours the value that the tests' decoder gives it", async (t) => {
  const ggml = ggmlBlocks(t, dir);
  if (!ggml) return;
  for (const [type, target, quantize] of DRAWN) {
    const file = path.join(await packed(type, target, quantize), 'model.gguf');
    const gguf = GgufFile.open(file);
    const seen = new Set<string>();
    for (const name of ['blk.0.attn_q.weight', 'blk.3.ffn_down.weight', 'blk.1.attn_v.weight', 'token_embd.weight']) {
      const { type: stored, rows, columns } = gguf.matrix(name);
      seen.add(stored.name);
      const bytes = gguf.tensor(name).bytes();
      const theirs: Float32Array = new Float32Array(ggml(['read', stored.name], bytes).buffer);
      assert.deepEqual(theirs, decodeMatrix(stored.name, bytes, rows, columns), `${name} of ${type}`);
    }
    assert.ok(seen.has(type), `${type}: ${[...seen]}`);
    gguf.close();
  }
});

test("our searches leave no more error than llama.cpp's own, without its matrix of importance", async (t) => {
  const ggml = ggmlBlocks(t, dir);
  if (!ggml) return;
  const source = SourceCheckpoint.open(model);
  for (const [type, target, quantize] of DRAWN.filter(([, to]) => to !== 'gguf')) {
    const gguf = GgufFile.open(path.join(await packed(type, target, quantize), 'model.gguf'));
    for (const [name, from] of [
      ['blk.2.ffn_up.weight', 'model.layers.2.mlp.up_proj.weight'],
      ['blk.1.ffn_down.weight', 'model.layers.1.mlp.down_proj.weight'],
    ] as const) {
      const bf16 = typed<Uint16Array>(await source.tensor(from));
      const weights = new Float32Array(Uint32Array.from(bf16, (bits) => bits << 16).buffer);
      const { rows, columns } = gguf.matrix(name);
      const error = (bytes: Uint8Array): number => {
        const values = decodeMatrix(type, bytes, rows, columns);
        return weights.reduce((sum, weight, i) => sum + (weight - values[i]!) ** 2, 0);
      };
      const theirs = error(ggml(['write', type, String(columns)], new Uint8Array(weights.buffer)));
      const own = error(gguf.tensor(name).bytes());
      t.diagnostic(`${type} ${name}: ${(own / theirs).toFixed(4)} of llama.cpp's squared error`);
      assert.ok(own <= theirs, `${type} ${name}: ${own} and ${theirs}`);
    }
    gguf.close();
  }
  source.close();
});

test('llama.cpp loads every type of block and computes what we compute', async (t) => {
  const llama = await openLlama(t);
  if (!llama) return;
  for (const [type, target, quantize] of DRAWN) {
    const output = await packed(type, target, quantize);
    const loaded: LlamaModel = await llama.loadModel({ modelPath: path.join(output, 'model.gguf') });
    const ids = loaded.tokenize(text).slice(0, TOKENS);
    const theirs: Score = score(await llamaLogits(loaded, ids, VOCAB), ids);
    await loaded.dispose();
    const own = score(await ours(output, ids), ids);
    const apart = variation(theirs.shares, own.shares);
    t.diagnostic(
      `${type}: loss ${own.loss.toFixed(4)}, llama.cpp's ${theirs.loss.toFixed(4)}, apart ${apart.toFixed(5)}`,
    );
    // Where weights are blocks, llama.cpp rounds the inputs of each linear to 8 bits: blocks of 32, or of 256 for K types,
    // a step of max/127, so an error of 0.29 * max/rms/127, about 0.7 (32) to 1.0 (256) % of each input's size, which is also
    // that of each output. The 8 branches add up to 2 to 3 % of the stream, and of logits some 2 wide: 0.04 to 0.06 each,
    // of which a distribution moves by less than half. Wrong rows, signs or zero points move a third of it or more.
    assert.ok(apart < 0.03, `${type}: ${apart}`);
    assert.ok(Math.abs(theirs.loss - own.loss) < 0.03, `${type}: ${own.loss} and ${theirs.loss}`);
  }
});

test('the same file with its blocks decoded to f32 gives our logits in llama.cpp to f32 rounding', async (t) => {
  const llama = await openLlama(t);
  if (!llama) return;
  for (const [type, target, quantize] of DRAWN.filter(
    ([each]) => each === 'q4_0' || each === 'q5_1' || each === 'mxfp4' || each === 'q3_k',
  )) {
    const output = await packed(type, target, quantize);
    const plain = path.join(dir, `${type}.gguf`);
    await inFloats(path.join(output, 'model.gguf'), plain);
    const loaded: LlamaModel = await llama.loadModel({ modelPath: plain });
    const ids = loaded.tokenize(text).slice(0, TOKENS);
    const theirs = await llamaLogits(loaded, ids, VOCAB);
    await loaded.dispose();
    const own = await ours(output, ids);
    const most = own.reduce((max, logit, i) => Math.max(max, Math.abs(logit - theirs[i]!)), 0);
    t.diagnostic(`${type}: logits at most ${most} apart`);
    // Sums of up to 768 products in another order: 768 * 2^-24 of their absolute sum at worst, and its square root in
    // practice, 2e-6, over 4 blocks with logits up to 20: some 1e-4. llama.cpp turns positions by repeated products in f32
    // (160 positions * 32 roundings), which adds as much again.
    assert.ok(most < 1e-3, `${type}: ${most}`);
  }
});

test('llama.cpp reads the tokenizer as we do, and a mixture of experts', async (t) => {
  const llama = await openLlama(t);
  if (!llama) return;
  const output = await packed('q4_0', 'gguf', ['--bits', '4', '--group-size', '32']);
  const loaded: LlamaModel = await llama.loadModel({ modelPath: path.join(output, 'model.gguf') });
  const encode = await openTokenizer(model);
  const checked = text.replace(/\s+$/, '');
  assert.deepEqual(loaded.tokenize(checked), [...(await encode(checked))]);
  await loaded.dispose();
  const from = path.join(SHARED, 'models', 'tiny-qwen3-moe');
  if (!existsSync(from)) {
    t.diagnostic(`SKIPPED the mixture: ${from} is absent`);
    return;
  }
  const moe = await packed('moe', 'gguf', ['--bits', '8', '--group-size', '32'], from);
  const mixture: LlamaModel = await llama.loadModel({ modelPath: path.join(moe, 'model.gguf') });
  const ids = mixture.tokenize(text).slice(0, TOKENS);
  const theirs = score(await llamaLogits(mixture, ids, VOCAB), ids);
  await mixture.dispose();
  const own = score(await ours(moe, ids), ids);
  const apart = variation(theirs.shares, own.shares);
  t.diagnostic(
    `mixture: loss ${own.loss.toFixed(4)}, llama.cpp's ${theirs.loss.toFixed(4)}, apart ${apart.toFixed(5)}`,
  );
  // As above; a token whose second and third expert are nearly equal may go another way.
  assert.ok(apart < 0.05 && Math.abs(theirs.loss - own.loss) < 0.05, `${apart}, ${own.loss}, ${theirs.loss}`);
});

/** Tiny random models of the kinds that GGUF has a table for, with a tokenizer of single bytes. */
const KINDS = [
  'llama',
  'llama3-rope',
  'llama-yarn-bias',
  'mistral-window',
  'mixtral',
  'qwen2',
  'qwen2_moe',
  'qwen3',
  'qwen3_moe',
];

for (const kind of sampled('kinds of models in llama.cpp', KINDS, 3))
  test(`llama.cpp computes ${kind} as we do`, async (t) => {
    const llama = await openLlama(t);
    if (!llama) return;
    const from = path.join(dir, kind);
    await writeWidened(kind, from, { vocab_size: 320 });
    writeFileSync(path.join(from, 'tokenizer.json'), JSON.stringify(BYTES));
    const config = JSON.parse(readFileSync(path.join(from, 'config.json'), 'utf8'));
    const output = await packed(`${kind} gguf`, 'gguf', ['--bits', '8', '--group-size', '32'], from);
    const plain = path.join(dir, `${kind}.gguf`);
    await inFloats(path.join(output, 'model.gguf'), plain);
    const loaded: LlamaModel = await llama.loadModel({ modelPath: plain });
    // llama.cpp applies no window to this kind, as lpq says when it packs: up to the window both are the same.
    const ids = Array.from({ length: config.sliding_window || 100 }, (_, i) => 3 + ((i * 37 + 11) % 250));
    const theirs = await llamaLogits(loaded, ids, config.vocab_size);
    await loaded.dispose();
    const own = await ours(output, ids);
    assert.equal(own.length, theirs.length);
    const most = own.reduce((max, logit, i) => Math.max(max, Math.abs(logit - theirs[i]!)), 0);
    t.diagnostic(`${kind}: logits at most ${most} apart`);
    assert.ok(most < 1e-3, `${kind}: ${most}`);
  });
