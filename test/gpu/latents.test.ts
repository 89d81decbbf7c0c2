import assert from 'node:assert/strict';
import path from 'node:path';
import { createRuntime, type DType, type NativeRuntime, readTyped, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { replaced } from '../../src/artifact/replaced.js';
import { LATENTS } from '../../src/cli/options/kv-cache.js';
import { logitsOf } from '../../src/eval/logits.js';
import type { WeightSource } from '../../src/model/source.js';
import { verifyLatents } from '../../src/verify/latents.js';
import { Recorder } from '../../src/verify/report.js';
import { headCases, headProduct } from '../native/head-linear-cases.js';
import { decodeBf16, decodeF16 } from '../native/support.js';
import { CONFIGS } from '../src/model/configs.js';
import { ARCHITECTURES, PlainFile, plainSource, randomSource } from '../src/model/fixtures.js';
import { gpuTest } from './gpu.js';
import { stepLogits } from './step-logits.js';

const DECODE: Partial<Record<DType, (bits: number) => number>> = { f16: decodeF16, bf16: decodeBf16 };
const ROUNDING: Partial<Record<DType, number>> = { f32: 2 ** -20, f16: 2 ** -10, bf16: 2 ** -7 };

gpuTest("every head's own product is the CPU's, elementwise", async () => {
  const [gpu, cpu] = [createRuntime({ device: 'cuda:0' }), createRuntime()];
  for (const c of headCases) {
    const results: number[][] = [];
    for (const rt of [gpu, cpu]) {
      const { x, weight, y } = headProduct(c);
      const out = rt.upload(y);
      ops.headLinear(rt, rt.upload(x), rt.upload(weight.tensor), out, c.params);
      const raw = await readTyped(rt, out);
      results.push(Array.from(raw as Float32Array, DECODE[c.y] ?? Number));
    }
    const [got, want] = results as [number[], number[]];
    const most = want.reduce((all, value) => Math.max(all, Math.abs(value) || 0), 0);
    // NaN: what neither wrote. Sums in another order, in fp32, and one rounding to y's type.
    for (const [i, value] of want.entries())
      if (Number.isNaN(value)) assert.ok(Number.isNaN(got[i]), `${c.name}: element ${i} was written`);
      else assert.ok(Math.abs(got[i]! - value) <= ROUNDING[c.y]! * most, `${c.name}: ${got[i]}, not ${value}`);
  }
});

gpuTest('the verifier agrees with the kernels of a cache of latents', async () => {
  const [gpu, cpu] = [createRuntime({ device: 'cuda:0' }), createRuntime()];
  const wide = { ...CONFIGS.deepseek_v3!, kv_lora_rank: 512, qk_rope_head_dim: 64, num_attention_heads: 32 };
  for (const [config, bits, group] of [
    [CONFIGS.deepseek_v2!, 2, 32],
    [wide, 4, 128],
    [wide, 8, 64],
  ] as const) {
    const recorder = new Recorder();
    const context = { runtime: cpu, devices: [cpu, gpu], maker: LATENTS, seed: 3, recorder };
    await verifyLatents(context, { bits, group }, randomSource(config));
    assert.deepEqual(
      recorder.failures.map(({ message }) => message),
      [],
    );
  }
});

const TOKENS = 12;
const MODELS: readonly { name: string; ids: Int32Array; source: () => WeightSource }[] = [
  ...(['deepseek_v2', 'deepseek_v3'] as const).map((name) => ({
    name,
    ids: Int32Array.from({ length: TOKENS }, (_, i) => (i * i * 7 + i * 29 + 3) % 90),
    source: () => randomSource(CONFIGS[name]!),
  })),
  ...['deepseek_v3', 'glm4_moe_lite', 'kimi_linear', 'longcat_flash', 'kimi_k25'].map((name) => {
    const dir = path.join(ARCHITECTURES, name);
    const golden = new PlainFile(path.join(dir, 'golden.safetensors'));
    const ids = typed<Int32Array>(golden.tensor('input_ids')).slice(0, TOKENS);
    return { name: `checkpoint ${name}`, ids, source: () => plainSource(dir) };
  }),
];
const PROMPT = 5;

/** Logits of every token of the whole text, read as a cache of these latents gives it back. */
async function whole(rt: NativeRuntime, source: WeightSource, ids: Int32Array, latents: WeightSource['latents']) {
  const tensor = await logitsOf(rt, replaced(source, { latents }), { ids, shape: [1, ids.length] });
  const values = await readTyped<Float32Array>(rt, tensor);
  const vocab = values.length / ids.length;
  return Array.from(ids, (_, t) => values.slice(t * vocab, (t + 1) * vocab));
}

const size = (values: Float32Array) => Math.sqrt(values.reduce((sum, value) => sum + value * value, 0));
/** How far the median token's logits are away, of their size: where a mixture takes another expert at a near tie, a token is far away. */
function away(got: readonly Float32Array[], want: readonly Float32Array[]): number {
  const all = want.map((row, i) => size(row.map((value, j) => got[i]![j]! - value)) / size(row));
  return all.sort((a, b) => a - b)[Math.floor(all.length / 2)] as number;
}

for (const { name, ids, source } of MODELS)
  gpuTest(
    `${name}: a cache of latents on the device gives the CPU's logits, step by step and of a whole text`,
    async () => {
      const [gpu, cpu] = [createRuntime({ device: 'cuda:0' }), createRuntime()];
      const plain = await Promise.all([gpu, cpu].map((rt) => stepLogits(rt, source(), ids, 'exact', PROMPT)));
      // What 16 bits between products do to this model without such a cache; four times that.
      const most = 4 * away(plain[0]!, plain[1]!) + 2 ** -6;
      const fine = await stepLogits(cpu, source(), ids, { latents: { bits: 16, group: 32 } }, PROMPT);
      for (const bits of [16, 8, 4] as const) {
        const form = { latents: { bits, group: 32 } };
        const [got, want] = [
          await stepLogits(gpu, source(), ids, form, PROMPT),
          await stepLogits(cpu, source(), ids, form, PROMPT),
        ];
        // A latent that is a little off takes another code near a tie. Such codes are fewer than all, and off by one: what they do
        // stays below what rounding all latents does.
        const bar = most + away(want, fine);
        assert.ok(away(got, want) <= bar, `steps over ${bits} bits: ${away(got, want)}, with ${bar}`);
        if (bits === 16) continue;
        const latents = { bits, group: 32 } as const;
        const [text, simulated] = [await whole(gpu, source(), ids, latents), await whole(cpu, source(), ids, latents)];
        assert.ok(away(text, simulated) <= bar, `a text over ${bits} bits: ${away(text, simulated)}, with ${bar}`);
      }
    },
  );
