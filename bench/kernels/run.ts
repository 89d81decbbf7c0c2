import type { MeasuredRuntime } from '../../native/binding.js';
import type { QuantType } from '../../src/core/quant-type.js';
import { gpuOf } from '../machine.js';
import { type BenchEvents, benchRecord, secondsSince } from '../record.js';
import { type GemmShape, shapeName } from './cases.js';
import { denseOperands, Noise, type Operands, packedOperands } from './operands.js';
import { MARLIN_SOURCE, marlinMicroseconds } from './peers.js';
import type { KernelBench, KernelRow, Tuned } from './schema.js';
import { settings } from './space.js';
import { copyBandwidth, cublasFlops, sustain, timeProduct } from './time.js';
import { tuneProduct } from './tune.js';

interface KernelBenchRequest {
  readonly types: readonly QuantType[];
  readonly shapes: readonly GemmShape[];
  readonly tokens: readonly number[];
  readonly dtype: 'f16' | 'bf16';
  /** 32, 64, 128, or 0 for one scale a row. */
  readonly group: number;
  readonly passes: number;
  /** Which products also run without a pause, and for how long. */
  readonly sustained: 'none' | 'largest' | 'all';
  readonly seconds: number;
  readonly tune: boolean;
  readonly lpq: string;
}

interface KernelBenchEvents extends BenchEvents<KernelRow> {
  readonly onTuned?: (point: Tuned) => void;
}

/** Measures packed products of every type, shape and number of tokens, with the peers that run here. */
export async function benchKernels(
  rt: MeasuredRuntime,
  request: KernelBenchRequest,
  events: KernelBenchEvents = {},
): Promise<KernelBench> {
  const started = performance.now();
  const { types, shapes, tokens, dtype, group, passes } = request;
  const facts = gpuOf(rt);
  const l2Bytes = facts?.l2 ?? 0;
  const noise = new Noise(rt);
  const rows: KernelRow[] = [];
  const points: Tuned[] = [];
  let tuneSeconds = 0;
  const step = (what: string) => events.onStep?.(what, rows.length, types.length * shapes.length * tokens.length);
  try {
    step('copies on the device');
    const copyBytesPerSecond = await copyBandwidth(rt, passes);
    let products = 1;
    for (const shape of shapes) {
      const dense = facts && (await denseTimes(rt, noise, shape, request, l2Bytes, step));
      for (const type of types) {
        const operands = packedOperands(noise, rt, { type, dtype, group, ...shape, l2Bytes });
        products = Math.max(products, operands.products);
        try {
          for (const m of tokens) {
            const product = { type: type.name, ...shape, m };
            const name = `${type.name} ${shapeName(shape)} M=${m}`;
            step(name);
            const row = await measure(rt, operands, product, request, copyBytesPerSecond, dense?.get(m) ?? null);
            rows.push(row);
            events.onRow?.(row);
            if (!request.tune) continue;
            const from = performance.now();
            const space = settings(m);
            const point = await tuneProduct(rt, operands, product, space, (i) =>
              step(`${name}: setting ${i} of ${space.length}`),
            );
            tuneSeconds += secondsSince(from);
            points.push(point);
            events.onTuned?.(point);
          }
        } finally {
          operands.dispose();
        }
      }
    }
    // Last: it takes so much power that clocks stay lower for a while.
    const flops = facts ? await cublasFlops(rt, noise, dtype) : null;
    const sum = (of: (point: Tuned) => number) => points.reduce((all, point) => all + of(point), 0);
    return {
      ...benchRecord('lpq-kernel-bench', rt, request.lpq, started),
      settings: { dtype, group: group === 0 ? 'channel' : (group as 32 | 64 | 128), passes, products },
      copyBytesPerSecond,
      cublasFlops: flops,
      peers: rows.some(({ marlinUs }) => marlinUs !== null) ? { MARLIN: MARLIN_SOURCE } : {},
      rows,
      ...(request.tune && {
        tuning: {
          space: Math.max(...tokens.map((m) => settings(m).length)),
          configurations: sum(({ variants }) => variants.length),
          refused: sum(({ refused }) => refused),
          seconds: tuneSeconds,
          points,
        },
      }),
    };
  } finally {
    noise.dispose();
  }
}

async function measure(
  rt: MeasuredRuntime,
  operands: Operands,
  product: GemmShape & { readonly type: string; readonly m: number },
  request: KernelBenchRequest,
  copies: number,
  cublasUs: number | null,
): Promise<KernelRow> {
  const { k, n, m } = product;
  const { us, leastUs } = await timeProduct(rt, operands, m, { passes: request.passes });
  const smClockMhz = rt.telemetry()?.smClock ?? null;
  const marlinUs = marlinMicroseconds({ gpu: gpuOf(rt)?.name, group: request.group, ...product });
  return {
    ...product,
    us,
    leastUs,
    smClockMhz,
    bytes: operands.bytes(m),
    copyShare: operands.bytes(m) / (us * 1e-6) / copies,
    cublasUs,
    cublasRatio: cublasUs && cublasUs / us,
    marlinUs,
    marlinRatio: marlinUs && marlinUs / us,
    ...(sustains(request, { k, n }, m) && { sustained: await sustain(rt, operands, m, request.seconds, copies) }),
  };
}

/** Microseconds of cuBLAS by tokens. */
async function denseTimes(
  rt: MeasuredRuntime,
  noise: Noise,
  shape: GemmShape,
  { tokens, dtype, passes }: KernelBenchRequest,
  l2Bytes: number,
  step: (what: string) => void,
): Promise<Map<number, number>> {
  const operands = denseOperands(noise, rt, { dtype, ...shape, l2Bytes });
  const times = new Map<number, number>();
  try {
    for (const m of tokens) {
      step(`cuBLAS ${shapeName(shape)} M=${m}`);
      times.set(m, (await timeProduct(rt, operands, m, { passes })).us);
    }
  } finally {
    operands.dispose();
  }
  return times;
}

/** `largest`: the largest weight, at the most tokens up to 16, where a product is all about bytes. */
function sustains({ sustained, shapes, tokens }: KernelBenchRequest, shape: GemmShape, m: number): boolean {
  if (sustained !== 'largest') return sustained === 'all';
  const size = ({ k, n }: GemmShape) => k * n;
  // The first of several.
  const largest = shapes.reduce((a, b) => (size(b) > size(a) ? b : a));
  const few = Math.max(...tokens.filter((each) => each <= 16), Math.min(...tokens));
  return shapeName(largest) === shapeName(shape) && m === few;
}
