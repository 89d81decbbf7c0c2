import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { CanonicalSource, SourceCheckpoint } from '../../../formats/canonical/source.js';
import { GgufFile } from '../../../formats/gguf/read.js';
import { createRuntime, type Tensor, typed } from '../../../native/binding.js';
import { artifactSource } from '../../../src/artifact/open.js';
import { planPack } from '../../../src/pack/plan.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { lpq, model, scratch } from '../cli/lpq.js';
import { ARCHITECTURES } from '../model/fixtures.js';
import { decodeMatrix, half } from './gguf-blocks.js';

const runtime = createRuntime(2);

async function run(...args: string[]): Promise<string> {
  const { code, stdout, stderr } = await lpq(args);
  assert.equal(code, 0, stderr);
  return stdout;
}

/** Quantizes by rounding and packs; the directories. */
async function packed(
  t: TestContext,
  target: string,
  quantize: readonly string[],
  more: readonly string[] = [],
  from = model,
) {
  const dir = scratch(t);
  const [canonical, output] = [path.join(dir, 'q'), path.join(dir, 'g')];
  await run('quantize', from, '-o', canonical, '--method', 'rtn', ...quantize);
  await run('pack', canonical, '--target', target, '-o', output, ...more);
  for (const against of [undefined, canonical]) {
    const { failures } = await verifyArtifact({ dir: output, against, runtime });
    assert.deepEqual(failures, []);
  }
  return { canonical, output, file: path.join(output, 'model.gguf') };
}

/** Floats of a plain tensor, whatever its dtype. */
function floats(tensor: Tensor): number[] {
  if (tensor.dtype === 'f32') return [...typed<Float32Array>(tensor)];
  const bits = typed<Uint16Array>(tensor);
  if (tensor.dtype === 'f16') return Array.from(bits, half);
  return [...new Float32Array(Uint32Array.from(bits, (b) => b << 16).buffer)];
}

/** The file's rows of q and k are interleaved by heads of 64 in the bundled model. */
function unpermuted(values: readonly number[], columns: number): number[] {
  const out: number[] = [];
  for (let row = 0; row < values.length / columns; row++) {
    const [head, within] = [Math.floor(row / 64), row % 64];
    const stored = head * 64 + (within % 32) * 2 + Math.floor(within / 32);
    out.push(...values.slice(stored * columns, (stored + 1) * columns));
  }
  return out;
}

const HF: Readonly<Record<string, string>> = {
  attn_q: 'self_attn.q_proj',
  attn_k: 'self_attn.k_proj',
  attn_v: 'self_attn.v_proj',
  attn_output: 'self_attn.o_proj',
  ffn_gate: 'mlp.gate_proj',
  ffn_up: 'mlp.up_proj',
  ffn_down: 'mlp.down_proj',
};

test('every weight of a packed model is the quantized one, read by a decoder of the test', async (t) => {
  const { canonical, file, output } = await packed(t, 'gguf', ['--bits', '4', '--group-size', '64']);
  const source = CanonicalSource.open(canonical, runtime);
  const gguf = GgufFile.open(file);
  let linears = 0;
  for (const name of gguf.names()) {
    const [, layer, part] = /^blk\.(\d+)\.(\w+)\.weight$/.exec(name) ?? [];
    const { type, rows, columns } = gguf.matrix(name);
    if (part === undefined || !HF[part]) continue;
    linears++;
    assert.equal(type.name, 'q4_0');
    const values = [...decodeMatrix('q4_0', gguf.tensor(name).bytes(), rows, columns)];
    const expected = floats(await source.tensor(`model.layers.${layer}.${HF[part]}.weight`));
    const ordered = part === 'attn_q' || part === 'attn_k' ? unpermuted(values, columns) : values;
    // Both are one product of a whole number and an f16 scale, rounded to f32 at most once.
    assert.deepEqual(ordered, expected, name);
  }
  assert.equal(linears, 28);
  // The tied embedding has the type that llama.cpp gives the output; norms are f32.
  assert.deepEqual(
    ['token_embd.weight', 'output_norm.weight', 'blk.0.attn_norm.weight'].map((name) => gguf.matrix(name).type.name),
    ['q6_k', 'f32', 'f32'],
  );
  assert.equal(gguf.has('output.weight'), false);
  assert.deepEqual(
    floats(gguf.tensor('blk.3.ffn_norm.weight')),
    floats(await source.tensor('model.layers.3.post_attention_layernorm.weight')),
  );
  const evaluated = artifactSource(output, runtime);
  assert.deepEqual(
    floats(await evaluated.tensor('model.layers.0.self_attn.k_proj.weight')),
    floats(await source.tensor('model.layers.0.self_attn.k_proj.weight')),
  );
  for (const each of [source, gguf, evaluated]) each.close();
});

