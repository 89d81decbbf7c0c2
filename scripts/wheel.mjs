// node scripts/wheel.mjs [-o DIR]: the wheel of python/, with liblpq_kernels.so of native/build inside (LPQ_KERNELS names another), into
// build/wheel. Needs a Python (LPQ_PYTHON), no pip and no index. If that Python has torch 2.10 or later, a C++ compiler makes torch's operations.
// LPQ_CUDA_FATBIN names kernels for NVIDIA GPUs that it holds, too.
import { spawnSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const { values } = parseArgs({ options: { output: { type: 'string', short: 'o' } } });
const place = path.resolve(values.output ?? path.join(root, 'build', 'wheel'));
mkdirSync(place, { recursive: true });
const program =
  'import sys; sys.dont_write_bytecode = True; import wheel_backend; print(wheel_backend.build_wheel(sys.argv[1]))';
const made = spawnSync(process.env.LPQ_PYTHON ?? 'python3', ['-c', program, place], {
  cwd: path.join(root, 'python'),
  encoding: 'utf8',
  env: {
    ...process.env,
    LPQ_KERNELS: process.env.LPQ_KERNELS ?? path.join(root, 'native', 'build', 'liblpq_kernels.so.1'),
  },
});
if (made.status !== 0) {
  console.error(made.error?.message ?? made.stderr.trim());
  process.exit(1);
}
process.stderr.write(made.stderr);
console.log(path.join(place, made.stdout.trim()));
