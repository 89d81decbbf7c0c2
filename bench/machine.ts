import { z } from 'zod';
import { addon, type NativeRuntime } from '../native/binding.js';

/** What a benchmark of kernels ran on. */
export const machineSchema = z.strictObject({
  device: z.string(),
  gpu: z.string().nullable(),
  /** 10 * major + minor of the compute capability. */
  arch: z.int().nullable(),
  multiprocessors: z.int().nullable(),
  l2Bytes: z.int().nullable(),
  isa: z.string(),
  threads: z.int().positive(),
  processor: z.string(),
});
export type Machine = z.infer<typeof machineSchema>;

/** The GPU that a runtime computes on, as the driver describes it; undefined on the CPU. */
export function gpuOf(rt: NativeRuntime) {
  return rt.device === 'cpu' ? undefined : addon().cudaDevices()[Number(rt.device.slice('cuda:'.length))];
}

/** The machine of a runtime; `processor`: the CPU's name, which the caller asks the system for. */
export function machineOf(rt: NativeRuntime, processor: string): Machine {
  const gpu = gpuOf(rt);
  return {
    device: rt.device,
    gpu: gpu?.name ?? null,
    arch: gpu?.arch ?? null,
    multiprocessors: gpu?.multiprocessors ?? null,
    l2Bytes: gpu?.l2 ?? null,
    isa: addon().isa(),
    threads: rt.threads,
    processor,
  };
}
