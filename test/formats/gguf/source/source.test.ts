import assert from 'node:assert/strict';
import { copyFileSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { SourceCheckpoint } from '../../../../formats/canonical/source.js';
import type { GgufValue } from '../../../../formats/gguf/metadata.js';
import { ggufDirectory, ggufFiles } from '../../../../formats/gguf/source/directory.js';
import { GgufTensors } from '../../../../formats/gguf/source/tensors.js';
import { createRuntime, typed } from '../../../../native/binding.js';
import { artifactSource } from '../../../../src/artifact/open.js';
import { openModel } from '../../../../src/model/graph.js';
import { lpq, model } from '../../../src/cli/lpq.js';
import { designed, scratch } from '../../scratch.js';
import { EMBEDDING, madeIn, NORM, number, type Part, text } from './made.js';

const dir = scratch();
let files = 0;
const made = (
  keys: Readonly<Record<string, GgufValue | undefined>>,
  parts: readonly Part[],
  name = `made-${files++}.gguf`,
): string => madeIn(dir, keys, parts, name);

const refused = (file: string, message: RegExp, code = 'LPQ_GGUF'): void =>
  assert.throws(() => ggufDirectory(ggufFiles(file) as string[]), designed(code, message), String(message));

test('a file that breaks a rule of the format is refused, naming it', () => {
  const whole = readFileSync(made({}, [EMBEDDING, NORM]));
  const changed = (edit: (bytes: Buffer) => Buffer | undefined): string => {
    const bytes = Buffer.from(whole);
    const file = path.join(dir, `changed-${files++}.gguf`);
    writeFileSync(file, edit(bytes) ?? bytes);
    return file;
  };
  refused(
    changed((b) => void b.write('GGML')),
    /does not start with GGUF/,
  );
  refused(
    changed((b) => void b.writeUInt32LE(1, 4)),
    /version is not 2 or 3.*got 1/,
  );
  refused(
    changed((b) => void b.writeBigUInt64LE(2n ** 40n, 8)),
    /claims 1099511627776 tensors/,
  );
  refused(
    changed((b) => void b.writeBigUInt64LE(2n ** 63n, 16)),
    /too large for any file/,
  );
  refused(
    changed((b) => b.subarray(0, 100)),
    /ends inside its header/,
  );
  refused(
    changed((b) => b.subarray(0, b.length - 400)),
    /reaches beyond the end of the file.*truncated/,
  );
  refused(made({}, [EMBEDDING, { ...NORM, offset: 0 }]), /'output_norm.weight' overlaps/);
  refused(made({}, [{ ...EMBEDDING, offset: 8 }]), /is not aligned/);
  refused(made({}, [EMBEDDING, EMBEDDING]), /'token_embd.weight' appears twice/);
  refused(made({}, [{ ...EMBEDDING, type: 99 }]), /type that lpq does not read.*got type 99/);
  refused(made({}, [{ ...EMBEDDING, type: 15 }]), /got Q8_K \(type 15\)/);
  refused(made({}, [{ ...EMBEDDING, type: 8 }]), /not whole blocks of Q8_0/);
});

test('a model that the metadata does not describe, or describes as something else, is refused', () => {
  const without = (key: string, message: RegExp) => refused(made({ [key]: undefined }, [EMBEDDING]), message);
  without('general.architecture', /'general.architecture' is missing/);
  without('llama.embedding_length', /'llama.embedding_length' is missing/);
  without('llama.attention.layer_norm_rms_epsilon', /layer_norm_rms_epsilon' is missing/);
  refused(made({ 'general.architecture': text('rwkv7') }, [EMBEDDING]), /got rwkv7.*qwen3moe/, 'LPQ_ARCH_UNKNOWN');
  refused(made({ 'general.architecture': text('constructor') }, [EMBEDDING]), /got constructor/, 'LPQ_ARCH_UNKNOWN');
  refused(made({}, [NORM]), /'token_embd.weight' is missing/);
  refused(made({}, [{ ...EMBEDDING, dims: [4, 8] }]), /not as wide as the metadata says/);
  refused(made({}, [EMBEDDING, { name: 'blk.0.ssm_in.weight', dims: [8] }]), /'blk.0.ssm_in.weight' has no place/);
  refused(made({}, [EMBEDDING, { name: 'blk.0.attn_q.scale', dims: [1] }]), /has no place in a model of type llama/);
  refused(made({ 'llama.attention.head_count': number(3) }, [EMBEDDING]), /heads do not divide/);
  refused(made({ 'llama.rope.scaling.type': text('odd') }, [EMBEDDING]), /stretches positions.*got odd/);
  const rope = { name: 'rope_freqs.weight', dims: [2] };
  refused(made({}, [EMBEDDING, rope]), /'rope_freqs.weight' stretches positions/);
  const tokens = (list: readonly string[]): GgufValue => ({ type: 'strings', value: list });
  refused(
    made({ 'tokenizer.ggml.tokens': tokens(['a', 'b', 'c', 'd', 'e']) }, [EMBEDDING]),
    /tokens, their types and the rows.*got 5 tokens/,
  );
  const bpe = { 'tokenizer.ggml.model': text('gpt2'), 'tokenizer.ggml.tokens': tokens(['a', 'b']) };
  refused(made({ ...bpe, 'tokenizer.ggml.pre': text('gpt-2') }, [EMBEDDING]), /'tokenizer.ggml.merges' is missing/);
  refused(made({ ...bpe, 'tokenizer.ggml.model': text('llama') }, [EMBEDDING]), /tokens have no scores/);
  const { notes } = ggufDirectory([made({ ...bpe, 'tokenizer.ggml.pre': text('odd') }, [EMBEDDING])]);
  assert.match(notes.join(), /no tokenizer of this file \(gpt2, pre-tokenizer 'odd'\)/);
});

test('what the graph needs and the file lacks is named as in a checkpoint', () => {
  const source = SourceCheckpoint.open(
    ggufDirectory([made({ 'llama.block_count': number(1) }, [EMBEDDING, NORM])]).dir,
  );
  assert.throws(() => openModel(source), designed('LPQ_TENSOR_MISSING', /model\.layers\.0\./));
  source.close();
});

test('parts of a model are read together, whichever is named', async () => {
  const split = (no: number, count = 2): Record<string, GgufValue> => ({
    'split.no': number(no),
    'split.count': number(count),
    'split.tensors.count': number(2),
  });
  const first = made(split(0), [EMBEDDING], 'parts/m-00001-of-00002.gguf');
  assert.throws(() => ggufFiles(first), designed('LPQ_GGUF', /parts of it are missing.*m-00002-of-00002/));
  const second = made(split(1), [NORM], 'parts/m-00002-of-00002.gguf');
  for (const place of [first, second, path.dirname(first)]) {
    const tensors = GgufTensors.open(ggufFiles(place) as string[]);
    assert.deepEqual([...tensors.names()], ['model.embed_tokens.weight', 'model.norm.weight']);
    assert.deepEqual([...typed<Float32Array>(tensors.tensor('model.norm.weight'))], [0, 1, 2, 3, 4, 5, 6, 7]);
    assert.match(tensors.fingerprint(), /^[0-9a-f]{64}$/);
    tensors.close();
  }
  renameSync(second, `${second}.other`);
  copyFileSync(first, second);
  refused(first, /not the part of the model.*got part 1 of 2/);
});

test('a directory is a model in GGUF where it holds one, and no safetensors', () => {
  const one = path.dirname(made({}, [EMBEDDING], 'one/a.gguf'));
  assert.deepEqual(ggufFiles(one), [path.join(one, 'a.gguf')]);
  made({}, [EMBEDDING], 'one/mmproj-a.gguf');
  assert.deepEqual(ggufFiles(one), [path.join(one, 'a.gguf')]);
  made({}, [EMBEDDING], 'one/b.gguf');
  assert.throws(() => ggufFiles(one), designed('LPQ_GGUF', /it holds several.*a\.gguf, b\.gguf/));
  writeFileSync(path.join(one, 'model.safetensors'), '');
  assert.equal(ggufFiles(one), undefined);
  assert.equal(ggufFiles(path.join(dir, 'nowhere')), undefined);
});

test('what lpq packed for GGUF is a source: the weights of the artifact, quantized from the file alone', async () => {
  const [quantized, packed] = [path.join(dir, 'quantized'), path.join(dir, 'packed')];
  const run = async (...args: string[]) => {
    const ran = await lpq(args);
    assert.equal(ran.code, 0, ran.stderr);
    return ran.stdout;
  };
  const rtn = ['--method', 'rtn', '--no-report'];
  await run('quantize', model, '-o', quantized, '--bits', '4', '--group-size', '32', ...rtn);
  await run('pack', quantized, '--target', 'gguf', '-o', packed);
  const file = path.join(dir, 'tiny.Q4_0.gguf');
  copyFileSync(path.join(packed, 'model.gguf'), file);
  const rt = createRuntime(1);
  const artifact = artifactSource(packed, rt);
  const source = SourceCheckpoint.open(ggufDirectory([file]).dir);
  for (const name of source.names()) {
    if (!artifact.has(name)) continue;
    const [own, theirs] = [await source.tensor(name), await artifact.tensor(name)];
    // Codes times an f16 scale are exact in f32, and so is what Q6_K holds but for one rounding.
    assert.deepEqual(typed(own), typed(theirs), name);
  }
  source.close();
  artifact.close();
  assert.match(await run('inspect', file), /source checkpoint in GGUF[\s\S]*tiny\.Q4_0\.gguf[\s\S]*Q4_0 28/);
  assert.match(await run('doctor', file), /nothing is wrong/);
  const out = path.join(dir, 'out');
  await run('quantize', file, '-o', out, '--bits', '4', ...rtn);
  assert.match(await run('inspect', out), /model\.layers\.3\.self_attn\.v_proj +i4/);
  const original = JSON.parse(readFileSync(path.join(model, 'config.json'), 'utf8')) as Record<string, unknown>;
  const config = JSON.parse(readFileSync(path.join(out, 'config.json'), 'utf8')) as Record<string, unknown>;
  for (const key of [
    'vocab_size',
    'hidden_size',
    'num_hidden_layers',
    'num_key_value_heads',
    'rms_norm_eps',
    'eos_token_id',
  ])
    assert.deepEqual(config[key], original[key], key);
  assert.match(await run('generate', out, '--prompt', 'The', '--max-tokens', '2'), /\S/);
});

test('what is told of a model in GGUF names the file that the user gave', async () => {
  const file = made({ 'llama.block_count': number(1) }, [EMBEDDING, NORM]);
  for (const json of [[], ['--json']]) {
    const ran = await lpq(['quantize', file, '-o', `${file}.out`, '--bits', '4', '--method', 'rtn', ...json]);
    const told = ran.stdout + ran.stderr;
    assert.match(told, /LPQ_TENSOR_MISSING/);
    assert.ok(told.includes(`${file} lacks the tensor`), told);
    assert.ok(!told.includes('lpq-gguf-'), told);
  }
});
