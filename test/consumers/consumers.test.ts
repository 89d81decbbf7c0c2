import assert from 'node:assert/strict';
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { execa } from 'execa';
import { writeSafetensors } from '../../formats/safetensors/write.js';
import { loadMix } from '../../src/calibrate/mix.js';
import { openPrefix } from '../../src/calibrate/prefix.js';
import { openTokenizer } from '../../src/calibrate/tokenizer.js';
import { run } from '../engines/directories.js';
import { CALIB, model, root, text } from '../src/cli/lpq.js';
import { ARCHITECTURES } from '../src/model/fixtures.js';
import { writeDecoded } from './expected.js';
import { isRefused, prepareRefused, type REFUSED } from './refused.js';

/**
 * The programs that lpq packs for, with their own code: transformers validates and loads, compressed-tensors decompresses,
 * gguf-py reads. Their weights are compared with those that lpq's verifier decodes.
 */

const here = path.join(root, 'test', 'consumers');
const python = process.env.LPQ_CONSUMERS_PYTHON ?? path.join(root, 'build', 'consumers', 'bin', 'python');
const skip = existsSync(python)
  ? false
  : `SKIPPED: no Python with transformers (node scripts/consumers.mjs makes ${python}, or set LPQ_CONSUMERS_PYTHON)`;

interface Case {
  readonly name: string;
  /** A folder of make_sources.py, a small checkpoint of an architecture, or the bundled model. */
  readonly source: 'llama' | 'gemma2' | 'mixtral' | 'qwen3_5_moe' | 'deepseek_v3' | 'gpt_oss' | 'gpt2' | 'tiny-llama';
  readonly target: string;
  readonly how: 'config' | 'transformers' | 'gguf' | keyof typeof REFUSED;
  readonly options: readonly string[];
  /** Largest relative difference of a weight: f32 products, unless the reader rounds them to f16 (2^-11) or bf16 (2^-8). */
  readonly bound?: number;
  /** What transformers computes in; float32 unless the reader makes weights of one type only. */
  readonly dtype?: 'bfloat16';
  /** Largest difference of a logit; absent where the reader rounds activations, too. */
  readonly logits?: number;
  /** A recipe's rules. */
  readonly rules?: readonly object[];
  /** An importance matrix of the same text: gguf-py reads it. */
  readonly imatrix?: true;
  /** lpq warns of this reader, which stops, or leaves tensors unread without an error: what load.py says then. */
  readonly defect?: RegExp;
  /** Scales were calibrated: transformers finds them again, with hooks on the unquantized model. */
  readonly ranges?: true;
}

const [HALF, BRAIN] = [2 ** -10, 2 ** -8];
const W4 = ['--bits', '4', '--group-size', '64'];
const compressed = { source: 'llama', target: 'compressed-tensors', how: 'transformers' } as const;

