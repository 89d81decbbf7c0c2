import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { createRuntime, typed } from '../../../native/binding.js';
import type { LpqError } from '../../../src/core/error.js';
import { GPTQ_DEFAULTS } from '../../../src/gptq/options.js';
import { gptqQuantizer } from '../../../src/gptq/quantizer.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { planPack } from '../../../src/pack/plan.js';
import { PACK_TARGETS } from '../../../src/pack/targets/index.js';
import type { Quantizer } from '../../../src/quantize/quantizer.js';
import { quantizeCheckpoint } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { rtnQuantizer } from '../../../src/rtn/quantizer.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { scratch } from '../../formats/scratch.js';
import { PlainFile, writeWidened } from '../model/fixtures.js';

/** Layers of multi-token prediction through packing: quantized with --mtp, else carried, and declared as vLLM looks them up. */

const runtime = createRuntime(2);
const SEQUENCES = Array.from({ length: 8 }, (_, s) =>
  Int32Array.from({ length: 40 }, (_, i) => Math.floor(Math.abs(Math.sin((s + 1) * 97 + i * i)) * 64)),
);
const CALIBRATION = {
  name: 'made',
  sha256: '0'.repeat(64),
  seed: 0,
  length: 40,
  kind: 'windows',
  available: 8,
  tokens: 320,
  sequences: SEQUENCES,
} as const;

interface Case {
  readonly base: string;
  readonly more?: Record<string, unknown>;
  readonly root: string;
  readonly block: string;
  /** A linear of its MLP. */
  readonly mlp?: string;
  /** What vLLM calls the block. */
  readonly vllm?: string;
  /** Not through every target: what differs is names. */
  readonly brief?: true;
  /** Linears that stay as they are whatever is asked for, below the root. */
  readonly plain: readonly string[];
}

const CASES: readonly Case[] = [
  {
    base: 'glm4_moe',
    more: { num_nextn_predict_layers: 1 },
    root: 'model.layers.2.',
    block: 'model.layers.2.',
    plain: ['eh_proj', 'mlp.gate'],
  },
  {
    base: 'qwen3_next',
    root: 'mtp.',
    block: 'mtp.layers.0.',
    plain: ['fc', 'layers.0.mlp.gate', 'layers.0.mlp.shared_expert_gate'],
  },
  {
    base: 'qwen3_5_moe',
    root: 'mtp.',
    block: 'mtp.layers.0.',
    plain: ['fc', 'layers.0.mlp.gate', 'layers.0.mlp.shared_expert_gate'],
  },
  {
    base: 'hy_v3',
    root: 'model.layers.2.',
    block: 'model.layers.2.',
    brief: true,
    plain: ['eh_proj', 'mlp.router.gate'],
  },
  {
    base: 'exaone_moe',
    root: 'mtp.',
    block: 'mtp.layers.0.',
    mlp: 'gate_proj',
    brief: true,
    plain: ['fc'],
  },
  {
    base: 'ernie4_5_moe',
    root: 'model.mtp_',
    block: 'model.mtp_block.0.',
    mlp: 'gate_proj',
    vllm: 'model.layers.2.',
    brief: true,
    plain: ['linear_proj.0'],
  },
  {
    base: 'mimo_v2_flash',
    root: 'model.mtp.',
    block: 'model.mtp.layers.0.',
    mlp: 'gate_proj',
    brief: true,
    plain: ['layers.0.eh_proj'],
  },
];

async function quantized({ base, more }: Case, mtp: boolean, quantizer: Quantizer) {
  const dir = scratch();
  const [source, output] = [path.join(dir, 'source'), path.join(dir, 'canonical')];
  await writeWidened(base, source, more, 1);
  await quantizeCheckpoint([runtime], {
    source,
    output,
    scheme: schemeFromOptions({ bits: 4, groupSize: 128 }),
    rules: [],
    quantizer,
    calibration: CALIBRATION,
    lmHead: false,
    mtp,
    options: {},
    version: 'test',
  });
  return { dir, output, file: new PlainFile(path.join(source, 'model.safetensors')) };
}

/** The configuration that `target` writes for a quantized checkpoint, which verify compares with what is there. */
async function packed(dir: string, canonical: string, target: string) {
  const output = path.join(dir, target);
  const input = CanonicalCheckpoint.open(canonical);
  await packCheckpoint({ input, target, output, runtime });
  input.close();
  const report = await verifyArtifact({ dir: output, runtime, against: canonical });
  assert.ok(report.ok, `${target}: ${JSON.stringify(report.failures)}`);
  return JSON.parse(readFileSync(path.join(output, 'config.json'), 'utf8')).quantization_config;
}

function refusalOf(checkpoint: CanonicalCheckpoint, target: string): LpqError | undefined {
  try {
    return planPack(checkpoint, target).refusal;
  } catch (error) {
    return error as LpqError;
  }
}

