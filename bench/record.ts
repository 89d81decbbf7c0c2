import { z } from 'zod';
import { addon, type NativeRuntime } from '../native/binding.js';
import { gpuOf, processorName } from './machine.js';

export const positive = z.number().positive();
export const count = z.int().positive();

/** What a benchmark of kernels ran on. */
const machineSchema = z.strictObject({
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

/** What a benchmark writes: `fields`, and where, when and by which lpq they were measured. */
export const benchSchema = <F extends string, S extends z.ZodRawShape>(format: F, fields: S) =>
  z.strictObject({
    format: z.literal(format),
    version: z.literal(1),
    lpq: z.string(),
    date: z.iso.date(),
    machine: machineSchema,
    ...fields,
    seconds: positive,
  });

/** The same of a benchmark that ends now. */
export function benchRecord<F extends string>(format: F, rt: NativeRuntime, lpq: string, started: number) {
  const date = new Date().toISOString().slice(0, 10);
  return { format, version: 1 as const, lpq, date, machine: machineOf(rt), seconds: secondsSince(started) };
}

export const secondsSince = (started: number): number => (performance.now() - started) / 1000;

/** Who is told how a measurement goes. */
export interface BenchEvents<Row> {
  readonly onRow?: (row: Row) => void;
  /** What is being measured now; throws to stop. */
  readonly onStep?: (what: string, done: number, total: number) => void;
}

function machineOf(rt: NativeRuntime): Machine {
  const gpu = gpuOf(rt);
  return {
    device: rt.device,
    gpu: gpu?.name ?? null,
    arch: gpu?.arch ?? null,
    multiprocessors: gpu?.multiprocessors ?? null,
    l2Bytes: gpu?.l2 ?? null,
    isa: addon().isa(),
    threads: rt.threads,
    processor: processorName(),
  };
}
