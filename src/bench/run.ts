import type { OutputDirectory } from '../../formats/directory/output-directory.js';
import type { NativeRuntime } from '../../native/binding.js';
import {
  type QuantizeEvents,
  type QuantizeRequest,
  type QuantizeSummary,
  quantizeCheckpoint,
} from '../quantize/run.js';
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
  rt: NativeRuntime,
  request: QuantizeRequest,
  events: QuantizeEvents,
  register: (output: OutputDirectory) => void,
): Promise<Measurement> {
  await rt.sync();
  rt.profile(); // what ran before does not count
  resetDevicePeak(rt);
  const waited = { read: 0, write: 0 };
  const blockSeconds: number[] = [];
  const watch = new MemoryWatch();
  try {
    const started = performance.now();
    const summary = await quantizeCheckpoint(
      rt,
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
    const operations = rt.profile();
    return {
      summary,
      seconds,
      blockSeconds,
      operations,
      peak: { ...watch.stop(), device: peakDeviceMemory(rt) },
      ...stageReport(operations, waited, seconds),
    };
  } finally {
    watch.stop();
  }
}
