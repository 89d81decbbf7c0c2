import { type NativeRuntime, readTyped, uploadTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { ObservedFeed } from './observe.js';
import { BLOCK, type FmpqOptions } from './options.js';

/** Shares of a token's largest magnitude that 4-bit codes may reach; above it they saturate. */
const CLIPS = [1, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6];

/** A feed with the order that its linears read it in. */
export interface OrderedFeed {
  readonly feed: ObservedFeed;
  readonly order: Int32Array;
}

/** One block of a feed: what each precision adds to the relative squared error of the linears' outputs. */
interface Candidate {
  readonly feed: number;
  readonly block: number;
  readonly error4: number;
  readonly error8: number;
  readonly clip: number;
  /** Multiplications a token-weighted calibration set makes with it. */
  readonly macs: number;
}

export interface BlockForms {
  readonly bits: Uint8Array;
  readonly clip: Float32Array;
}

/** What was chosen over all feeds. */
export interface Precision {
  readonly forms: readonly BlockForms[];
  /** Of the blocks of all feeds, and of the multiplications: how much reads 4-bit codes. */
  readonly share: { readonly blocks: number; readonly macs: number };
  /** Sum of the relative squared errors of all linears: as chosen, with 4 bits everywhere, with 8 bits everywhere. */
  readonly error: { readonly chosen: number; readonly all4: number; readonly all8: number };
}

/**
 * Gives every block 4 or 8 bits. With a threshold: 4 where the measured error allows. With a share of the multiplications: 8
 * bits go to the blocks whose errors fall most for a multiplication, while at least that share keeps 4. The clip of a 4-bit
 * block is the one with the least measured error.
 */
export async function choosePrecision(
  rt: NativeRuntime,
  feeds: readonly OrderedFeed[],
  options: FmpqOptions,
): Promise<Precision> {
  const candidates: Candidate[] = [];
  for (const [index, ordered] of feeds.entries()) candidates.push(...(await measure(rt, index, ordered, options)));
  const forms = feeds.map(({ feed }): BlockForms => {
    const blocks = feed.k / BLOCK;
    return { bits: new Uint8Array(blocks).fill(4), clip: new Float32Array(blocks).fill(1) };
  });
  for (const { feed, block, clip } of candidates) (forms[feed] as BlockForms).clip[block] = clip;
  const total = candidates.reduce((sum, { macs }) => sum + macs, 0);
  let wide = 0;
  const widen = ({ feed, block, macs }: Candidate) => {
    const form = forms[feed] as BlockForms;
    form.bits[block] = 8;
    form.clip[block] = 1;
    wide += macs;
  };
  const unseen = (candidate: Candidate) => (feeds[candidate.feed] as OrderedFeed).feed.rows.shape[0] === 0;
  if (options.threshold !== undefined) {
    for (const each of candidates) if (unseen(each) || each.error4 > options.threshold) widen(each);
  } else {
    const room = total * (1 - options.share) * (1 + 1e-9);
    const worth = ({ error4, error8, macs }: Candidate) => (error4 - error8) / Math.max(macs, 1);
    const byWorth = [...candidates].sort((a, b) => worth(b) - worth(a) || a.feed - b.feed || a.block - b.block);
    for (const each of byWorth) if (wide + each.macs <= room) widen(each);
  }
  const four = candidates.filter(({ feed, block }) => forms[feed]?.bits[block] === 4);
  const sum = (of: readonly Candidate[], pick: (each: Candidate) => number) =>
    of.reduce((s, each) => s + pick(each), 0);
  return {
    forms,
    share: {
      blocks: candidates.length > 0 ? four.length / candidates.length : 1,
      macs: total > 0 ? sum(four, ({ macs }) => macs) / total : 1,
    },
    error: {
      chosen: sum(candidates, (each) => (forms[each.feed]?.bits[each.block] === 4 ? each.error4 : each.error8)),
      all4: sum(candidates, ({ error4 }) => error4),
      all8: sum(candidates, ({ error8 }) => error8),
    },
  };
}

async function measure(
  rt: NativeRuntime,
  index: number,
  { feed, order }: OrderedFeed,
  { clip }: FmpqOptions,
): Promise<Candidate[]> {
  const clips = clip ? CLIPS : [1];
  const blocks = feed.k / BLOCK;
  const [rows, importance, columns] = [
    rt.upload(feed.rows),
    uploadTyped(rt, 'f32', [feed.k], feed.importance),
    uploadTyped(rt, 'i32', [feed.k], order),
  ] as const;
  const errors = rt.allocate('f64', [blocks, clips.length + 1]);
  ops.blockErrors(rt, rows, importance, columns, errors, {
    bits: [8, ...clips.map(() => 4)],
    clips: [1, ...clips],
  });
  const found = await readTyped<Float64Array>(rt, errors);
  for (const tensor of [rows, importance, columns, errors]) tensor.dispose();
  const outputs = feed.linears.reduce((sum, { n }) => sum + n, 0);
  return Array.from({ length: blocks }, (_, block) => {
    const [error8 = 0, ...narrow] = found.subarray(block * (clips.length + 1), (block + 1) * (clips.length + 1));
    const error4 = Math.min(...narrow);
    const chosen = clips[narrow.indexOf(error4)] as number;
    return { feed: index, block, error4, error8, clip: chosen, macs: BLOCK * outputs * feed.tokens };
  });
}
