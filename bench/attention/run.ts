import { type KvScheme, kvWidths } from '../../formats/kv/scheme.js';
import type { MeasuredRuntime } from '../../native/binding.js';
import { Noise } from '../kernels/operands.js';
import { copyBandwidth, median } from '../kernels/time.js';
import { gpuOf } from '../machine.js';
import { type BenchEvents, benchRecord } from '../record.js';
import { type AttentionCase, type Context, contextName, type HeadCounts, headsName } from './cases.js';
import { appendPass, cycleOf, decodePass, exactPass, type Pass, packPass } from './operands.js';
import { TORCH_SOURCE, torchMicroseconds } from './peers.js';
import type { AttentionBench, AttentionRow } from './schema.js';

interface AttentionBenchRequest {
  readonly schemes: readonly KvScheme[];
  readonly contexts: readonly Context[];
  readonly heads: readonly HeadCounts[];
  readonly headDim: number;
  readonly tail: number;
  readonly passes: number;
  /** Also time the kernel over f16 alone. */
  readonly exact: boolean;
  readonly lpq: string;
}

/** Measures decode attention, appending and packing for every scheme, context and count of heads. */
export async function benchAttention(
  rt: MeasuredRuntime,
  request: AttentionBenchRequest,
  events: BenchEvents<AttentionRow> = {},
): Promise<AttentionBench> {
  const started = performance.now();
  const { schemes, contexts, heads, headDim, passes } = request;
  const facts = gpuOf(rt);
  const l2Bytes = facts?.l2 ?? 0;
  const total = schemes.length * contexts.length * heads.length;
  const noise = new Noise(rt);
  const rows: AttentionRow[] = [];
  try {
    events.onStep?.('copies on the device', 0, total);
    const copies = await copyBandwidth(rt, passes);
    for (const context of contexts)
      for (const counts of heads) {
        let exactUs: number | null = null;
        for (const scheme of schemes) {
          const tail = Math.min(request.tail, scheme.residual);
          const one: AttentionCase = { scheme, ...context, ...counts, headDim, tail };
          events.onStep?.(`${kvWidths(scheme)} ${contextName(one)} ${headsName(one)}`, rows.length, total);
          if (request.exact && exactUs === null)
            exactUs = (await timed(rt, exactPass(rt, noise, one, l2Bytes), passes)).us;
          const row = await rowOf(rt, noise, one, { l2Bytes, passes, copies, exactUs, gpu: facts?.name });
          rows.push(row);
          events.onRow?.(row);
        }
      }
    return {
      ...benchRecord('lpq-attention-bench', rt, request.lpq, started),
      passes,
      copyBytesPerSecond: copies,
      peers: rows.some(({ torchUs }) => torchUs !== null) ? { torch: TORCH_SOURCE } : {},
      rows,
    };
  } finally {
    noise.dispose();
  }
}

interface Setting {
  readonly l2Bytes: number;
  readonly passes: number;
  /** Bytes a second, read and written. */
  readonly copies: number;
  readonly exactUs: number | null;
  readonly gpu: string | undefined;
}

async function rowOf(
  rt: MeasuredRuntime,
  noise: Noise,
  one: AttentionCase,
  { l2Bytes, passes, copies, exactUs, gpu }: Setting,
): Promise<AttentionRow> {
  const { scheme, sequences, tokens, tail, heads, kvHeads, headDim } = one;
  const share = (bytes: number, us: number): number => bytes / (us * 1e-6) / copies;
  const decode = await timed(rt, decodePass(rt, noise, one, l2Bytes), passes);
  const append = await timed(rt, appendPass(rt, noise, one, passes), passes);
  const pack = await timed(rt, packPass(rt, noise, one), passes);
  const halfFloorUs = ((4 * sequences * (tokens + tail) * kvHeads * headDim) / copies) * 1e6;
  const torchUs = torchMicroseconds({ gpu, sequences, tokens, heads, kvHeads, headDim });
  return {
    name: kvWidths(scheme),
    scheme,
    sequences,
    tokens,
    tail,
    heads,
    kvHeads,
    headDim,
    us: decode.us,
    leastUs: decode.leastUs,
    bytes: decode.bytes,
    copyShare: share(decode.bytes, decode.us),
    halfFloorUs,
    halfFloorRatio: halfFloorUs / decode.us,
    exactUs,
    exactRatio: exactUs && exactUs / decode.us,
    torchUs,
    torchRatio: torchUs && torchUs / decode.us,
    append: { us: append.us, cycle: cycleOf(one), share: append.us / (append.us + decode.us) },
    pack: { us: pack.us, bytes: pack.bytes, copyShare: share(pack.bytes, pack.us) },
  };
}

/** Microseconds of a pass's work, which is let go of. */
async function timed(
  rt: MeasuredRuntime,
  pass: Pass,
  passes: number,
): Promise<{ us: number; leastUs: number; bytes: number }> {
  try {
    const seconds = await rt.time(pass.calls, { passes });
    const scale = 1e6 / pass.times;
    return { us: median(seconds) * scale, leastUs: Math.min(...seconds) * scale, bytes: pass.bytes };
  } finally {
    pass.dispose();
  }
}
