import type { MeasuredRuntime, Telemetry, TimingOptions } from '../../native/binding.js';
import { benchOps } from '../ops.js';
import { denseOperands, type Noise, type Operands } from './operands.js';
import type { Sustained, Variant } from './schema.js';

/** Microseconds of one product. */
export interface ProductTime {
  readonly us: number;
  readonly leastUs: number;
}

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}

/** Times a product: the median of passes over rotated weights. Rejects with what the operation throws. */
export async function timeProduct(
  rt: MeasuredRuntime,
  operands: Operands,
  m: number,
  options: TimingOptions & { readonly params?: Variant } = {},
): Promise<ProductTime> {
  const seconds = await passes(rt, operands, m, options);
  const scale = 1e6 / operands.products;
  return { us: median(seconds) * scale, leastUs: Math.min(...seconds) * scale };
}

async function passes(
  rt: MeasuredRuntime,
  operands: Operands,
  m: number,
  { params = {}, ...timing }: TimingOptions & { readonly params?: Variant },
): Promise<number[]> {
  const { calls, tensors } = operands.calls(m, params);
  try {
    return await rt.time(calls, timing);
  } finally {
    for (const tensor of tensors) tensor.dispose();
  }
}

/** Bytes read and written a second by copies far larger than any cache. */
export async function copyBandwidth(rt: MeasuredRuntime, passesTimed: number): Promise<number> {
  const bytes = rt.device === 'cpu' ? 1 << 27 : 2 ** 31;
  const [from, to] = [rt.allocate('u8', [bytes]), rt.allocate('u8', [bytes])];
  try {
    // Pages exist once they have been written.
    benchOps.copy(rt, to, from);
    const turns = rt.device === 'cpu' ? 1 : 4;
    const calls = Array.from({ length: turns }, () => ({ op: 'copy', inputs: [from], outputs: [to] }));
    const seconds = await rt.time(calls, { passes: passesTimed, graph: false });
    return (2 * turns * bytes) / median(seconds);
  } finally {
    for (const tensor of [from, to]) tensor.dispose();
  }
}

/** FLOP/s of cuBLAS on a product large enough to be limited by arithmetic. */
export async function cublasFlops(rt: MeasuredRuntime, noise: Noise, dtype: 'f16' | 'bf16'): Promise<number> {
  const size = 8192;
  const operands = denseOperands(noise, rt, { dtype, k: size, n: size, l2Bytes: 1 });
  try {
    const { us } = await timeProduct(rt, operands, size, { passes: 5 });
    return (2 * size ** 3) / (us * 1e-6);
  } finally {
    operands.dispose();
  }
}

const SAMPLE_MS = 100;

/** Runs a product for `seconds` without a pause, and watches the device's sensors meanwhile. */
export async function sustain(
  rt: MeasuredRuntime,
  operands: Operands,
  m: number,
  seconds: number,
  copyBytesPerSecond: number,
): Promise<Sustained> {
  const seen: Telemetry[] = [];
  const look = () => {
    const now = rt.telemetry();
    if (now) seen.push(now);
  };
  const timer = setInterval(look, SAMPLE_MS);
  let times: number[];
  try {
    times = await passes(rt, operands, m, { seconds });
  } finally {
    clearInterval(timer);
  }
  const scale = 1e6 / operands.products;
  const us = median(times.slice(times.length >> 1)) * scale;
  const sensor = (read: (each: Telemetry) => number | undefined) => {
    const values = seen.map(read).filter((value): value is number => value !== undefined);
    if (values.length === 0) return null;
    const mean = values.reduce((a, b) => a + b, 0) / values.length;
    return { least: Math.min(...values), mean: Number(mean.toFixed(1)), most: Math.max(...values) };
  };
  return {
    seconds: times.reduce((a, b) => a + b, 0),
    us,
    firstUs: median(times.slice(0, Math.ceil(times.length / 10))) * scale,
    copyShare: operands.bytes(m) / (us * 1e-6) / copyBytesPerSecond,
    smClockMhz: sensor(({ smClock }) => smClock),
    memoryClockMhz: sensor(({ memoryClock }) => memoryClock),
    powerWatts: sensor(({ power }) => power),
    temperatureC: sensor(({ temperature }) => temperature),
    powerLimitWatts: seen.at(-1)?.powerLimit ?? null,
    clockLimits: limitNames(seen.map(({ limits }) => limits ?? 0)),
  };
}

/** Bits of NVML's clock event reasons that mean slower clocks, in words. */
const LIMITS: readonly (readonly [bit: number, name: string])[] = [
  [0x2, 'application clocks'],
  [0x4, 'power cap'],
  [0x8, 'hardware slowdown'],
  [0x10, 'sync boost'],
  [0x20, 'temperature (software)'],
  [0x40, 'temperature (hardware)'],
  [0x80, 'power brake'],
  [0x100, 'display clocks'],
];

export function limitNames(masks: readonly number[]): string[] {
  return LIMITS.filter(([bit]) => masks.some((mask) => mask & bit)).map(([, name]) => name);
}