test('the container: header, metadata, tokenizer and the files beside it', async (t) => {
  const { file, output } = await packed(t, 'gguf', ['--bits', '8', '--group-size', '32']);
  const bytes = readFileSync(file);
  assert.equal(bytes.toString('latin1', 0, 4), 'GGUF');
  assert.equal(bytes.readUInt32LE(4), 3);
  assert.equal(bytes.length % 32, 0);
  const gguf = GgufFile.open(file);
  assert.equal(bytes.readBigUInt64LE(8), BigInt(gguf.names().length));
  assert.equal(bytes.readBigUInt64LE(16), BigInt(gguf.metadata.size));
  for (const name of gguf.names()) assert.equal(gguf.matrix(name).position % 32, 0);
  const value = (key: string) => gguf.metadata.get(key)?.value;
  assert.deepEqual(
    ['architecture', 'file_type', 'quantization_version'].map((key) => value(`general.${key}`)),
    ['llama', 7, 2],
  );
  const numbers = {
    'llama.block_count': 4,
    'llama.context_length': 1024,
    'llama.embedding_length': 256,
    'llama.feed_forward_length': 768,
    'llama.attention.head_count': 4,
    'llama.attention.head_count_kv': 2,
    'llama.rope.dimension_count': 64,
    'llama.rope.freq_base': 10_000,
    'llama.attention.layer_norm_rms_epsilon': Math.fround(1e-5),
    'llama.vocab_size': 2048,
    'tokenizer.ggml.bos_token_id': 1,
    'tokenizer.ggml.eos_token_id': 2,
    'tokenizer.ggml.padding_token_id': 0,
  };
  for (const [key, expected] of Object.entries(numbers)) assert.equal(value(key), expected, key);
  const tokenizer = JSON.parse(readFileSync(path.join(model, 'tokenizer.json'), 'utf8'));
  const tokens = value('tokenizer.ggml.tokens') as string[];
  for (const [token, id] of Object.entries(tokenizer.model.vocab)) assert.equal(tokens[id as number], token);
  assert.deepEqual(
    value('tokenizer.ggml.merges'),
    tokenizer.model.merges.map((pair: string[]) => pair.join(' ')),
  );
  assert.deepEqual((value('tokenizer.ggml.token_type') as number[]).slice(0, 4), [3, 3, 3, 1]);
  assert.deepEqual([value('tokenizer.ggml.model'), value('tokenizer.ggml.pre')], ['gpt2', 'gpt-2']);
  gguf.close();
  for (const name of ['tokenizer.json', 'tokenizer_config.json', 'generation_config.json'])
    assert.deepEqual(readFileSync(path.join(output, name)), readFileSync(path.join(model, name)));
  const config = JSON.parse(readFileSync(path.join(output, 'config.json'), 'utf8'));
  assert.deepEqual(config, JSON.parse(readFileSync(path.join(model, 'config.json'), 'utf8')));
});

test('searched types take the source where it is given, and say so', async (t) => {
  const dir = scratch(t);
  const canonical = path.join(dir, 'q');
  await run('quantize', model, '-o', canonical, '--method', 'rtn', '--bits', '3', '--group-size', '64');
  const errors: number[] = [];
  for (const [name, more] of [
    ['own', []],
    ['source', ['--source', model]],
  ] as const) {
    const output = path.join(dir, name);
    await run('pack', canonical, '--target', 'gguf-q5_k', '-o', output, ...more);
    const { failures } = await verifyArtifact({ dir: output, against: canonical, runtime });
    assert.deepEqual(failures, []);
    const { modules } = JSON.parse(readFileSync(path.join(output, 'lpq.json'), 'utf8'));
    const entry = modules['model.layers.0.mlp.up_proj'];
    assert.equal(entry.layout, 'gguf-q5_k');
    assert.match(entry.notes[0], name === 'own' ? /from the quantized weights/ : /from the source/);
    // How far the blocks are from the source, by the verifier's decoder.
    const packedSource = artifactSource(output, runtime);
    const got = floats(await packedSource.tensor('model.layers.0.mlp.up_proj.weight'));
    const original = SourceCheckpoint.open(model);
    const expected = floats(await original.tensor('model.layers.0.mlp.up_proj.weight'));
    const square = (values: readonly number[]) => values.reduce((sum, value) => sum + value * value, 0);
    errors.push(square(expected.map((value, i) => value - got[i]!)) / square(expected));
    packedSource.close();
    original.close();
  }
  assert.ok(errors[1]! < errors[0]! / 5, String(errors));
  const wrong = await lpq(['pack', canonical, '--target', 'gguf', '-o', path.join(dir, 'no'), '--source', model]);
  assert.equal(wrong.code, 2);
  assert.match(wrong.stderr, /LPQ_USAGE.*--source has no effect with target gguf/s);
});