const CASES: readonly Case[] = [
  // Every number of config.json in the type that its class declares.
  ...(['gptq', 'awq', 'marlin'] as const).flatMap((target): Case[] => [
    { name: `gemma2-${target}`, source: 'gemma2', target, how: 'config', options: W4 },
    { name: `mixtral-${target}`, source: 'mixtral', target, how: 'config', options: W4 },
  ]),
  { ...compressed, name: 'bundled', source: 'tiny-llama', options: W4, logits: 1e-3 },
  { ...compressed, name: 'gemma2', source: 'gemma2', options: W4, logits: 1e-3 },
  { ...compressed, name: 'head', options: [...W4, '--lm-head'], logits: 1e-3 },
  { ...compressed, name: 'asym', options: [...W4, '--asym'], logits: 1e-3 },
  { ...compressed, name: 'w3', options: ['--bits', '3', '--group-size', '32', '--scale-dtype', 'bf16'], logits: 1e-3 },
  { ...compressed, name: 'fp8', options: ['--dtype', 'f8e4m3'], logits: 1e-3 },
  { ...compressed, name: 'nvfp4', options: ['--dtype', 'nvfp4'], bound: BRAIN, dtype: 'bfloat16' },
  { ...compressed, name: 'mxfp4', options: ['--dtype', 'mxfp4'], bound: BRAIN, dtype: 'bfloat16' },
  { ...compressed, name: 'mxfp8', options: ['--dtype', 'mxfp8'], dtype: 'bfloat16' },
  {
    ...compressed,
    name: 'w8a8',
    target: 'compressed-tensors-w8a8',
    options: ['--bits', '8', '--group-size', 'channel'],
  },
  { ...compressed, name: 'kv', source: 'gemma2', options: [...W4, '--kv-scales'], ranges: true },
  {
    ...{ ...compressed, name: 'static', target: 'compressed-tensors-w8a8', ranges: true },
    options: ['--dtype', 'f8e4m3', '--input-scales', '--kv-scales'],
  },
  {
    ...{ ...compressed, name: 'w4a8', source: 'tiny-llama', target: 'compressed-tensors-w4a8', ranges: true },
    ...{ options: ['--bits', '4', '--group-size', '128', '--kv-scales'], imatrix: true },
  },
  {
    ...{ ...compressed, name: 'w4a4', target: 'compressed-tensors-w4a4', ranges: true, bound: BRAIN },
    ...{ options: ['--dtype', 'nvfp4', '--input-scales', '--kv-scales'], dtype: 'bfloat16' },
  },
  { ...compressed, name: 'experts', source: 'mixtral', options: W4, bound: HALF },
  // Published in one tensor a block, packed with a name for each: transformers puts them together again. It rounds them to f16, by
  // 2^-11 of their size, through two blocks to logits of up to 4.
  {
    ...{ ...compressed, name: 'fused-experts', source: 'qwen3_5_moe', bound: HALF, logits: 1e-2 },
    options: ['--bits', '4', '--group-size', '32'],
  },
  {
    ...compressed,
    name: 'mixed',
    source: 'mixtral',
    options: W4,
    bound: HALF,
    rules: [{ match: 'self_attn', bits: 8 }],
  },
  // Of latent attention, whose config.json names another number of kv heads than of heads, where there are as many.
  {
    ...{ ...compressed, name: 'latent', source: 'deepseek_v3', bound: HALF, logits: 1e-2 },
    options: ['--bits', '4', '--group-size', '32'],
  },
  {
    ...{ ...compressed, name: 'nvfp4-experts', source: 'mixtral', bound: BRAIN, dtype: 'bfloat16' },
    ...{ options: ['--dtype', 'nvfp4'], defect: /unexpected_keys: .*weight_global_scale/ },
  },
  {
    ...compressed,
    name: 'asym-experts',
    source: 'mixtral',
    options: [...W4, '--asym'],
    defect: /issues during automatic conversion/,
  },
  // What lpq refuses to write, since transformers leaves such experts at random.
  { name: 'gpt-oss', source: 'gpt_oss', target: 'compressed-tensors', how: 'single_experts', options: [] },
  // As little, since it finds no linear of GPT-2 in compressed-tensors, whichever class the groups name.
  { name: 'gpt2', source: 'gpt2', target: 'compressed-tensors', how: 'conv1d', options: [] },
  { name: 'gguf', source: 'tiny-llama', target: 'gguf', how: 'gguf', options: ['--bits', '4', '--group-size', '32'] },
  { name: 'gguf-mxfp4', source: 'tiny-llama', target: 'gguf', how: 'gguf', options: ['--dtype', 'mxfp4'] },
];

/** DIR/NAME as `lpq pack` makes it, and beside it what its readers must find. */
async function prepare(dir: string, given: Case): Promise<string> {
  const { name, source, target, options, rules, how, ranges, imatrix } = given;
  const known = path.join(ARCHITECTURES, source);
  if (isRefused(how)) {
    await prepareRefused(dir, given, how);
    return known;
  }
  const made = path.join(dir, 'sources', source);
  const from = source === 'tiny-llama' ? model : existsSync(made) ? made : known;
  const [quantized, out] = [path.join(dir, `${name}.q`), path.join(dir, name)];
  if (ranges && from === made) copyFileSync(path.join(model, 'tokenizer.json'), path.join(made, 'tokenizer.json'));
  const recipe = path.join(dir, `${name}.json`);
  if (rules) writeFileSync(recipe, JSON.stringify({ rules }));
  const wish = [...options, ...(rules ? ['--recipe', recipe] : []), ...(ranges ? CALIBRATION : [])];
  await run('quantize', from, '-o', quantized, '--method', 'rtn', '--no-report', ...wish);
  await run('pack', quantized, '--target', target, '-o', out);
  if (how !== 'config') await writeDecoded(quantized, out, `${out}.expected.safetensors`);
  if (how === 'transformers')
    await run('logits', out, '--ids', path.join(dir, 'ids.safetensors'), '-o', `${out}.logits.safetensors`);
  rmSync(quantized, { recursive: true });
  const saved = ['--save-stats', `${out}.stats`, '--save-imatrix', `${out}.imatrix.gguf`];
  if (imatrix) await run('quantize', from, ...saved, ...CALIBRATION, '--products', 'f32');
  if (ranges) await writeSequences(from, path.join(dir, `${name}.calibration.safetensors`));
  return from;
}

