import { readFileSync, writeFileSync } from 'node:fs';
import type { NativeRuntime } from '../native/binding.js';

export interface PeakMemory {
  /** Resident bytes, pages of mapped files included. */
  readonly rss: number;
  /** Resident anonymous bytes (heap, stacks, tensors): what does not go back by itself under pressure. */
  readonly anonymous: number;
}

const SAMPLE_MS = 5;

/** A field of /proc/self/status in bytes. */
function status(text: string, field: string): number {
  const match = new RegExp(`^${field}:\\s+(\\d+) kB`, 'm').exec(text);
  return match ? Number(match[1]) * 1024 : 0;
}

/**
 * Watches this process's memory until stop(). The kernel counts the resident peak, from 0 where it lets us reset it, else
 * from the process's start; it counts no anonymous one, which is therefore sampled every 5 ms and whenever `sample` is
 * called.
 */
export class MemoryWatch {
  private anonymous = 0;
  private readonly timer: NodeJS.Timeout;

  constructor() {
    try {
      writeFileSync('/proc/self/clear_refs', '5');
    } catch {
      // Then the peak since the start is the answer.
    }
    this.sample();
    this.timer = setInterval(() => this.sample(), SAMPLE_MS);
    this.timer.unref();
  }

  readonly sample = (): void => {
    this.anonymous = Math.max(this.anonymous, status(readFileSync('/proc/self/status', 'latin1'), 'RssAnon'));
  };

  stop(): PeakMemory {
    clearInterval(this.timer);
    this.sample();
    const rss = status(readFileSync('/proc/self/status', 'latin1'), 'VmHWM');
    return { rss: rss || process.resourceUsage().maxRSS * 1024, anonymous: this.anonymous };
  }
}

/** What a runtime of a device with memory of its own tells of it. */
interface DeviceCounter {
  /** Undefined on the CPU. */
  memory?(): { readonly peakReserved: number } | undefined;
  resetPeak?(): void;
}

/** Most bytes that the runtime has taken from the device's driver since resetDevicePeak; null on the CPU. */
export function peakDeviceMemory(rt: NativeRuntime): number | null {
  return (rt as NativeRuntime & DeviceCounter).memory?.()?.peakReserved ?? null;
}

export function resetDevicePeak(rt: NativeRuntime): void {
  (rt as NativeRuntime & DeviceCounter).resetPeak?.();
}