test('what has no grid of GGUF is refused or left, with the reason', async (t) => {
  const dir = scratch(t);
  const cases: [string[], RegExp][] = [
    [['--bits', '4', '--group-size', '16'], /groups of 16 are not a multiple of GGUF's 32/],
    [['--bits', '6', '--asym', '--group-size', '32'], /no asymmetric codes of 6 bits/],
    [['--dtype', 'nvfp4'], /f4e2m1/],
    [['--bits', '4', '--scale-dtype', 'bf16'], /scales are bf16, and GGUF has f16 scales/],
  ];
  for (const [i, [options, reason]] of cases.entries()) {
    const canonical = path.join(dir, `q${i}`);
    await run('quantize', model, '-o', canonical, '--method', 'rtn', ...options);
    const checkpoint = CanonicalCheckpoint.open(canonical);
    const { refusal } = planPack(checkpoint, 'gguf');
    assert.equal(refusal?.code, 'LPQ_TARGET');
    assert.match(`${refusal?.message}`, reason);
    // A searched type takes any of them.
    assert.equal(planPack(checkpoint, 'gguf-q4_k').refusal, undefined);
    checkpoint.close();
  }
});

test('a damaged file is found, wherever the damage is', async (t) => {
  const { file, output, canonical } = await packed(t, 'gguf', ['--bits', '4', '--asym', '--group-size', '32']);
  const before = readFileSync(file);
  const gguf = GgufFile.open(file);
  const block = gguf.matrix('blk.1.attn_q.weight').position;
  const norm = gguf.matrix('blk.1.attn_norm.weight').position;
  gguf.close();
  const places: [string, number, string[]][] = [
    ['a scale', block + 1, ['files', 'tensors', 'canonical']],
    ['a minimum', block + 2, ['files', 'tensors']],
    ['a code', block + 9, ['files', 'tensors', 'canonical']],
    ['a norm', norm + 2, ['files', 'carried', 'against']],
    ['a key', before.indexOf('llama.block_count') + 'llama.block_count'.length + 4, ['files', 'config']],
  ];
  for (const [what, place, checks] of places) {
    const bytes = Buffer.from(before);
    bytes[place] = bytes[place]! ^ 4;
    writeFileSync(file, bytes);
    const { failures } = await verifyArtifact({ dir: output, against: canonical, runtime });
    for (const check of checks)
      assert.ok(
        failures.some((failure) => failure.check === check),
        `${what}: ${check}`,
      );
  }
  writeFileSync(file, before);
});

test('malformed files end in LPQ_ARTIFACT', async (t) => {
  const { file } = await packed(t, 'gguf', ['--bits', '4', '--group-size', '32']);
  const whole = readFileSync(file);
  const change = (edit: (bytes: Buffer) => Buffer | undefined): void => {
    const bytes = Buffer.from(whole);
    writeFileSync(file, edit(bytes) ?? bytes);
  };
  const dims = whole.indexOf('blk.0.attn_q.weight') + 'blk.0.attn_q.weight'.length;
  const wrong: [RegExp, (bytes: Buffer) => Buffer | undefined][] = [
    [/does not start with GGUF/, (b) => void b.writeUInt8(0, 0)],
    [/version is not 3/, (b) => void b.writeUInt32LE(2, 4)],
    [/claims \d+ tensors/, (b) => void b.writeBigUInt64LE(2n ** 40n, 8)],
    [/too large for any file/, (b) => void b.writeBigUInt64LE(2n ** 63n, 16)],
    [/ends inside its header/, (b) => b.subarray(0, 200)],
    [/reaches beyond the end of the file/, (b) => b.subarray(0, b.length - 64)],
    [/has 9 dimensions/, (b) => void b.writeUInt32LE(9, dims)],
    [/not whole blocks/, (b) => void b.writeBigUInt64LE(33n, dims + 4)],
    [/type that lpq does not read/, (b) => void b.writeUInt32LE(99, dims + 20)],
    [/is not aligned/, (b) => void b.writeBigUInt64LE(b.readBigUInt64LE(dims + 24) + 1n, dims + 24)],
    [/overlaps|reaches beyond/, (b) => void b.writeBigUInt64LE(2n ** 30n, dims + 12)],
  ];
  for (const [message, edit] of wrong) {
    change(edit);
    assert.throws(
      () => GgufFile.open(file),
      (error: unknown) => (error as { code: string }).code === 'LPQ_ARTIFACT' && message.test((error as Error).message),
      String(message),
    );
  }
});

test('experts become slices of one tensor', async (t) => {
  const from = path.join(ARCHITECTURES, 'qwen3_moe');
  const { canonical, file } = await packed(t, 'gguf', ['--bits', '4', '--group-size', '32'], [], from);
  const gguf = GgufFile.open(file);
  const source = CanonicalSource.open(canonical, runtime);
  for (const expert of [0, 3]) {
    const name = `blk.1.ffn_down_exps.weight[${expert}]`;
    const { rows, columns } = gguf.matrix(name);
    const expected = floats(await source.tensor(`model.layers.1.mlp.experts.${expert}.down_proj.weight`));
    assert.deepEqual([...decodeMatrix('q4_0', gguf.tensor(name).bytes(), rows, columns)], expected);
  }
  assert.equal(gguf.matrix('blk.0.ffn_gate_inp.weight').type.name, 'f32');
  assert.equal(gguf.metadata.get('qwen3moe.expert_used_count')?.value, 2);
  for (const each of [gguf, source]) each.close();
});
