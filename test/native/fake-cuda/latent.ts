// Run by head-linear.test.ts under the fake driver with emulated kernels: products of every head's own, and a cache of latents that a
// step or a whole text reads, by the "device" and by the CPU. Prints the largest difference of each case, by its size.
import { createRuntime, fromTyped, type NativeRuntime, readTyped, type Tensor } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { LATENTS } from '../../../src/cli/options/kv-cache.js';
import { makeCache } from '../../../src/generate/cache.js';
import type { Step } from '../../../src/generate/step.js';
import { readLatents } from '../../../src/model/decoded-latents.js';
import type { Batch } from '../../../src/model/program.js';
import { verifyLatents } from '../../../src/verify/latents.js';
import { Recorder } from '../../../src/verify/report.js';
import { CONFIGS } from '../../src/model/configs.js';
import { randomSource } from '../../src/model/fixtures.js';
import { headCases, headProduct } from '../head-linear-cases.js';
import { decodeBf16, decodeF16, Random } from '../support.js';

const cpu = createRuntime({ threads: 2 });
const cuda = createRuntime({ device: 'cuda:0' });

async function values(rt: NativeRuntime, tensor: Tensor): Promise<number[]> {
  const raw = await readTyped(rt, tensor);
  const decode = tensor.dtype === 'f16' ? decodeF16 : tensor.dtype === 'bf16' ? decodeBf16 : Number;
  return Array.from(raw as Float32Array, (value) => decode(value));
}

function tell(name: string, [a, b]: readonly number[][]): void {
  let [worst, most] = [0, 0];
  for (const [i, value] of (a as number[]).entries()) {
    const other = (b as number[])[i] as number;
    if (Number.isNaN(value) && Number.isNaN(other)) continue;
    const off = Math.abs(value - other);
    [worst, most] = [Number.isNaN(off) ? Infinity : Math.max(worst, off), Math.max(most, Math.abs(value))];
  }
  console.log(`${name}: ${worst / most}`);
}

for (const c of headCases) {
  const results = [];
  for (const rt of [cpu, cuda]) {
    const { x, weight, y } = headProduct(c);
    const out = rt.upload(y);
    ops.headLinear(rt, rt.upload(x), rt.upload(weight.tensor), out, c.params);
    results.push(await values(rt, out));
  }
  tell(c.name, results);
}

const heads = 20;
const scale = 0.1;
const stored = { latent: 128, rotary: 32 };
const width = heads * (stored.latent + stored.rotary);

/** Multiples of 1/16 as f16. */
function halves(rt: NativeRuntime, seed: number, rows: number, columns: number): Tensor {
  const random = new Random(seed);
  const wide = fromTyped(
    'f32',
    [rows, columns],
    random.normals(rows * columns).map((value) => Math.round(value * 16) / 16),
  );
  const y = rt.allocate('f16', wide.shape);
  ops.cast(cpu, wide, y);
  return y;
}
const put = async (rt: NativeRuntime, seed: number, rows: number, columns: number): Promise<Tensor> => {
  const host = halves(cpu, seed, rows, columns);
  await cpu.sync();
  return rt.upload(host);
};

/** Two prompts in slots 2 and 0, then two steps of both, the order turned; of the second of two blocks. */
async function steps(rt: NativeRuntime, bits: 2 | 4 | 8 | 16): Promise<number[]> {
  const cache = makeCache(rt, { latents: { bits, group: 64 } }, { blocks: 2, slots: 3, most: 80 });
  const found: number[] = [];
  const entry = (slot: number, past: number, count: number) => ({ slot, past, ids: new Int32Array(count) });
  const all = [
    [entry(2, 0, 63), entry(0, 0, 5)],
    [entry(2, 63, 1), entry(0, 5, 1)],
    [entry(0, 6, 1), entry(2, 64, 1)],
  ];
  for (const [i, entries] of all.entries()) {
    const tokens = entries.reduce((sum, { ids }) => sum + ids.length, 0);
    const step = { entries, tokens } as unknown as Step;
    const kept = cache.latents(1, step, stored);
    kept?.keep(await put(rt, i, tokens, stored.latent), await put(rt, 10 + i, tokens, stored.rotary));
    if (kept?.prompts !== false) continue;
    const y = rt.allocate('f32', [tokens, heads * stored.latent]);
    kept.attend(await put(rt, 20 + i, tokens, width), y, { heads, scale });
    found.push(...(await values(rt, y)));
    cache.end?.(step);
  }
  return found;
}

/** A text as an evaluation reads it: two sequences, the second longer than the queries of a launch. */
async function read(rt: NativeRuntime): Promise<number[]> {
  const lengths = [3, 260];
  const tokens = 263;
  const few = 2;
  const [c, rotary] = [await put(rt, 1, tokens, stored.latent), await put(rt, 2, tokens, stored.rotary)];
  const found: number[] = [];
  const made: { y: Tensor; q: Tensor }[] = [];
  const asked = await put(rt, 3, tokens, few * (stored.latent + stored.rotary));
  readLatents(
    rt,
    { bits: 4, group: 64 },
    { c, rotary },
    { lengths } as unknown as Batch,
    ({ first, count }, attend) => {
      const columns = asked.shape[1] as number;
      const [q, y] = [asked.view([count, columns], first * columns), rt.allocate('f32', [count, few * stored.latent])];
      attend(q, y, { heads: few, scale });
      made.push({ q, y });
    },
  );
  for (const { y } of made) found.push(...(await values(rt, y)));
  return found;
}

for (const bits of [2, 4, 8, 16] as const)
  tell(`steps over latents of ${bits} bits`, [await steps(cpu, bits), await steps(cuda, bits)]);
tell('a text over latents', [await read(cpu), await read(cuda)]);

const recorder = new Recorder();
const context = { runtime: cpu, devices: [cuda], maker: LATENTS, seed: 3 };
await verifyLatents({ ...context, recorder }, { bits: 4, group: 32 }, randomSource(CONFIGS.deepseek_v3!));
const { count } = recorder.checks().find(({ name }) => name === 'kv') as { count: number };
for (const { message } of recorder.failures) console.error(`fake CUDA: ${message}`);
console.log(`the verifier, ${count > 500 ? 'many' : 'few'} checks of latents: ${recorder.failures.length}`);
