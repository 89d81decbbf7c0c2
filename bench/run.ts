import type { OutputDirectory } from '../formats/directory/output-directory.js';
import { withBeside } from '../native/beside.js';
import type { NativeRuntime } from '../native/binding.js';
import {
  type QuantizeEvents,
  type QuantizeRequest,
  type QuantizeSummary,
  quantizeCheckpoint,
} from '../src/quantize/run.js';
import { MemoryWatch, type PeakMemory, peakDeviceMemory, resetDevicePeak } from './memory.js';
import { type Profile, type StageReport, stageReport } from './stages.js';

/** What a measured quantization took. */
export interface Measurement extends StageReport {
  readonly summary: QuantizeSummary;
  /** From opening the checkpoint to the finished, synced output. */
  readonly seconds: number;
  readonly blockSeconds: readonly number[];
  readonly operations: Profile;
  readonly peak: PeakMemory & { readonly device: number | null };
}

/** Runs the very pipeline of `lpq quantize` and measures it. */
export async function measureQuantization(
  rts: readonly NativeRuntime[],
  request: QuantizeRequest,
  events: QuantizeEvents,
  register: (output: OutputDirectory) => void,
): Promise<Measurement> {
  for (const rt of rts) {
    await rt.sync();
    rt.profile(); // what ran before does not count
    resetDevicePeak(rt);
  }
  const waited = { read: 0, write: 0 };
  const blockSeconds: number[] = [];
  const watch = new MemoryWatch();
  try {
    const started = performance.now();
    const summary = await quantizeCheckpoint(
      rts,
      request,
      {
        ...events,
        onModule: (line) => {
          watch.sample();
          events.onModule?.(line);
        },
        onSpan: (span, seconds) => {
          if (span === 'block') blockSeconds.push(seconds);
          else waited[span] += seconds;
        },
      },
      register,
    );
    const seconds = (performance.now() - started) / 1000;
    const operations = addProfiles(withBeside(rts).map((rt) => rt.profile()));
    return {
      summary,
      seconds,
      blockSeconds,
      operations,
      peak: { ...watch.stop(), device: largestPeak(rts) },
      ...stageReport(operations, waited, seconds),
    };
  } finally {
    watch.stop();
  }
}

/** Device time of all devices and streams together. */
function addProfiles(profiles: readonly Profile[]): Profile {
  const sum: Record<string, { calls: number; seconds: number }> = {};
  for (const [op, { calls, seconds }] of profiles.flatMap((profile) => Object.entries(profile))) {
    const before = sum[op] ?? { calls: 0, seconds: 0 };
    sum[op] = { calls: before.calls + calls, seconds: before.seconds + seconds };
  }
  return sum;
}

function largestPeak(rts: readonly NativeRuntime[]): number | null {
  const peaks = rts
    .map((rt) => withBeside([rt]).flatMap((each) => peakDeviceMemory(each) ?? []))
    .flatMap((own) => (own.length > 0 ? own.reduce((a, b) => a + b) : []));
  return peaks.length > 0 ? Math.max(...peaks) : null;
}
