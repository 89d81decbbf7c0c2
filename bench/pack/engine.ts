import type { MeasuredRuntime } from '../../native/binding.js';
import { tell } from '../../src/core/activity.js';
import { layoutParams } from '../../src/layout/engine.js';
import { Noise } from '../kernels/operands.js';
import { copyBandwidth, median } from '../kernels/time.js';
import type { PackCase } from './layouts.js';

/** One layout's speed. Rates are of packed output, bytes a second. */
export interface PackRate {
  readonly layout: string;
  readonly bits: number;
  readonly n: number;
  readonly k: number;
  /** Of packed output. */
  readonly bytes: number;
  readonly seconds: number;
  readonly bytesPerSecond: number;
  /** On the CPU by processor time, as if the threads had it to themselves; null on a device. */
  readonly idleBytesPerSecond: number | null;
  /** Codes read and words written against the device's copy, which is counted in bytes read and written. */
  readonly copyShare: number;
}

export interface EngineReport {
  readonly copyBytesPerSecond: number;
  readonly rows: readonly PackRate[];
}

/** Packs random bitstream rows [N, K] with each layout, by the engine that `lpq pack` uses on this device. */
export async function benchEngine(
  rt: MeasuredRuntime,
  cases: readonly PackCase[],
  { n, k, passes }: { readonly n: number; readonly k: number; readonly passes: number },
  onRow: (row: PackRate) => void = () => {},
): Promise<EngineReport> {
  const noise = new Noise(rt);
  const rows: PackRate[] = [];
  try {
    const copyBytesPerSecond = await copyBandwidth(rt, passes);
    const cpu = rt.device === 'cpu';
    for (const [i, { layout, bits, memory }] of cases.entries()) {
      tell(`${layout} ${bits} bits`, i, cases.length);
      const rowBytes = Math.ceil((k * bits) / 8);
      const matrix = noise.fill('codes', 'u8', [n, rowBytes]);
      const packed = rt.allocate('u8', [memory.bytes]);
      const turns = cpu ? 1 : 8;
      const params = { ...layoutParams(memory, { streamColumns: k }), pad: 0, keep: 0 };
      const call = { op: 'layout_pack', inputs: [matrix], outputs: [packed], params };
      try {
        // Its tables go along with the call, so it cannot be recorded.
        const options = { passes, graph: false };
        const calls = Array.from({ length: turns }, () => call);
        await rt.time(calls, { ...options, passes: 1 });
        const used = process.cpuUsage();
        const times = await rt.time(calls, options);
        const { user, system } = process.cpuUsage(used);
        const seconds = median(times) / turns;
        // time() passes once more than it counts.
        const idle = (user + system) / 1e6 / rt.threads / (passes + 1);
        rows.push({
          layout,
          bits,
          n,
          k,
          bytes: memory.bytes,
          seconds,
          bytesPerSecond: memory.bytes / seconds,
          idleBytesPerSecond: cpu ? memory.bytes / idle : null,
          copyShare: (matrix.byteLength + memory.bytes) / seconds / copyBytesPerSecond,
        });
        onRow(rows.at(-1)!);
      } finally {
        for (const tensor of [matrix, packed]) tensor.dispose();
      }
    }
    return { copyBytesPerSecond, rows };
  } finally {
    noise.dispose();
  }
}
