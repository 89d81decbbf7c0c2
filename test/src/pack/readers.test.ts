import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { createRuntime } from '../../../native/binding.js';
import { ARCHITECTURES } from '../../../src/model/architectures/index.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { planPack } from '../../../src/pack/plan.js';
import { rolesOf } from '../../../src/pack/roles.js';
import { PACK_TARGETS } from '../../../src/pack/targets/index.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { designed, scratch } from '../../formats/scratch.js';
import { ROOT } from '../model/fixtures.js';
import { checkpointOf, type Made, made } from './checkpoint.js';

/** What programs that read a format by the names in it need to be told, or must never be given. */

const runtime = createRuntime(2);
const asym = { kind: 'int', dtype: 'u8' } as const;
const BY_NAME = PACK_TARGETS.filter(({ byName }) => byName).map(({ name }) => name);

/** `verified`: false of a head that the verifier cannot place, for it needs the sizes of the model to make a graph. */
async function configOf(
  target: string,
  modules: Record<string, Made>,
  config?: Record<string, unknown>,
  verified = true,
) {
  const dir = scratch();
  const input = await checkpointOf(dir, 'quantized', modules, config);
  const output = path.join(dir, 'packed');
  await packCheckpoint({ input, target, output, runtime });
  if (verified) {
    const report = await verifyArtifact({ dir: output, opened: input, runtime });
    assert.ok(report.ok, JSON.stringify(report.failures));
  }
  return JSON.parse(readFileSync(path.join(output, 'config.json'), 'utf8')).quantization_config;
}

test('a quantized head is announced in the way of each format, whatever the architecture calls it; a plain one is not', async () => {
  const module = (seed: number) => made({ type: 'i4', n: 64, k: 64, group: 32, seed });
  for (const [head, config] of [
    ['lm_head', undefined],
    ['embed_out', { model_type: 'gpt_neox', architectures: ['GPTNeoXForCausalLM'] }],
    ['language_model.lm_head', undefined],
  ] as const) {
    const known = head === 'lm_head';
    const [plain, whole] = [{ 'l.0.q': module(1) }, { 'l.0.q': module(1), [head]: module(2) }];
    for (const target of ['gptq', 'awq']) {
      assert.equal((await configOf(target, whole, config, known)).lm_head, true, `${target} ${head}`);
      assert.notEqual((await configOf(target, plain, config, known)).lm_head, true, `${target} ${head}`);
    }
    const targets = async (modules: Record<string, Made>) =>
      (await configOf('compressed-tensors', modules, config, known)).config_groups.group_0.targets;
    assert.deepEqual(await targets(whole), ['Linear', head]);
    assert.deepEqual(await targets(plain), ['Linear']);
  }
});

test('every group of compressed-tensors names its format, and groups of experts are regular expressions that speak of them', async () => {
  const moe = { model_type: 'qwen3_moe', architectures: ['Qwen3MoeForCausalLM'] };
  const expert = 'model.layers.0.mlp.experts.0.up_proj';
  const mixed = await configOf(
    'compressed-tensors',
    {
      'model.layers.0.self_attn.q_proj': made({ type: 'i8', n: 64, k: 64, group: 32 }),
      [expert]: made({ type: 'i4', n: 64, k: 64, group: 32 }),
    },
    moe,
  );
  const groups = Object.values(mixed.config_groups) as { format: string; targets: string[] }[];
  assert.deepEqual(
    groups.map(({ format, targets }) => [format, targets]),
    [
      ['pack-quantized', [`re:^${expert.replaceAll('.', '\\.')}$`]],
      ['pack-quantized', ['model.layers.0.self_attn.q_proj']],
    ],
  );
});

test('weights of a class that is no Linear are refused where readers look for that class alone', async () => {
  const dir = scratch();
  const conv = made({ type: 'i4', n: 64, k: 64, group: 32, transposed: true });
  const input = await checkpointOf(dir, 'conv', { 'transformer.h.0.attn.c_attn': conv }, { model_type: 'gpt2' });
  for (const target of BY_NAME) {
    const { refusal } = planPack(input, target);
    if (target.startsWith('gptq')) assert.equal(refusal, undefined, target);
    else designed('LPQ_TARGET', /its class is not Linear.*Pack it for gptq/s)(refusal);
  }
});

test('every architecture whose experts have no names of their own is refused by every target that names modules, and by no other', async () => {
  const one = { 'model.layers.0.self_attn.q_proj': made({ type: 'i4', n: 64, k: 64, group: 32 }) };
  for (const { modelType, className, experts, text } of ARCHITECTURES) {
    // Of models that may have experts, one that has; layers of multi-token prediction are told by the number of blocks.
    const enabled = { num_hidden_layers: 1, ...(experts?.enabled && { [experts.enabled.key]: true }) };
    const config = {
      ...{ model_type: modelType, architectures: [className] },
      ...(text ? { [text.key]: { model_type: text.modelType, ...enabled } } : enabled),
    };
    const fused = (experts?.fused ?? []).length > 0 && !experts?.named;
    assert.equal(rolesOf(config, []).fusedExperts, fused);
    const input = await checkpointOf(scratch(), modelType, one, config);
    for (const target of ['gptq', 'awq', 'compressed-tensors']) {
      const { refusal } = planPack(input, target);
      if (fused) designed('LPQ_TARGET', /no names for the experts/)(refusal);
      else assert.equal(refusal, undefined, `${target} ${modelType}`);
    }
    assert.equal(planPack(input, 'marlin').refusal, undefined);
  }
});

