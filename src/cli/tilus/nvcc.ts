import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { rename } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { writeError } from '../../../formats/directory/write-error.js';
import { tell } from '../../core/activity.js';
import type { Kernel } from '../../tilus/compile/compile.js';
import { buildCubins } from '../../tilus/device/nvcc.js';

/** Calls `body` with a folder of its own for nvcc's files. */
export async function withFolder<T>(body: (folder: string) => Promise<T>): Promise<T> {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'lpq-tilus-'));
  try {
    return await body(folder);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Compiles a kernel to a file with nvcc. Throws LPQ_BUILD, LPQ_OUTPUT_WRITE. */
export function writeCubin(output: string, kernel: Kernel, arch: number): Promise<void> {
  return withFolder(async (folder) => {
    tell('compiling with nvcc');
    const [made] = await buildCubins([kernel], arch, folder);
    const temporary = `${output}.lpq-tmp-${process.pid}`;
    try {
      writeFileSync(temporary, readFileSync(made!));
      await rename(temporary, output);
    } catch (cause) {
      rmSync(temporary, { force: true });
      throw writeError(output, cause);
    }
  });
}
