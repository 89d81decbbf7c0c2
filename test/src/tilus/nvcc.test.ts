import assert from 'node:assert/strict';
import { type SpawnSyncReturns, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { QUANT_TYPES } from '../../../src/core/quant-type.js';
import { check, type Settings } from '../../../src/tilus/check/check.js';
import { compile } from '../../../src/tilus/compile/compile.js';
import { program } from '../../../src/tilus/programs.js';
import { ALL, sampled } from '../../sample.js';
import { root } from '../cli/lpq.js';

/** A small tile, and one of four warps. */
const SHAPES: readonly Settings[] = [
  { N: 4096, K: 4096, RN: 2, RK: 4, WN: 4, STAGES: 4, GROUPS: 32 },
  { N: 4096, K: 4096, WM: 2, WN: 4, RM: 4, RN: 2, RK: 2, STAGES: 3, GROUPS: 32 },
];
/** Codes of 7 bits lie across words: in the second tile of theirs a thread lacks two registers on sm_90. */
const SPILLS_ON_90 = /^matmul_[iuf]7\w*_1$/;
const nvcc = [process.env.NVCC, '/usr/local/cuda/bin/nvcc', 'nvcc'].find(
  (name) => name !== undefined && spawnSync(name, ['--version']).status === 0,
);
/** pip's cuobjdump: scripts/machine-code.mjs --install. */
const cuobjdump = [
  process.env.LPQ_CUOBJDUMP,
  path.join(root, 'build', 'cuobjdump', 'nvidia', 'cu13', 'bin', 'cuobjdump'),
].find((file) => file !== undefined && existsSync(file));

/** What instructions of the machine code say that the paper's were selected. */
const MACHINE_CODE = {
  ldmatrix: /\bLDSM\.16\.M88\.4\b/,
  'cp.async': /\bLDGSTS\b/,
  mma: /\bHMMA\.16816\.F32\b/,
  logic: /\bLOP3\.LUT\b/,
};

test('nvcc compiles the programs for sm_80, 89 and 90 with hardly a spill; ldmatrix, cp.async, mma and LOP3 are in the machine code', (t) => {
  if (nvcc === undefined) {
    t.skip('nvcc was not found');
    return;
  }
  const types = sampled('tilus nvcc', QUANT_TYPES, 36);
  const texts = types.flatMap(({ name: T }) => [
    ...SHAPES.map(
      (shape, i) => compile(check(program('matmul'), { settings: { ...shape, T } }), `matmul_${T}_${i}`).text,
    ),
    compile(check(program('transform'), { settings: { T } }), `transform_${T}`).text,
    compile(check(program('dequantize'), { settings: { T } }), `dequantize_${T}`).text,
  ]);
  const folder = mkdtempSync(path.join(tmpdir(), 'lpq-tilus-nvcc-'));
  try {
    writeFileSync(path.join(folder, 'kernels.cu'), texts.join('\n'));
    for (const arch of ALL ? [80, 89, 90] : sampled('tilus arch', [80, 89, 90], 3)) {
      const cubin = path.join(folder, `${arch}.cubin`);
      const includes = ['-I', path.join(root, 'native'), '-I', path.join(root, 'native', 'include')];
      const options = ['-std=c++20', `-arch=sm_${arch}`, '-Xptxas', '-v', '-Werror', 'all-warnings', '-cubin'];
      const build: SpawnSyncReturns<string> = spawnSync(
        nvcc,
        [...options, ...includes, '-o', cubin, path.join(folder, 'kernels.cu')],
        { encoding: 'utf8' },
      );
      assert.equal(build.status, 0, build.stderr.slice(0, 3000));
      const spills = [
        ...build.stderr.matchAll(/entry function '(\w+)'[\s\S]*?(\d+) bytes spill stores, (\d+) bytes spill loads/g),
      ];
      assert.equal(spills.length, texts.length);
      for (const [, name, ...bytes] of spills)
        for (const spilled of bytes) {
          const most = arch === 90 && SPILLS_ON_90.test(name as string) ? 8 : 0;
          assert.ok(Number(spilled) <= most, `sm_${arch}: ${name} spills ${spilled} bytes`);
        }
      const registers = [...build.stderr.matchAll(/entry function '(\w+)'[\s\S]*?Used (\d+) registers/g)];
      t.diagnostic(`sm_${arch}: ${registers.map(([, name, count]) => `${name} ${count}`).join(', ')} registers`);
      if (cuobjdump === undefined) continue;
      const code = spawnSync(cuobjdump, ['-sass', cubin], { encoding: 'utf8', maxBuffer: 2 ** 28 }).stdout;
      for (const kernel of code
        .split('Function : ')
        .slice(1)
        .filter((text) => text.startsWith('matmul')))
        for (const [what, pattern] of Object.entries(MACHINE_CODE))
          assert.match(kernel, pattern, `${what} in ${kernel.split('\n')[0]} of sm_${arch}`);
    }
  } finally {
    rmSync(folder, { recursive: true });
  }
});
