import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { fakeCuda } from './fake-cuda/fake.js';

// A weight of liblpq_kernels.so plans a product once for each M: later calls launch what the first did.
const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const build = process.env.LPQ_BUILD_DIR ?? path.join(root, 'native', 'build');
const compiler = ['cc', 'gcc', 'clang'].find((name) => spawnSync(name, ['--version']).status === 0);
const skip = compiler === undefined ? 'no C compiler was found' : undefined;

const tiles = [1, 2, 4, 8];
const KERNELS = [
  ...tiles.flatMap((t) => [`marlin_u4_f16_t${t}`, `turbomind_u4_f16_t${t}`, `gemm_int4_f16_h${t}`]),
  ...[1, 2].flatMap((t) => [`gemm_int4_f16_s${t}`, `gemm_int4_f16_t${t}`, `gemm_int4_f16_x${t}`]),
  ...['4x1x1', '8x1x1', '12x1x1', '16x1x1', '24x1x1', '32x1x1', '8x1x2', '12x1x2', '16x2x1'].map(
    (cut) => `gemm_int4_f16_c${cut}`,
  ),
].map((name) => `lpq_${name}`);

for (const arch of ['90', '80'])
  test(`calls of a weight launch what the first of their M did, on ${arch}`, { skip }, (t) => {
    const fake = fakeCuda(KERNELS, { hopper: true });
    if (typeof fake === 'string') return t.skip(fake);
    const dir = mkdtempSync(path.join(tmpdir(), 'lpq-plans-'));
    try {
      const program = path.join(dir, 'plans');
      const source = path.join(root, 'test', 'native', 'library-plans.c');
      const flags = [
        '-std=c99',
        '-Wall',
        '-Wextra',
        '-pedantic',
        '-Werror',
        '-O1',
        '-I',
        path.join(root, 'native/library'),
      ];
      const built = spawnSync(compiler!, [...flags, '-o', program, source, '-L', build, '-llpq_kernels', '-ldl'], {
        encoding: 'utf8',
      });
      assert.equal(built.status, 0, built.stderr);
      const env = { ...process.env, ...fake.env, LD_LIBRARY_PATH: `${build}:${fake.dir}`, FAKE_CUDA_ARCH: arch };
      const ran = spawnSync(program, [], { encoding: 'utf8', env: { ...env, FAKE_CUDA_TRACE: '2' } });
      assert.equal(ran.status, 0, ran.stderr.slice(-600));
      const parts = ran.stderr.trim().split(/^# /m).slice(1);
      const told = new Map(
        parts.map((part) => {
          const [heading, ...launches] = part.trim().split('\n');
          return [heading!, launches];
        }),
      );
      assert.equal(told.size, 3 * 9 * 3);
      const kernels = new Set<string>();
      for (const [heading, launches] of told) {
        const [layout, m] = heading.split(' ');
        assert.ok(launches.length > 0, heading);
        assert.deepEqual(launches, told.get(`${layout} ${m} first`), heading);
        for (const launch of launches) kernels.add(launch.split(' ')[0]!);
      }
      assert.ok(kernels.size >= 5, [...kernels].join(', '));
      t.diagnostic(spawnSync(program, ['time'], { encoding: 'utf8', env }).stdout.trim().replaceAll('\n', '; '));
    } finally {
      fake.remove();
      rmSync(dir, { recursive: true, force: true });
    }
  });
