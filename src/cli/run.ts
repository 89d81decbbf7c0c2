import type { Command } from 'commander';
import { createRuntime, type MeasuredRuntime, MOST_THREADS, type NativeRuntime } from '../../native/binding.js';
import { tell } from '../core/activity.js';
import type { ExitCode } from '../core/error.js';
import { chooseDevice, chooseDevices, obstacle, parseBytes } from './options/device.js';
import { integer } from './options/parse.js';
import type { Interrupt } from './terminal/interrupt.js';
import type { Reporter, Task } from './terminal/reporter.js';

/** What every command is given. */
export interface Run {
  readonly report: Reporter;
  readonly interrupt: Interrupt;
  /** What the process shall end with when nothing is thrown. */
  exit: ExitCode;
}

export interface ComputeOptions {
  readonly device: string;
  readonly threads?: number;
  /** Bytes. */
  readonly vramLimit?: number;
  /** Of a CUDA device, between products. */
  readonly activations?: 'f16' | 'bf16';
  /** Number format of the CPU's products; default f32. */
  readonly products?: NativeRuntime['products'] | undefined;
}

/** Options of every command. Reporter reads them from the arguments, so that errors of parsing obey them too. */
export function commonOptions(command: Command): Command {
  return command
    .optionsGroup('Output:')
    .option('--json', 'print events as NDJSON on stdout, and nothing else')
    .option('--quiet', 'print results, warnings and errors only')
    .option('--verbose', 'print a line for every module, and the stack of an internal error');
}

/** Options of commands that compute. */
export function computeOptions(command: Command): Command {
  return command
    .optionsGroup('Device:')
    .option('--device <device>', 'auto, cpu, cuda or cuda:N; for quantize also cuda:0,cuda:1 or cuda:all', 'auto')
    .option(
      '--threads <n>',
      'number of threads (default: LPQ_THREADS, else every core)',
      integer('--threads', 1, MOST_THREADS),
    )
    .option(
      '--vram-limit <size>',
      'most memory to use on each device, such as 24g (default: all)',
      parseBytes('--vram-limit'),
    );
}

/**
 * A queue on the chosen device, stopped by Ctrl-C; `cuda`: whether the command has CUDA operations. Throws LPQ_USAGE,
 * LPQ_DEVICE, LPQ_NATIVE_MISSING and, where CUDA was asked for by name, LPQ_CUDA_KERNELS.
 */
export function openRuntime(run: Run, options: ComputeOptions, cuda = true): MeasuredRuntime {
  const { threads, vramLimit, activations, products } = options;
  const device = chooseDevice(options.device, cuda);
  const why = cuda && options.device === 'auto' && device === 'cpu' ? obstacle() : undefined;
  if (why !== undefined) run.report.warn(`computing on the CPU: ${why}`);
  tell(`starting ${device}`);
  try {
    const half = device !== 'cpu' && activations !== undefined ? { activationDtype: activations } : {};
    return run.interrupt.watch(createRuntime({ device, threads, vramLimit, products, ...half }));
  } catch (error) {
    if (options.device !== 'auto' || device === 'cpu' || !(error as { code?: string }).code?.startsWith('LPQ_CUDA'))
      throw error;
    run.report.warn(`computing on the CPU, because ${device} cannot be used: ${(error as Error).message}`);
    return run.interrupt.watch(createRuntime({ threads, products }));
  }
}

/** Like openRuntime(), for commands that share their work out over several devices. */
export function openRuntimes(run: Run, options: ComputeOptions): NativeRuntime[] {
  const devices = chooseDevices(options.device);
  if (devices.length === 1) return [openRuntime(run, { ...options, device: onlyDevice(options.device, devices) })];
  const { threads, vramLimit } = options;
  return devices.map((device) => run.interrupt.watch(createRuntime({ device, threads, vramLimit })));
}

/** 'auto' stays what it is: it may fall back to the CPU. */
function onlyDevice(wish: string, devices: readonly string[]): string {
  return wish === 'auto' ? wish : (devices[0] as string);
}

/** A bar that begins with the first step, when its total is known; each step answers Ctrl-C. `events`: as of Reporter.task. */
export function progress(run: Run, label: string, events = true) {
  let task: Task | undefined;
  return {
    step(done: number, total: number, detail?: string): void {
      run.interrupt.check();
      task ??= run.report.task(label, total, events);
      task.update(done, detail);
    },
    end: () => task?.end(),
  };
}
