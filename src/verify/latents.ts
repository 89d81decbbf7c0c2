import { type NativeRuntime, readTyped, type Tensor, uploadTyped } from '../../native/binding.js';
import { tell } from '../core/activity.js';
import { planSource } from '../model/graph.js';
import type { WeightShapes } from '../model/source.js';
import { Draw } from './kv-case.js';
import { heldDims, type LatentScheme } from './latent-case.js';
import {
  type Case,
  checkAttention,
  checkBytes,
  halves,
  type LatentContext,
  stored,
  type Tokens,
} from './latent-check.js';

/** Few heads and many: kernels take them by different tiles. */
const HEADS = [2, 20] as const;
const PAGE_TOKENS = 64;
const LENGTHS = [0, 1, 2, 31, 32, 33, 63, 64, 65, 150] as const;
const APPENDED = 200;

/**
 * Proves the cache of latents that a scheme describes, for every shape of latent attention of the model, on random data: packed bytes
 * against the verifier's own quantizer and reader, attention in the space of the latent elementwise against fp64, prompts of many lengths
 * one by one and all at once, pages in any order, empty caches, and 200 appended tokens against a prompt.
 */
export async function verifyLatents(context: LatentContext, scheme: LatentScheme, source: WeightShapes): Promise<void> {
  const { recorder, devices, runtime } = context;
  const shapes = new Map<string, { own: Case['own']; heads: number; scale: number }>();
  for (const { attention } of planSource(source).blocks)
    if (attention.kind === 'mla')
      for (const most of HEADS) {
        const own = { latent: attention.latent, rotary: attention.rotary };
        const shape = { own, heads: Math.min(most, attention.heads), scale: attention.scale };
        shapes.set(JSON.stringify(shape), shape);
      }
  recorder.check(shapes.size > 0, {
    check: 'kv',
    message: 'lpq.json describes a cache of latents, and the model has no latent attention',
  });
  for (const device of devices)
    for (const { own, heads, scale } of shapes.values()) {
      const page = { latent: heldDims(own.latent, 64), rotary: heldDims(own.rotary, 16), tokens: PAGE_TOKENS };
      const name = `${heads} heads over latents of ${own.latent} + ${own.rotary} dims${device === runtime ? '' : `, ${device.device}`}`;
      tell(`cache of ${name}`);
      const one = { ...context, device, scheme, page, own, heads, scale, name };
      for (const length of LENGTHS) await prompts(one, [length]);
      await prompts(one, LENGTHS);
      await appended(one);
    }
  const also = devices.filter((device) => device !== runtime).map(({ device }) => `; and by kernels on ${device}`);
  recorder.detail('kv', `latents of ${scheme.bits} bits in groups of ${scheme.group} dims${also.join('')}`);
}

function draw(one: Case, length: number, seed: number): Tokens {
  const lot = new Draw(one.seed + seed);
  const rows = (own: number, held: number): Float32Array<ArrayBuffer> => {
    const all = new Float32Array(length * held);
    for (let t = 0; t < length; t++) all.set(lot.rows(1, own), t * held);
    return all;
  };
  const { own, page } = one;
  return { length, c: rows(own.latent, page.latent), rotary: rows(own.rotary, page.rotary) };
}

const ints = (rt: NativeRuntime, shape: readonly number[], values: readonly number[]): Tensor =>
  uploadTyped(rt, 'i32', shape, Int32Array.from(values));

/** Page numbers of sequences, by turns, the last of all first; -1 behind them. */
function tablesFor(lengths: readonly number[]): { pages: number; each: number; tables: number[][] } {
  const need = lengths.map((length) => Math.ceil(length / PAGE_TOKENS));
  const each = Math.max(1, ...need);
  let left = Math.max(
    1,
    need.reduce((all, count) => all + count, 0),
  );
  const pages = left;
  const tables = lengths.map(() => new Array<number>(each).fill(-1));
  for (let j = 0; j < each; j++)
    for (const [b, count] of need.entries()) if (j < count) (tables[b] as number[])[j] = --left;
  return { pages, each, tables };
}

/** Prompts of these lengths in one pool: what they leave in the pages, and attention of a query over each. */
async function prompts(one: Case, lengths: readonly number[]): Promise<void> {
  const { device, maker, scheme, page } = one;
  const { pages, each, tables } = tablesFor(lengths);
  const cache = maker.make(device, scheme, page, pages);
  const all = lengths.map((length, b) => draw(one, length, 31 * length + 7 * b + lengths.length));
  for (const [b, { c, rotary, length }] of all.entries()) {
    const own = [halves(device, c, page.latent, 0, length), halves(device, rotary, page.rotary, 0, length)] as const;
    const table = ints(device, [each], tables[b] as number[]);
    cache.pack(...own, table);
    for (const tensor of [...own, table]) tensor.dispose();
  }
  const where = lengths.length === 1 ? `a prompt of ${lengths[0]} tokens` : `${lengths.length} prompts at once`;
  const bytes = await stored(one, cache.pages);
  for (const [b, tokens] of all.entries()) checkBytes(one, bytes, tables[b] as number[], tokens, where);
  const places = {
    table: ints(device, [lengths.length, each], tables.flat()),
    lengths: ints(device, [lengths.length], lengths),
  };
  await checkAttention(one, cache.attend, places, all, where);
  for (const tensor of Object.values(places)) tensor.dispose();
  cache.dispose();
}

/** Tokens appended one by one to two sequences: attention on the way, and in the end the bytes of a prompt of as many. */
async function appended(one: Case): Promise<void> {
  const { device, maker, scheme, page, recorder, name } = one;
  const lengths = [APPENDED, APPENDED];
  const { pages, each, tables } = tablesFor(lengths);
  const cache = maker.make(device, scheme, page, pages);
  const all = lengths.map((length, b) => draw(one, length, 1000 + b));
  const counts = ints(device, [2], [0, 0]);
  const places = { table: ints(device, [2, each], tables.flat()), lengths: counts };
  for (let t = 0; t < APPENDED; t++) {
    const pair = (part: 'c' | 'rotary', width: number): Tensor => {
      const both = new Float32Array(2 * width);
      for (const [b, tokens] of all.entries()) both.set(tokens[part].subarray(t * width, (t + 1) * width), b * width);
      return halves(device, both, width, 0, 2);
    };
    const own = [pair('c', page.latent), pair('rotary', page.rotary)] as const;
    cache.append(...own, places);
    for (const tensor of own) tensor.dispose();
    const length = t + 1;
    if (length % 64 > 1 && length % 29 !== 0) continue;
    await checkAttention(
      one,
      cache.attend,
      places,
      all.map((tokens) => ({ ...tokens, length })),
      `after ${length} appended tokens`,
    );
  }
  const bytes = await stored(one, cache.pages);
  for (const [b, tokens] of all.entries())
    checkBytes(one, bytes, tables[b] as number[], tokens, `${APPENDED} appended tokens`);
  const grown = [...(await readTyped<Int32Array>(device, counts))];
  recorder.check(
    grown.every((count) => count === APPENDED),
    {
      check: 'kv',
      got: grown.join(', '),
      expected: `${APPENDED} tokens of each`,
      message: `${name}: appending tokens leaves wrong lengths`,
    },
  );
  for (const tensor of Object.values(places)) tensor.dispose();
  cache.dispose();
}
