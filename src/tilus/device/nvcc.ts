import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { LpqError } from '../../core/error.js';
import type { Kernel } from '../compile/compile.js';

const native = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..', '..', 'native');
const HOME = '/usr/local/cuda/bin/nvcc';

/**
 * Compiles kernels to NAME.cubin in `folder`, with nvcc (NVCC, CUDA's directory or the PATH), `jobs` at once; returns the files in the order
 * of the kernels. `arch`: 80, 86, 89 or 90. Throws LPQ_BUILD.
 */
export async function buildCubins(
  kernels: readonly Kernel[],
  arch: number,
  folder: string,
  { jobs = 1, onBuilt = () => {} }: { readonly jobs?: number; readonly onBuilt?: (done: number) => void } = {},
): Promise<string[]> {
  const nvcc = process.env.NVCC ?? (existsSync(HOME) ? HOME : 'nvcc');
  const files = kernels.map(({ name }) => path.join(folder, `${name}.cubin`));
  let next = 0;
  let done = 0;
  let failed = false;
  const worker = async (): Promise<void> => {
    while (next < kernels.length && !failed) {
      const at = next++;
      const { name, text, features } = kernels[at]!;
      const source = path.join(folder, `${name}.cu`);
      await writeFile(source, text);
      try {
        await compileFile(nvcc, source, files[at]!, `${arch}${features}`);
      } catch (error) {
        failed = true;
        throw error;
      }
      onBuilt(++done);
    }
  };
  await Promise.all(Array.from({ length: Math.min(jobs, kernels.length) }, worker));
  return files;
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
