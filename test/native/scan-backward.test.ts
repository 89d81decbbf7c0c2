import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type Tensor, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { expectGradients } from './gradients.js';
import { rt, runtimeOf } from './runtime-under-test.js';
import { f32, i32, poisoned, Random } from './support.js';

const softplus = (x: number): number => Math.log1p(Math.exp(x));

interface Case {
  readonly name: string;
  readonly starts: readonly number[];
  readonly heads: number;
  readonly headDim: number;
  readonly groups: number;
  readonly size: number;
  readonly byChannel: boolean;
  readonly least?: number;
  readonly most?: number;
}

/** The definition (native/ops/recurrent.h) in plain loops. */
function scan(c: Case, at: Record<string, ArrayLike<number>>, fixed: Record<'rate' | 'bias' | 'skip', Float32Array>) {
  const { heads, headDim, groups, size, byChannel, least = 0, most = Number.POSITIVE_INFINITY } = c;
  const channels = heads * headDim;
  const y = new Float64Array(c.starts.at(-1)! * channels);
  for (let s = 0; s + 1 < c.starts.length; s++)
    for (let h = 0; h < heads; h++)
      for (let p = 0; p < headDim; p++) {
        const channel = h * headDim + p;
        const [own, wide] = byChannel ? [channel, channels] : [h, heads];
        const group = Math.floor(h / (heads / groups));
        const state = new Float64Array(size);
        for (let t = c.starts[s]!; t < c.starts[s + 1]!; t++) {
          const d = Math.min(Math.max(softplus(at.step![t * wide + own]! + fixed.bias[own]!), least), most);
          const x = at.x![t * channels + channel]!;
          let made = fixed.skip[own]! * x;
          for (let n = 0; n < size; n++) {
            const rate = -Math.exp(fixed.rate[byChannel ? channel * size + n : h]!);
            const place = (t * groups + group) * size + n;
            state[n] = Math.exp(rate * d) * state[n]! + d * at.b![place]! * x;
            made += at.c![place]! * state[n]!;
          }
          y[t * channels + channel] = made;
        }
      }
  return y;
}

const CASES: readonly Case[] = [
  { name: 'a step a head', starts: [0, 5, 5, 9], heads: 4, headDim: 3, groups: 2, size: 5, byChannel: false },
  { name: 'wide heads', starts: [0, 3, 7], heads: 4, headDim: 36, groups: 2, size: 4, byChannel: false },
  { name: 'a step a channel', starts: [0, 6, 8], heads: 1, headDim: 35, groups: 1, size: 2, byChannel: true },
  { name: 'bounds', starts: [0, 7], heads: 2, headDim: 2, groups: 1, size: 3, byChannel: false, least: 0.5, most: 0.9 },
  { name: 'several spans', starts: [0, 70], heads: 1, headDim: 1, groups: 1, size: 2, byChannel: false },
];

for (const c of CASES)
  test(`selective_scan: ${c.name}; the same bytes on one thread`, async () => {
    const { heads, headDim, groups, size, byChannel, least, most } = c;
    const random = new Random(headDim + size);
    const tokens = c.starts.at(-1)!;
    const [channels, wide] = [heads * headDim, byChannel ? heads * headDim : heads];
    const sizes = { x: channels, b: groups * size, c: groups * size, step: wide };
    const given = Object.fromEntries(
      Object.entries(sizes).map(([name, width]) => [name, random.normals(tokens * width)]),
    ) as Record<keyof typeof sizes, Float32Array<ArrayBuffer>>;
    // None within a step of a bound, where the slope jumps.
    if (least !== undefined) given.step = given.step.map((_, i) => [-3, 0.1, 2][i % 3]!);
    const fixed = {
      rate: random.normals(byChannel ? channels * size : heads),
      bias: least === undefined ? random.normals(wide) : new Float32Array(wide),
      skip: random.normals(wide),
    };
    const dy = random.normals(tokens * channels);
    const made = await Promise.all(
      [rt, runtimeOf(1)].map(async (on) => {
        const of = Object.fromEntries(
          Object.entries(sizes).map(([name, width]) => [name, f32([tokens, width], given[name as 'x'])]),
        ) as Record<keyof typeof sizes, Tensor>;
        const out = Object.fromEntries(
          Object.entries(sizes).map(([name, width]) => [`d${name}`, poisoned('f32', [tokens, width])]),
        ) as Record<'dx' | 'db' | 'dc' | 'dstep', Tensor>;
        const rate = f32(byChannel ? [channels, size] : [heads], fixed.rate);
        const constants = { rate, bias: f32([wide], fixed.bias), skip: f32([wide], fixed.skip) };
        const t = { ...of, ...constants, starts: i32(c.starts), dy: f32([tokens, channels], dy) };
        const bounds = { ...(least !== undefined && { least }), ...(most !== undefined && { most }) };
        ops.selectiveScanBackward(on, t, out, { heads, headDim, groups, size, ...bounds });
        await on.sync();
        return { x: out.dx, b: out.db, c: out.dc, step: out.dstep };
      }),
    );
    expectGradients(given, made[0]!, dy, (at) => scan(c, at, fixed));
    for (const name of ['x', 'b', 'c', 'step'] as const)
      assert.deepEqual(typed(made[1]![name]), typed(made[0]![name]), name);
  });
