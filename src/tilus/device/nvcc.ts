import { spawn } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { LpqError } from '../../core/error.js';
import type { Kernel } from '../compile/compile.js';

const native = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..', '..', 'native');
const HOME = '/usr/local/cuda/bin/nvcc';

/** Kernels of one file: a compiler takes longer to start and to read headers than to compile a kernel. */
const TOGETHER = 8;

/**
 * Compiles kernels with nvcc (NVCC, CUDA's directory or the PATH) to files in `folder`, `jobs` at once; returns the file of each kernel. What
 * `folder` has of the same text is not compiled again. `arch`: 80, 86, 89 or 90. Throws LPQ_BUILD.
 */
export async function buildCubins(
  kernels: readonly Kernel[],
  arch: number,
  folder: string,
  { jobs = 1, onBuilt = () => {} }: { readonly jobs?: number; readonly onBuilt?: (done: number) => void } = {},
): Promise<string[]> {
  const nvcc = process.env.NVCC ?? (existsSync(HOME) ? HOME : 'nvcc');
  const batches = batchesOf(kernels, Math.max(1, Math.min(TOGETHER, Math.ceil(kernels.length / jobs))));
  const files = new Map<Kernel, string>();
  let done = 0;
  const waiting = batches.values();
  const worker = async (): Promise<void> => {
    for (const batch of waiting) {
      const { name, features } = batch[0]!;
      const [source, cubin] = ['cu', 'cubin'].map((ending) => path.join(folder, `${name}.${ending}`)) as [
        string,
        string,
      ];
      const text = batch.map((kernel) => kernel.text).join('\n');
      if (!existsSync(cubin) || !existsSync(source) || readFileSync(source, 'utf8') !== text) {
        await writeFile(source, text);
        await compileFile(nvcc, source, cubin, `${arch}${features}`);
      }
      for (const kernel of batch) files.set(kernel, cubin);
      done += batch.length;
      onBuilt(done);
    }
  };
  await Promise.all(Array.from({ length: Math.min(jobs, batches.length) }, worker));
  return kernels.map((kernel) => files.get(kernel)!);
}

/** Kernels for the same features together. */
function batchesOf(kernels: readonly Kernel[], most: number): Kernel[][] {
  const batches: Kernel[][] = [];
  for (const features of ['', 'a']) {
    const alike = kernels.filter((kernel) => kernel.features === features);
    for (let i = 0; i < alike.length; i += most) batches.push(alike.slice(i, i + most));
  }
  return batches;
}

function compileFile(nvcc: string, source: string, output: string, arch: string): Promise<void> {
  const includes = ['-I', native, '-I', path.join(native, 'include')];
  const options = ['-std=c++20', `-gencode=arch=compute_${arch},code=sm_${arch}`, ...includes];
  return new Promise((resolve, reject) => {
    const child = spawn(nvcc, [...options, '-cubin', '-o', output, source], { stdio: ['ignore', 'ignore', 'pipe'] });
    let told = '';
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      told += text;
    });
    const refuse = (got: string): void =>
      reject(
        new LpqError('LPQ_BUILD', `nvcc did not compile the kernel for sm_${arch}`, {
          got,
          hint: 'Install the CUDA toolkit (12.0 or newer), or name its compiler in NVCC.',
        }),
      );
    child.on('error', () => refuse(`${nvcc} does not start`));
    child.on('close', (status) => (status === 0 ? resolve() : refuse(told.split('\n').slice(0, 3).join(' '))));
  });
}
