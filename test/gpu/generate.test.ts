import assert from 'node:assert/strict';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { SourceCheckpoint } from '../../formats/canonical/source.js';
import { createRuntime, type DType, type NativeRuntime, readTyped, uploadTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { openCodec } from '../../src/calibrate/tokenizer.js';
import { makeCache } from '../../src/generate/cache.js';
import { generate } from '../../src/generate/generate.js';
import { encodePrompts } from '../../src/generate/prompts.js';
import { disposeResident, loadResident } from '../../src/generate/resident.js';
import { GREEDY } from '../../src/generate/sample.js';
import { kvSchemeOf } from '../../src/kv/choose.js';
import { decodeBf16, decodeF16, Random } from '../native/support.js';
import { gpuTest } from './gpu.js';
import { stepLogits } from './step-logits.js';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const MODEL = path.join(root, 'share', 'tiny-llama');
const codec = await openCodec(MODEL);

interface Case {
  readonly dtype: DType;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly window?: number;
  readonly splits?: number;
  readonly softCap?: number;
  readonly sinks?: boolean;
}

gpuTest('attention of new tokens over kept rows is that of fp64, elementwise', async () => {
  const rt = createRuntime({ device: 'cuda:0' });
  // [slot, earlier tokens, new ones] of two steps.
  const steps = [
    [
      [2, 0, 40],
      [0, 0, 3],
    ],
    [
      [0, 3, 1],
      [2, 40, 1],
    ],
    [
      [1, 0, 1],
      [2, 41, 560],
      [0, 4, 17],
    ],
    [
      [2, 601, 1],
      [0, 21, 1],
      [1, 1, 1],
    ],
  ] as const;
  const rows = 640;
  let worst = 0;
  for (const c of [
    { dtype: 'bf16', heads: 8, kvHeads: 2, headDim: 128 },
    { dtype: 'f16', heads: 4, kvHeads: 2, headDim: 64, splits: 7 },
    { dtype: 'f16', heads: 6, kvHeads: 1, headDim: 80, window: 33 },
    { dtype: 'bf16', heads: 2, kvHeads: 2, headDim: 20 },
    { dtype: 'f32', heads: 4, kvHeads: 1, headDim: 64 },
    { dtype: 'f16', heads: 16, kvHeads: 1, headDim: 192 },
    { dtype: 'bf16', heads: 4, kvHeads: 1, headDim: 64, window: 33, splits: 5, sinks: true },
    { dtype: 'f16', heads: 4, kvHeads: 4, headDim: 128, softCap: 5 },
    { dtype: 'bf16', heads: 2, kvHeads: 1, headDim: 20, softCap: 5, sinks: true },
  ] as const satisfies readonly Case[] as readonly Case[]) {
    const { dtype, heads, kvHeads, headDim, window = 0, splits, softCap = 0, sinks = false } = c;
    const random = new Random(headDim + heads);
    const width = kvHeads * headDim;
    const u = dtype === 'f32' ? 2 ** -23 : dtype === 'f16' ? 2 ** -11 : 2 ** -8;
    const round = (values: Float32Array): Float32Array => (dtype === 'f32' ? values : rounded(values, dtype));
    const kept = [0, 1, 2].map(() => ({
      k: round(random.normals(rows * width)),
      v: round(random.normals(rows * width)),
    }));
    const [keys, values] = [0, 1].map(() => rt.allocate(dtype, [3, rows, width]));
    const scale = 1 / Math.sqrt(headDim);
    const sink = random.normals(heads);
    for (const step of steps) {
      const tokens = step.reduce((sum, [, , count]) => sum + count, 0);
      const q = random.normals(tokens * heads * headDim);
      const side = (which: 'k' | 'v') =>
        Float32Array.from(
          step.flatMap(([slot, past, count]) => [...kept[slot]![which].subarray(past * width, (past + count) * width)]),
        );
      const ends = step.map((_, s) => step.slice(0, s + 1).reduce((sum, [, , count]) => sum + count, 0));
      const ints = (list: readonly number[]) => uploadTyped(rt, 'i32', [list.length], Int32Array.from(list));
      const at = {
        starts: ints([0, ...ends]),
        slots: ints(step.map(([slot]) => slot)),
        totals: ints(step.map(([, past, count]) => past + count)),
      };
      const f32 = (data: Float32Array, columns: number) => uploadTyped(rt, 'f32', [tokens, columns], data);
      ops.cacheAppend(rt, f32(side('k'), width), f32(side('v'), width), at, keys!, values!);
      const y = uploadTyped(rt, dtype, [tokens, heads * headDim], poison(dtype, tokens * heads * headDim));
      const longest = Math.max(...step.map(([, past, count]) => past + count));
      const most = Math.max(...step.map(([, , count]) => count));
      const cut = splits && dtype !== 'f32' ? { splits } : {};
      const p = { heads, kvHeads, headDim, scale, window, softCap, most, longest, ...cut };
      const extra = sinks ? uploadTyped(rt, 'f32', [heads], sink) : undefined;
      ops.cachedAttention(rt, f32(q, heads * headDim), keys!, values!, at, y, p, extra);
      const raw = await readTyped<Uint16Array | Float32Array>(rt, y);
      for (const [s, [slot, past, count]] of step.entries())
        for (let f = 0; f < count; f += count > 64 ? 37 : 1)
          for (let h = 0; h < heads; h++) {
            const row = ends[s]! - count + f;
            const own = past + f;
            const low = window > 0 ? Math.max(0, own - window + 1) : 0;
            const kv = Math.floor(h / (heads / kvHeads));
            const { k, v } = kept[slot]!;
            const scores: number[] = [];
            let delta = 0;
            for (let t = low; t <= own; t++) {
              let [sum, size] = [0, 0];
              for (let d = 0; d < headDim; d++) {
                const product = q[(row * heads + h) * headDim + d]! * k[t * width + kv * headDim + d]!;
                sum += product;
                size += Math.abs(product);
              }
              scores.push(softCap > 0 ? softCap * Math.tanh((sum * scale) / softCap) : sum * scale);
              // One rounding of q; sums of the tensor core and of fp32 (test/native/cached-kernel.cpp).
              delta = Math.max(
                delta,
                size * scale * (u + (headDim / 16) * 17 * 2 ** -23 + headDim * 2 ** -24 + 2 ** -22),
              );
            }
            const peak = Math.max(...scores, sinks ? sink[h]! : -Infinity);
            const shares = scores.map((score) => Math.exp(score - peak));
            const total = shares.reduce((a, b) => a + b, sinks ? Math.exp(sink[h]! - peak) : 0);
            const off = Math.expm1(2 * delta + 40 * 2 ** -22) + u + 2 * (scores.length / 16 + 64) * 17 * 2 ** -23;
            for (let d = 0; d < headDim; d++) {
              let [want, size] = [0, 0];
              for (const [i, share] of shares.entries()) {
                const value = v[(low + i) * width + kv * headDim + d]!;
                want += (share / total) * value;
                size += (share / total) * Math.abs(value);
              }
              const bits = raw[(row * heads + h) * headDim + d]!;
              const got = dtype === 'f32' ? bits : dtype === 'f16' ? decodeF16(bits) : decodeBf16(bits);
              const bound = 2.1 * off * size + u * Math.abs(want) + 1e-6;
              const share = Math.abs(got - want) / bound;
              assert.ok(
                share <= 1,
                `${JSON.stringify(c)} slot ${slot}, token ${own}, head ${h}, dim ${d}: ${got} is not ${want} within ${bound}`,
              );
              worst = Math.max(worst, share);
            }
          }
    }
  }
  assert.ok(worst > 0 && worst < 0.5, `at most ${worst} of the bound`);
});

function rounded(values: Float32Array, dtype: DType): Float32Array {
  // Multiples of 1/16 below 8: both types hold them.
  return values.map((value) => Math.max(-8, Math.min(8, Math.round(value * 16) / 16))) as Float32Array & {
    dtype?: typeof dtype;
  };
}

function poison(dtype: DType, count: number): Uint16Array | Float32Array {
  return dtype === 'f32' ? new Float32Array(count).fill(Number.NaN) : new Uint16Array(count).fill(0x7fff);
}

gpuTest('a model with kept keys, in 16 bits and packed, has the logits of the CPU', async () => {
  const [gpu, cpu] = [createRuntime({ device: 'cuda:0' }), createRuntime()];
  const source = SourceCheckpoint.open(MODEL);
  const sequence = (await codec.encode('The old man looked at the sea, and he said nothing. '.repeat(12))).slice(
    0,
    150,
  );
  for (const [name, form, bar] of [
    ['exact', 'exact', 0.05],
    ['KV8', kvSchemeOf({ kv: '8' }, 64), 0.05],
    ['KV4', kvSchemeOf({ kv: '4' }, 64), 0.1],
    ['K8V4', kvSchemeOf({ kv: 'k8v4', group: 32 }, 64), 0.1],
    [
      'KV4, layers with 8 bits',
      kvSchemeOf({ kv: '4', group: 32, layers: new Map([[1, '8'] as const, [3, 'k8v4'] as const]) }, 64),
      0.1,
    ],
  ] as const) {
    const [got, want] = [
      await stepLogits(gpu, source, sequence, form, 100),
      await stepLogits(cpu, source, sequence, form, 100),
    ];
    let [sum, count] = [0, 0];
    for (const [i, row] of want.entries())
      for (const [j, value] of row.entries()) {
        sum += (got[i]![j]! - value) ** 2;
        count++;
      }
    // bf16 activations: 2^-9 of values of some ten, at random, a few of them in a row; codes that flip at ties besides.
    assert.ok(Math.sqrt(sum / count) < bar, `${name}: logits are ${Math.sqrt(sum / count)} away`);
  }
});

gpuTest('text on the device repeats, and is that of the CPU up to near ties', async () => {
  const source = SourceCheckpoint.open(MODEL);
  const write = async (rt: NativeRuntime) => {
    const model = await loadResident(rt, source);
    const prompts = await encodePrompts(MODEL, codec, ['Once upon a time', 'The old man looked at'], {});
    const cache = makeCache(rt, 'exact', { blocks: model.graph.blocks.length, slots: 2, most: 100 });
    const options = { sampling: GREEDY, maxTokens: 60, stopTokens: new Set<number>(), stops: [] };
    const { generated } = await generate(rt, model, cache, codec, prompts, options);
    cache.dispose();
    disposeResident(model);
    return generated.map(({ ids }) => ids);
  };
  const device = createRuntime({ device: 'cuda:0' });
  const [once, again, cpu] = [await write(device), await write(device), await write(createRuntime())];
  assert.deepEqual(again, once);
  const same = once.map((ids, i) => ids.findIndex((id, t) => id !== cpu[i]![t]));
  assert.ok(
    same.every((at) => at < 0 || at >= 8),
    `texts part at tokens ${same.join(' and ')}`,
  );
});
