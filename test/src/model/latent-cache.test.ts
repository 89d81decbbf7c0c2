import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import type { KvLatents } from '../../../formats/kv/latent.js';
import { createRuntime, fromTyped, type NativeRuntime, type Tensor, typed } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { replaced } from '../../../src/artifact/replaced.js';
import { LpqError } from '../../../src/core/error.js';
import { makeBatch } from '../../../src/model/batch.js';
import { loadOuter, runForward } from '../../../src/model/forward.js';
import { openModel } from '../../../src/model/graph.js';
import { throughF16, throughLatents } from '../../../src/model/latent-cache.js';
import { poisoned, Random } from '../../native/support.js';
import { ARCHITECTURES, PlainFile, plainSource } from './fixtures.js';

const random = new Random(5);
const half = (rt: NativeRuntime, x: Tensor): Tensor => {
  const y = rt.allocate('f16', x.shape);
  ops.cast(rt, x, y);
  return y;
};

for (const bits of [2, 4, 8] as const)
  test(`attention over expanded latents of ${bits} bits, and in their space over packed pages, are one`, async () => {
    const rt = createRuntime(2);
    const [tokens, heads, latent, rotary, plain] = [40, 3, 64, 16, 24];
    const numbers = (rows: number, columns: number): Tensor =>
      fromTyped('f32', [rows, columns], random.normals(rows * columns, 1));
    const [c, rope] = [numbers(tokens, latent), numbers(tokens, rotary)];
    const [packedC, packedRope] = [half(rt, c), half(rt, rope)];
    throughLatents(rt, { bits, group: 32 }, c);
    throughF16(rt, rope);
    await rt.sync();
    // q of the newest token: plain dims (Q), then rotary ones; W_uk and W_uv of each head, [plain, latent].
    const [q, turned] = [random.normals(heads * plain, 1), random.normals(heads * rotary, 1)];
    const [up, down] = [0, 1].map(() => random.normals(heads * plain * latent, 1 / 8)) as [Float32Array, Float32Array];
    const at = (h: number, p: number, d: number): number => (h * plain + p) * latent + d;
    const scale = 1 / Math.sqrt(plain + rotary);

    const absorbed = new Float32Array(heads * (latent + rotary));
    for (let h = 0; h < heads; h++) {
      for (let d = 0; d < latent; d++)
        for (let p = 0; p < plain; p++) absorbed[h * (latent + rotary) + d]! += q[h * plain + p]! * up[at(h, p, d)]!;
      absorbed.set(turned.subarray(h * rotary, (h + 1) * rotary), h * (latent + rotary) + latent);
    }
    const form = { bits, group: 32, latent, rotary, pageTokens: 32 };
    const pages = poisoned('u8', [2, 32 * (latent * (bits / 8) + (4 * latent) / 32 + 2 * rotary)]);
    const table = fromTyped('i32', [1, 2], Int32Array.of(1, 0));
    ops.latentPack(rt, packedC, packedRope, table.view([2]), pages, form);
    const inLatent = poisoned('f32', [1, heads * latent]);
    const query = half(rt, fromTyped('f32', [1, absorbed.length], absorbed));
    const cache = { pages, table, lengths: fromTyped('i32', [1], Int32Array.of(tokens)) };
    ops.latentDecode(rt, query, cache, inLatent, { ...form, heads, scale });
    // What was asked, as f16 holds it, so that both ask the same.
    const asked = rt.allocate('f32', query.shape);
    ops.cast(rt, query, asked);
    await rt.sync();

    const [rows, keys] = [typed(c), typed(rope)];
    const width = latent + rotary;
    for (let h = 0; h < heads; h++) {
      const own = typed(asked).subarray(h * width, (h + 1) * width);
      const scores = Array.from({ length: tokens }, (_, t) => {
        let score = 0;
        for (let d = 0; d < latent; d++) score += own[d]! * rows[t * latent + d]!;
        for (let r = 0; r < rotary; r++) score += own[latent + r]! * keys[t * rotary + r]!;
        return score * scale;
      });
      const most = Math.max(...scores);
      const weights = scores.map((score) => Math.exp(score - most));
      const total = weights.reduce((sum, weight) => sum + weight, 0);
      for (let p = 0; p < plain; p++) {
        // Values of the expanded form, summed; and the sum of latents, expanded.
        let [expanded, size, joined] = [0, 0, 0];
        for (let d = 0; d < latent; d++) {
          const weight = down[at(h, p, d)]!;
          for (let t = 0; t < tokens; t++) {
            const term = (weights[t]! / total) * rows[t * latent + d]! * weight;
            expanded += term;
            size += Math.abs(term);
          }
          joined += typed(inLatent)[h * latent + d]! * weight;
        }
        // fp64 on both sides but for y in fp32, latent terms of it.
        assert.ok(Math.abs(expanded - joined) <= 2 ** -22 * size, `head ${h}, dim ${p}: ${expanded}, ${joined}`);
      }
    }
  });

test('a model of latent attention computes with latents in few bits, the worse the fewer', async () => {
  const dir = path.join(ARCHITECTURES, 'deepseek_v3');
  const golden = new PlainFile(path.join(dir, 'golden.safetensors'));
  const ids = golden.tensor('input_ids');
  const length = ids.shape[1] as number;
  const differ = async (latents: KvLatents | undefined): Promise<number> => {
    const rt = createRuntime(2);
    const source = replaced(plainSource(dir), { latents });
    const graph = openModel(source);
    const outer = await loadOuter(rt, source, graph);
    const batch = makeBatch(rt, [typed<Int32Array>(ids).slice(0, length)]);
    const [state] = await runForward(rt, source, graph, outer, [batch]);
    const logits = graph.logits(rt, outer, state!.h);
    await rt.sync();
    const want = typed(golden.tensor('logits'));
    return typed(logits).reduce((worst, value, i) => Math.max(worst, Math.abs(value - (want[i] as number))), 0);
  };
  const [exact, eight, four, two] = [
    await differ(undefined),
    await differ({ bits: 8, group: 32 }),
    await differ({ bits: 4, group: 32 }),
    await differ({ bits: 2, group: 32 }),
  ];
  assert.ok(exact! < 1e-4 && exact! < eight! / 2, `${exact}, ${eight}`);
  assert.ok(eight! < four! && four! < two!, `${eight}, ${four}, ${two}`);
  await assert.rejects(differ({ bits: 4, group: 64 }), (error: LpqError) => {
    assert.match(error.message, /groups of 64 do not divide latents of 32 dims/);
    return error instanceof LpqError && error.code === 'LPQ_USAGE';
  });
});
