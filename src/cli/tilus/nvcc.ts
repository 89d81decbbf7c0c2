import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { rename } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';
import { writeError } from '../../../formats/directory/write-error.js';
import { tell } from '../../core/activity.js';
import { LpqError } from '../../core/error.js';

const native = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..', '..', 'native');

/** Compiles the text of a kernel with nvcc (from NVCC, the PATH or CUDA's directory). Throws LPQ_BUILD, LPQ_OUTPUT_WRITE. */
export async function writeCubin(output: string, text: string, arch: string): Promise<void> {
  const home = '/usr/local/cuda/bin/nvcc';
  const nvcc = process.env.NVCC ?? (existsSync(home) ? home : 'nvcc');
  const folder = mkdtempSync(path.join(os.tmpdir(), 'lpq-tilus-'));
  try {
    const source = path.join(folder, 'kernel.cu');
    const made = path.join(folder, 'kernel.cubin');
    writeFileSync(source, text);
    const includes = ['-I', native, '-I', path.join(native, 'include')];
    tell('compiling with nvcc');
    const run = await execa(nvcc, ['-std=c++20', `-arch=sm_${arch}`, ...includes, '-cubin', '-o', made, source], {
      reject: false,
    });
    if (run.exitCode !== 0)
      throw new LpqError('LPQ_BUILD', `nvcc did not compile the kernel for sm_${arch}`, {
        got: run.exitCode === undefined ? `${nvcc} does not start` : run.stderr.split('\n').slice(0, 3).join(' '),
        hint: 'Install the CUDA toolkit (12.0 or newer), or name its compiler in NVCC.',
      });
    const temporary = `${output}.lpq-tmp-${process.pid}`;
    try {
      writeFileSync(temporary, readFileSync(made));
      await rename(temporary, output);
    } catch (cause) {
      rmSync(temporary, { force: true });
      throw writeError(output, cause);
    }
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
