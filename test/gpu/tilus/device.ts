import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import path from 'node:path';
import { createRuntime } from '../../../native/binding.js';
import { QUANT_TYPES } from '../../../src/core/quant-type.js';
import type { Program } from '../../../src/tilus/check/program.js';
import { compile, type Kernel } from '../../../src/tilus/compile/compile.js';
import { buildCubins } from '../../../src/tilus/device/nvcc.js';
import { runOnDevice } from '../../../src/tilus/device/run.js';
import { type LaunchArguments, run } from '../../../src/tilus/interpret/run.js';
import { gpus } from '../gpu.js';

/** Types of a run: LPQ_TEST_TYPES, or all 36. A sanitizer is a hundred times slower than a device. */
export const TYPES = process.env.LPQ_TEST_TYPES?.split(',') ?? QUANT_TYPES.map(({ name }) => name);

export const nvcc = [process.env.NVCC, '/usr/local/cuda/bin/nvcc', 'nvcc'].find(
  (name) => name !== undefined && spawnSync(name, ['--version']).status === 0,
);

/** A launch, in the interpreter and on a device. */
export interface Twin {
  readonly label: string;
  readonly program: Program;
  readonly args: Readonly<Record<string, number | Uint8Array>>;
  /** The pointer that the program writes, and its bytes. */
  readonly output: readonly [name: string, bytes: number];
  /** Called with what the interpreter and the device wrote; throws where they differ by more than they may. */
  readonly compare: (interpreted: Uint8Array, device: Uint8Array) => void;
}

/**
 * Compiles all programs with nvcc for the device, while the interpreter runs them, then launches and compares each. Returns sentences about
 * those that differ. Outputs are poisoned before the launch (runOnDevice). LPQ_TEST_CUBINS names a folder that keeps what nvcc made, so that
 * a second run under compute-sanitizer starts no compilers.
 */
export async function compareTwins(name: string, twins: readonly Twin[]): Promise<string[]> {
  const kept = process.env.LPQ_TEST_CUBINS;
  const folder = kept ?? mkdtempSync(path.join(tmpdir(), 'lpq-tilus-gpu-'));
  mkdirSync(folder, { recursive: true });
  const rt = createRuntime({ device: 'cuda:0' });
  try {
    const kernels: Kernel[] = twins.map(({ program }, i) => compile(program, `${name}_${program.name}_${i}`));
    const building = buildCubins(kernels, gpus[0]!.arch, folder, { jobs: availableParallelism() });
    building.catch(() => {});
    const interpreted: Uint8Array[] = [];
    for (const twin of twins) {
      interpreted.push(new Uint8Array(twin.output[1]));
      run(twin.program, given(twin, interpreted.at(-1)!));
      await new Promise(setImmediate); // compilers that ended are followed by others
    }
    const cubins = await building;
    const wrong: string[] = [];
    for (const [i, twin] of twins.entries()) {
      const made = new Uint8Array(twin.output[1]);
      try {
        await runOnDevice(rt, { program: twin.program, kernel: kernels[i]!, cubin: cubins[i]! }, given(twin, made));
        twin.compare(interpreted[i]!, made);
      } catch (error) {
        wrong.push(`${twin.label}: ${(error as Error).message.slice(0, 300)}`);
        // Nothing can run on a context after a fault.
        if ((error as { code?: string }).code === 'LPQ_CUDA_LOST') break;
      }
    }
    return wrong;
  } finally {
    if (kept === undefined) rmSync(folder, { recursive: true });
  }
}

function given({ args, output: [name] }: Twin, output: Uint8Array): LaunchArguments {
  return { ...args, [name]: { output } };
}