const [SAMPLES, LENGTH] = [4, 48];
const CALIBRATION = [...CALIB, '--samples', `${SAMPLES}`, '--seq-len', `${LENGTH}`];

/** The sequences that CALIBRATION means for a model: ids I32 [SAMPLES, LENGTH]. */
async function writeSequences(source: string, file: string): Promise<void> {
  const { sequences } = await loadMix([{ file: text, weight: 1 }], await openTokenizer(source), {
    ...{ samples: SAMPLES, length: LENGTH, seed: 0, join: false, prefix: openPrefix(source, 'auto').ids },
    ...{ prefixConversations: false, chat: () => assert.fail('no conversation') },
  });
  const data = Int32Array.from(sequences.flatMap((each) => [...each]));
  await writeSafetensors(file, [{ name: 'ids', dtype: 'I32', shape: [sequences.length, LENGTH], data }]);
}

interface Result {
  readonly name: string;
  readonly problems: readonly string[];
  readonly weights: number;
  readonly relative: number;
  readonly logits?: number;
  readonly scales?: number;
  readonly scale?: number;
  readonly squares?: number;
}

test("transformers, compressed-tensors and gguf-py read lpq's outputs: configs validate, each weight is the one that was packed", {
  skip,
}, async (t) => {
  const dir = mkdtempSync(path.join(tmpdir(), 'lpq-consumers-'));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  mkdirSync(path.join(dir, 'sources'));
  const environment = { OMP_NUM_THREADS: '2', OMP_WAIT_POLICY: 'passive', HF_HUB_OFFLINE: '1' };
  await execa(python, [path.join(here, 'make_sources.py'), path.join(dir, 'sources')], { env: environment });
  const data = Int32Array.from({ length: 32 }, (_, i) => i + 3);
  await writeSafetensors(path.join(dir, 'ids.safetensors'), [
    { name: 'input_ids', dtype: 'I32', shape: [1, 32], data },
  ]);
  const listed: object[] = [];
  for (const each of CASES) {
    const { name, how, dtype = 'float32', ranges } = each;
    const source = await prepare(dir, each);
    listed.push({ name, how, dtype, ...(ranges && { source }) });
  }
  writeFileSync(path.join(dir, 'cases.json'), JSON.stringify(listed));
  const { stdout } = await execa(python, [path.join(here, 'load.py'), dir], { env: environment });
  const results = new Map(
    stdout
      .split('\n')
      .filter((line) => line.startsWith('{'))
      .map((line) => JSON.parse(line) as Result)
      .map((result) => [result.name, result]),
  );
  for (const { name, how, bound = 1e-6, logits, dtype, ranges, imatrix, defect } of CASES)
    await t.test(name, () => {
      const result = results.get(name);
      assert.ok(result, `load.py says nothing of ${name}`);
      if (defect) {
        assert.match(result.problems.join('\n'), defect);
        return;
      }
      assert.deepEqual(result.problems, []);
      if (how === 'config' || isRefused(how)) return;
      assert.ok(result.weights > 0, 'no weight was compared');
      assert.ok(result.relative <= bound, `a weight is ${result.relative} of its size away`);
      if (ranges) {
        assert.ok((result.scales ?? 0) > 0, 'no scale was compared');
        // fp32 on both sides, sums in another order through up to four blocks; a reader in bf16 rounds scales by 2^-9.
        const far = dtype === 'bfloat16' ? 2 ** -8 : 1e-4;
        assert.ok((result.scale as number) <= far, `a scale is ${result.scale} of its size away`);
      }
      // fp32 on both sides: squares of numbers that are 1e-5 off after four blocks, summed in another order.
      if (imatrix) assert.ok((result.squares as number) <= 1e-4, `a sum of squares is ${result.squares} away`);
      // fp32 on both sides: sums in another order, through two or four blocks.
      if (logits !== undefined) assert.ok((result.logits as number) <= logits, `a logit is ${result.logits} away`);
    });
});