test('bf16 scales go into f16 tensors where each is an f16 number, and nowhere else', async () => {
  const module = (scales: readonly number[]) => {
    const one = made({ type: 'i4', n: 8, k: 32, group: 32, scaleDtype: 'bf16' });
    (one.data.scales as Uint16Array).set(scales);
    return one;
  };
  // 2^-17 times 1.9921875 has its last bit at 2^-24; half of that, and 2^16, are no f16.
  const fits = [0x3727, 0x377f, 0xb77f, 0x3f80, 0x477f, 0x3380, 0x0000, 0x3d01];
  for (const target of ['gptq', 'awq'] as const) {
    await configOf(target, { 'l.0.q': module(fits) });
    for (const bits of [0x36ff, 0x4780, 0x3300]) {
      const input = await checkpointOf(scratch(), 'wide', { 'l.0.q': module([...fits.slice(1), bits]) });
      designed('LPQ_TARGET', /some of its bf16 scales are not exact in f16/)(planPack(input, target).refusal);
    }
  }
});

test('what a reader makes of the artifact is told before it is written, and docs/who-loads-what.md says the same', async () => {
  const moe = { model_type: 'qwen3_moe', architectures: ['Qwen3MoeForCausalLM'], dtype: 'bfloat16' };
  const dir = scratch();
  const expert = 'model.layers.0.mlp.experts.0.up_proj';
  const said = new Set<string>();
  let cases = 0;
  const notes = async (target: string, name: string, options: Parameters<typeof made>[0], config: object = moe) => {
    const module = made(options);
    if (options.scaleDtype === 'bf16') (module.data.scales as Uint16Array).fill(0x3d01);
    const input = await checkpointOf(dir, String(cases++), { [name]: module }, { ...config });
    const { notes: told, refusal } = planPack(input, target);
    assert.equal(refusal, undefined);
    for (const note of told) said.add(note);
    return told.join('\n');
  };
  const int = { type: 'i4', n: 64, k: 64, group: 32, scaleDtype: 'bf16' } as const;
  const signed = { ...int, type: 'u4', zeros: asym } as const;
  assert.equal(await notes('gptq', 'l.q', int), '');
  assert.equal(await notes('compressed-tensors', expert, int), '');
  assert.match(await notes('gptq', 'l.q', signed), /vLLM refuses asymmetric GPTQ[\s\S]*LMDeploy adds 1/);
  assert.match(await notes('gptq', 'l.q', { ...int, type: 'i3' }), /GPTQ in 4 and 8 bits/);
  assert.match(await notes('awq', expert, int), /does not read experts/);
  assert.match(await notes('compressed-tensors', 'l.q', { ...signed, type: 'u3' }), /zero points in 4 and 8 bits/);
  assert.match(await notes('compressed-tensors', expert, signed), /zero points of experts/);
  assert.match(await notes('compressed-tensors', expert, { ...int, extras: ['g_idx'] }), /ignores g_idx/);
  const nvfp4 = { type: 'f4e2m1', n: 64, k: 64, group: 16, scaleDtype: 'f8_e4m3', global: true } as const;
  assert.match(await notes('compressed-tensors', expert, nvfp4), /second level/);
  const fp8 = { type: 'f8e4m3', n: 64, k: 64, scaleDtype: 'bf16' } as const;
  assert.match(await notes('compressed-tensors', expert, fp8), /compressed-tensors-w8a8/);
  assert.equal(await notes('compressed-tensors-w8a8', expert, fp8), '');
  assert.match(await notes('modelopt', expert, fp8), /compressed-tensors-w8a8/);
  assert.match(
    await notes('compressed-tensors-w8a8', expert, { type: 'i8', n: 64, k: 64, scaleDtype: 'bf16' }),
    /INT8 experts/,
  );
  assert.match(await notes('gptq', 'l.q', { ...int, scaleDtype: 'f16' }), /--scale-dtype bf16/);
  const seeing = { model_type: 'qwen3_vl_moe', architectures: ['Qwen3VLMoeForConditionalGeneration'] };
  const inside = 'model.language_model.layers.0.mlp.experts.0.up_proj';
  assert.match(await notes('compressed-tensors', inside, int, seeing), /at random without an error/);

  const text = readFileSync(path.join(ROOT, 'docs/who-loads-what.md'), 'utf8').replace(/\s+/g, ' ');
  for (const { says } of PACK_TARGETS.flatMap(({ limits = [] }) => limits)) {
    assert.ok(said.has(says), `no case above provokes: ${says}`);
    assert.ok(text.includes(says), `docs/who-loads-what.md does not say: ${says}`);
  }
});
