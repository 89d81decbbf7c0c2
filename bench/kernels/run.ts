import type { MeasuredRuntime } from '../../native/binding.js';
import type { QuantType } from '../../src/core/quant-type.js';
import { gpuOf, machineOf } from '../machine.js';
import { type GemmShape, shapeName } from './cases.js';
import { denseOperands, Noise, packedOperands } from './operands.js';
import { MARLIN_SOURCE, marlinMicroseconds } from './peers.js';
import type { KernelBench, KernelRow, Tuned } from './schema.js';
import { settings } from './space.js';
import { copyBandwidth, cublasFlops, sustain, timeProduct } from './time.js';
import { tuneProduct } from './tune.js';

export interface KernelBenchRequest {
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
  readonly processor: string;
}

export interface KernelBenchEvents {
  readonly onRow?: (row: KernelRow, done: number, total: number) => void;
  readonly onTuned?: (point: Tuned) => void;
  /** What is being measured now. */
  readonly onStep?: (what: string, done: number, total: number) => void;
  /** Throws to stop. */
  readonly check?: () => void;
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
  const total = types.length * shapes.length * tokens.length;
  try {
    events.onStep?.('copies on the device', 0, total);
    const copyBytesPerSecond = await copyBandwidth(rt, passes);
    let products = 1;
    for (const shape of shapes) {
      const dense = facts && (await denseTimes(rt, noise, shape, request, l2Bytes, events));
      for (const type of types) {
        const operands = packedOperands(noise, rt, { type, dtype, group, ...shape, l2Bytes });
        products = Math.max(products, operands.products);
        try {
          for (const m of tokens) {
            events.check?.();
            events.onStep?.(`${type.name} ${shapeName(shape)} M=${m}`, rows.length, total);
            const { us, leastUs } = await timeProduct(rt, operands, m, { passes });
            const smClockMhz = rt.telemetry()?.smClock ?? null;
            const cublasUs = dense?.get(m) ?? null;
            const marlinUs = marlinMicroseconds({ gpu: facts?.name, type: type.name, group, ...shape, m });
            const row: KernelRow = {
              type: type.name,
              ...shape,
              m,
              us,
              leastUs,
              smClockMhz,
              bytes: operands.bytes(m),
              copyShare: operands.bytes(m) / (us * 1e-6) / copyBytesPerSecond,
              cublasUs,
              cublasRatio: cublasUs && cublasUs / us,
              marlinUs,
              marlinRatio: marlinUs && marlinUs / us,
              ...(sustains(request, shape, m) && {
                sustained: await sustain(rt, operands, m, request.seconds, copyBytesPerSecond),
              }),
            };
            rows.push(row);
            events.onRow?.(row, rows.length, total);
            if (!request.tune) continue;
            const from = performance.now();
            const space = settings(m);
            const point = await tuneProduct(rt, operands, { type: type.name, ...shape, m }, space, {
              onVariant: (i, n) =>
                events.onStep?.(`${type.name} ${shapeName(shape)} M=${m}: setting ${i} of ${n}`, rows.length, total),
              ...(events.check && { check: events.check }),
            });
            tuneSeconds += (performance.now() - from) / 1000;
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
    return {
      format: 'lpq-kernel-bench',
      version: 1,
      lpq: request.lpq,
      date: new Date().toISOString().slice(0, 10),
      machine: machineOf(rt, request.processor),
      settings: { dtype, group: group === 0 ? 'channel' : (group as 32 | 64 | 128), passes, products },
      copyBytesPerSecond,
      cublasFlops: flops,
      peers: rows.some(({ marlinUs }) => marlinUs !== null) ? { MARLIN: MARLIN_SOURCE } : {},
      rows,
      ...(request.tune && {
        tuning: {
          space: Math.max(...tokens.map((m) => settings(m).length)),
          configurations: points.reduce((sum, { variants }) => sum + variants.length, 0),
          refused: points.reduce((sum, point) => sum + point.refused, 0),
          seconds: tuneSeconds,
          points,
        },
      }),
      seconds: (performance.now() - started) / 1000,
    };
  } finally {
    noise.dispose();
  }
}

/** Microseconds of cuBLAS by tokens. */
async function denseTimes(
  rt: MeasuredRuntime,
  noise: Noise,
  shape: GemmShape,
  { tokens, dtype, passes }: KernelBenchRequest,
  l2Bytes: number,
  events: KernelBenchEvents,
): Promise<Map<number, number>> {
  const operands = denseOperands(noise, rt, { dtype, ...shape, l2Bytes });
  const times = new Map<number, number>();
  try {
    for (const m of tokens) {
      events.check?.();
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
  const largest = Math.max(...shapes.map(size));
  const few = Math.max(...tokens.filter((each) => each <= 16), Math.min(...tokens));
  return shapes.find((each) => size(each) === largest) === shape && m === few;
}
