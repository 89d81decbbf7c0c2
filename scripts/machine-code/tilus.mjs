// Registers, spills and shared memory of the Tilus program matmul beside those of the hand-written kernel with the same tile
// (native/cuda/gemm/kernels/large.cuh, as native/cuda/machine-code.json records it). Needs nvcc, a C++ compiler and `npm run build`.
//   node scripts/machine-code/tilus.mjs --json FILE
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { check } from '../../dist/src/tilus/check/check.js';
import { compile } from '../../dist/src/tilus/compile/compile.js';
import { program } from '../../dist/src/tilus/programs.js';

const root = path.resolve(import.meta.dirname, '..', '..');
const { values: options } = parseArgs({ options: { json: { type: 'string' } } });
const includes = ['-I', path.join(root, 'native'), '-I', path.join(root, 'native', 'include'), '-std=c++20'];
/** Types, each with the name of the hand-written kernel's. */
const TYPES = { u3: 'int3', u4: 'int4', f6e3m2: 'float6', u8: 'int8' };
const TOKENS = [32, 64, 128];

function tool(command, args) {
  const run = spawnSync(command, args, { encoding: 'utf8' });
  if (run.error || run.status !== 0) {
    console.error(`LPQ_MACHINE_CODE: ${command} failed: ${run.error?.message ?? run.stderr}`);
    process.exit(3);
  }
  return `${run.stdout}${run.stderr}`;
}

const folder = mkdtempSync(path.join(tmpdir(), 'lpq-tilus-'));
const file = (name) => path.join(folder, name);

/** Bytes of shared memory of the hand-written kernels, which ask for them when they are launched. */
function handWrittenShared() {
  const calls = Object.keys(TYPES).flatMap((type) =>
    TOKENS.map((m) => `lpq::cuda::large_shared(${Number(type[1])}, ${m / 8})`),
  );
  writeFileSync(
    file('shared.cpp'),
    `#include <cstdio>\n#include "cuda/gemm/families/large.h"\nint main() { ${calls.map((call) => `std::printf("%d ", ${call});`).join(' ')} }\n`,
  );
  tool(process.env.CXX ?? 'c++', [...includes, '-o', file('shared'), file('shared.cpp')]);
  return tool(file('shared'), []).trim().split(' ').map(Number);
}

try {
  const recorded = JSON.parse(readFileSync(path.join(root, 'native', 'cuda', 'machine-code.json'), 'utf8'));
  const shared = handWrittenShared();
  const kernels = Object.keys(TYPES).flatMap((T) =>
    TOKENS.map((m) => {
      const settings = { T, N: 4096, K: 4096, GROUPS: 32, WN: 8, RN: 4, RK: 4, RM: m / 16, STAGES: 3 };
      return { T, m, kernel: compile(check(program('matmul'), { settings }), `matmul_${T}_${m}`) };
    }),
  );
  writeFileSync(file('all.cu'), kernels.map(({ kernel }) => kernel.text).join('\n'));
  const rows = [];
  for (const arch of [80, 89, 90]) {
    const log = tool('nvcc', [
      ...includes,
      `-arch=sm_${arch}`,
      '-Xptxas',
      '-v',
      '-cubin',
      '-o',
      file('cubin'),
      file('all.cu'),
    ]);
    const found =
      /entry function '(\w+)'[\s\S]*?(\d+) bytes stack[\s\S]*?(\d+) bytes spill stores, (\d+) bytes spill loads[\s\S]*?Used (\d+) registers/g;
    const each = new Map([...log.matchAll(found)].map(([, name, ...numbers]) => [name, numbers.map(Number)]));
    for (const [i, { T, m, kernel }] of kernels.entries()) {
      const [stack, stores, loads, registers] = each.get(`matmul_${T}_${m}`);
      const program = { registers, stack, spills: stores + loads, shared: kernel.sharedBytes };
      // Devices of 8.9 run the machine code of 8.0; those of 9.0 have another kernel.
      const [, theirs, theirStack] = recorded.kernels.sm_80[`lpq_large_${TYPES[T]}_f16_t${m / 8}`];
      const handWritten = { registers: theirs, stack: theirStack, shared: shared[i] };
      rows.push({ arch, type: T, tokens: m, program, ...(arch < 90 && { handWritten }) });
      console.log(
        `sm_${arch} ${T} ${m}: ${JSON.stringify(program)}${arch < 90 ? ` hand-written ${JSON.stringify(handWritten)}` : ''}`,
      );
    }
  }
  if (options.json) {
    const head = {
      what: 'Tilus program matmul, a tile of 256 columns and 64 of k, 8 warps, three stages, f16, groups of 128: of a thread, and bytes of a block.',
      command: 'node scripts/machine-code/tilus.mjs --json FILE',
      compiler: /release .*/.exec(tool('nvcc', ['--version']))[0],
      handWrittenCompiler: recorded.compiler,
    };
    writeFileSync(options.json, `${JSON.stringify({ ...head, rows }, null, 1)}\n`);
  }
} finally {
  rmSync(folder, { recursive: true });
}