/** Whether vLLM leaves a module alone: regular expressions from the beginning, names as they are. */
const ignored = (list: readonly string[], name: string): boolean =>
  list.some((item) => (item.startsWith('re:') ? new RegExp(`^(?:${item.slice(3)})`).test(name) : item === name));

for (const each of CASES) {
  const { base, root, block, plain, mlp = 'experts.0.gate_proj', vllm = block, brief } = each;
  const inside = [`${block}self_attn.q_proj`, `${block}self_attn.o_proj`, `${block}mlp.${mlp}`];

  if (!brief)
    test(`${base}: --mtp solves the layer from its calibration, and every target takes or refuses it as the rest`, async () => {
      const gptq = gptqQuantizer({ ...GPTQ_DEFAULTS, clipSteps: 1, rounds: 1 });
      const { dir, output, file } = await quantized(each, true, gptq);
      const checkpoint = CanonicalCheckpoint.open(output);
      const names = checkpoint.moduleNames();
      for (const name of inside) {
        assert.ok(names.includes(name), name);
        const quality = checkpoint.module(name).quality!;
        assert.ok(
          quality.method === 'gptq' && (quality.relativeError ?? 1) < 0.5,
          `${name}: ${JSON.stringify(quality)}`,
        );
      }
      assert.ok(plain.every((name) => !names.includes(root + name) && checkpoint.weights.has(`${root}${name}.weight`)));
      for (const { name } of PACK_TARGETS) {
        const refusal = refusalOf(checkpoint, name);
        if (refusal) assert.equal(refusal.code, 'LPQ_TARGET', name);
        else await packed(dir, output, name);
      }
      const whole = new PlainFile(path.join(dir, 'compressed-tensors', 'model.safetensors'));
      for (const name of plain)
        assert.deepEqual(
          typed(whole.tensor(`${root}${name}.weight`)),
          typed(file.tensor(`${root}${name}.weight`)),
          name,
        );
      checkpoint.close();
    });

  test(`${base}: with --mtp the lists of what is plain name what stays in the layer, and nothing that is quantized`, async () => {
    const { dir, output } = await quantized(each, true, rtnQuantizer());
    const { ignore } = await packed(dir, output, 'compressed-tensors');
    for (const name of plain) assert.ok(ignored(ignore, root + name), name);
    for (const name of inside) assert.ok(!ignored(ignore, name), name);
    const { dynamic } = await packed(dir, output, 'gptq');
    const rules = Object.keys(dynamic).map((rule) => `re:${rule.replace(/^-:/, '')}`);
    for (const name of plain) assert.ok(ignored(rules, root + name), name);
    for (const name of inside) assert.ok(!ignored(rules, name), name);
    // vLLM's qwen3_5_mtp.py leaves the whole layer plain where a rule of '-:' has these letters.
    assert.ok(!Object.keys(dynamic).some((rule) => rule.includes('mtp')));
    const { modules_to_not_convert: left } = await packed(dir, output, 'awq');
    for (const name of plain) assert.ok(left.some((part: string) => (root + name).includes(part)));
    for (const name of inside) assert.ok(!left.some((part: string) => name.includes(part)));
  });

  test(`${base}: without --mtp the layer is carried bit by bit, and declared as one to leave alone`, async () => {
    const { dir, output, file } = await quantized(each, false, rtnQuantizer());
    const configs = {
      ct: (await packed(dir, output, 'compressed-tensors')).ignore as string[],
      gptq: Object.keys((await packed(dir, output, 'gptq')).dynamic).map((rule) => `re:${rule.replace(/^-:/, '')}`),
      awq: (await packed(dir, output, 'awq')).modules_to_not_convert as string[],
    };
    // vLLM's own names, fused ones and the head of GLM's layers among them.
    const asked = [...inside, `${vllm}self_attn.qkv_proj`, `${vllm}mlp.experts`, `${root}head`, `${root}eh_proj`];
    for (const name of asked) {
      assert.ok(ignored(configs.ct, name), name);
      assert.ok(ignored(configs.gptq, name), name);
      // Its entries are parts of names, all of which are the checkpoint's.
      const known = vllm === block || !name.startsWith(vllm);
      assert.equal(
        configs.awq.some((part) => name.includes(part)),
        known,
        name,
      );
    }
    for (const list of [configs.ct, configs.gptq]) assert.ok(!ignored(list, 'model.layers.1.self_attn.q_proj'));
    const whole = new PlainFile(path.join(dir, 'compressed-tensors', 'model.safetensors'));
    const carried = Object.keys(file.header).filter((name) => name.startsWith(root));
    assert.ok(carried.length > 10);
    for (const name of carried) assert.deepEqual(typed(whole.tensor(name)), typed(file.tensor(name)), name);
  });
}
