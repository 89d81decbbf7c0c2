import os from 'node:os';
import { addon, type NativeRuntime } from '../native/binding.js';

/** The GPU that a runtime computes on, as the driver describes it; undefined on the CPU. */
export function gpuOf(rt: NativeRuntime) {
  return rt.device === 'cpu' ? undefined : addon().cudaDevices()[Number(rt.device.slice('cuda:'.length))];
}

export const processorName = (): string => os.cpus()[0]?.model.trim() ?? os.arch();
