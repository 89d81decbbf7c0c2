import assert from 'node:assert/strict';
import { existsSync, readdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';
import { type FakeCuda, fakeCuda } from '../../../native/fake-cuda/fake.js';
import { CALIB, events, lpq, model, scratch } from '../lpq.js';

const made = fakeCuda();
const skip = typeof made === 'string' ? made : false;
const fake = made as FakeCuda;
if (!skip) after(() => fake.remove());

const RTN = ['--bits', '4', '--method', 'rtn', '--device', 'cuda'];
const GPTQ = ['--bits', '4', '--samples', '2', '--seq-len', '32', ...CALIB, '--device', 'cuda'];
const run = (output: string, args: readonly string[], env: Record<string, string> = {}) =>
  lpq(['quantize', model, '-o', output, ...args, '--json'], { ...fake.env, ...env });

// [what is wrong, what the environment says of the driver, arguments, code, sentence, got, expected, hint]
type Facts = readonly [RegExp, (RegExp | undefined)?, (RegExp | undefined)?, RegExp?];
const BEFORE: readonly (readonly [string, Record<string, string>, readonly string[], string, Facts])[] = [
  [
    'a driver that is too old',
    { FAKE_CUDA_VERSION: '11080' },
    RTN,
    'LPQ_CUDA_DRIVER',
    [/driver speaks CUDA 11\.8/, /^CUDA 11\.8$/, /^CUDA 12\.0 or newer$/, /Install .*driver.*--device cpu/],
  ],
  [
    'a driver that does not start',
    { FAKE_CUDA_INIT: '803' },
    RTN,
    'LPQ_CUDA_DRIVER',
    [/does not start: system has unsupported display driver.*803/, undefined, undefined, /--device cpu/],
  ],
  [
    'no device',
    { FAKE_CUDA_INIT: '100' },
    RTN,
    'LPQ_DEVICE',
    [/--device cuda .*finds no device/, /cuda/, /auto or cpu/, /--device cpu/],
  ],
  [
    'a list of no devices',
    { FAKE_CUDA_DEVICES: '0' },
    RTN,
    'LPQ_DEVICE',
    [/shows 0 CUDA device/, /cuda/, /cpu/, /--device cpu/],
  ],
  [
    'a device that is too old',
    { FAKE_CUDA_ARCH: '75' },
    RTN,
    'LPQ_DEVICE',
    [/cuda:0 \(Fake 0\) has compute capability 7\.5/, /^7\.5$/, /^8\.0 or newer$/, /--device cpu/],
  ],
  [
    'less memory than a weight takes',
    { FAKE_CUDA_MEMORY: '1048576' },
    RTN,
    'LPQ_CUDA_MEMORY',
    [
      /no room for 1 MiB on cuda:0/,
      /^1 MiB requested, 0 MiB in use, 0 MiB reserved$/,
      /^at most 1 MiB in all$/,
      /--samples.*--device cpu.*--vram-limit/,
    ],
  ],
  [
    'a --vram-limit that is too low',
    {},
    [...RTN, '--vram-limit', '1m'],
    'LPQ_CUDA_MEMORY',
    [/no room/, /1 MiB requested/, /at most 1 MiB in all/, /--vram-limit/],
  ],
  [
    'no kernels',
    { LPQ_CUDA_FATBIN: '/nowhere/k.fatbin' },
    RTN,
    'LPQ_CUDA_KERNELS',
    [/\/nowhere\/k\.fatbin does not exist/, undefined, undefined, /build:cuda/],
  ],
];

for (const [what, env, args, code, [says, got, expected, hint]] of BEFORE)
  test(`${what}: ${code}, exit 3, and nothing is left`, { skip }, async (t) => {
    const dir = scratch(t);
    const ran = await run(path.join(dir, 'out'), args, env);
    assert.equal(ran.code, 3, ran.stdout + ran.stderr);
    const error = events(ran).at(-1);
    assert.deepEqual([error?.event, error?.code, error?.exit], ['error', code, 3], ran.stdout);
    assert.match(String(error?.message), says);
    for (const [fact, pattern] of [
      ['got', got],
      ['expected', expected],
      ['hint', hint],
    ] as const)
      if (pattern) assert.match(String(error?.[fact]), pattern);
    assert.deepEqual(readdirSync(dir), []);
  });

test('kernels for Hopper alone are no hindrance to an older device', { skip }, async (t) => {
  const ran = await run(path.join(scratch(t), 'out'), RTN, { FAKE_CUDA_ARCH: '80' });
  assert.equal(ran.code, 0, ran.stdout + ran.stderr);
});

for (const [number, name] of [
  ['700', 'CUDA_ERROR_ILLEGAL_ADDRESS'],
  ['719', 'CUDA_ERROR_LAUNCH_FAILED'],
  ['214', 'CUDA_ERROR_ECC_UNCORRECTABLE'],
] as const)
  for (const late of ['0', '1'])
    test(`a device lost by ${name}, ${late === '1' ? 'told of later' : 'at a launch'}: the run can be resumed`, {
      skip,
    }, async (t) => {
      const dir = scratch(t);
      const output = path.join(dir, 'out');
      // Two launches a module, seven modules a block: the fourth block is under way, sixteen modules at most in flight.
      const lost = { FAKE_CUDA_FAIL: number, FAKE_CUDA_AFTER: '51', FAKE_CUDA_LATE: late };
      const ran = await run(output, RTN, lost);
      assert.equal(ran.code, 3, ran.stdout + ran.stderr);
      const error = events(ran).at(-1);
      assert.deepEqual([error?.code, error?.got], ['LPQ_CUDA_LOST', name]);
      assert.match(String(error?.message), /the CUDA device stopped working( in the operation \w+)?: /);
      assert.match(String(error?.hint), /nvidia-smi.*out\.partial: repeat the command with --resume/);
      assert.deepEqual(readdirSync(dir), ['out.partial']);

      // The CPU's bytes are others: another device is another option.
      const moved = await run(output, [...RTN.slice(0, -1), 'cpu', '--resume']);
      const refusal = events(moved).at(-1);
      assert.deepEqual(
        [refusal?.code, refusal?.got, refusal?.expected],
        ['LPQ_RESUME', '--device cpu', '--device cuda'],
      );

      const resumed = await run(output, [...RTN, '--resume']);
      assert.equal(resumed.code, 0, resumed.stdout);
      const found = events(resumed).find(({ event }) => event === 'resume');
      const blocks = Number(found?.blocks);
      assert.ok(blocks >= 1 && blocks <= 3, String(blocks));
      assert.deepEqual(found?.damaged, []);
      assert.equal(events(resumed).filter(({ event }) => event === 'module').length, 28 - 7 * blocks);
      assert.deepEqual(readdirSync(dir).sort(), ['out', 'out.report.html', 'out.report.json']);
      assert.ok(existsSync(path.join(output, 'lpq.json')));
    });

const BLAS = [
  'Destroy_v2',
  'SetStream_v2',
  'SetWorkspace_v2',
  'SetMathMode',
  'GemmEx',
  'GemmStridedBatchedEx',
  'Strsm_v2',
  'Dtrsm_v2',
  'Ssyrk_v2',
  'Dsyrk_v2',
];

/** A folder with a cuBLAS that starts with `status` and computes nothing. */
const blas = (status: number) =>
  fake.library(
    'libcublas.so.13',
    `int cublasCreate_v2(void** handle) { *handle = 0; return ${status}; }\n${BLAS.map((name) => `int cublas${name}(void) { return 0; }\n`).join('')}`,
  );

test('cuBLAS: too old, without memory, failing, not found', { skip }, async (t) => {
  const dir = scratch(t);
  const failure = async (libraries: string) => {
    const ran = await run(path.join(dir, 'out'), GPTQ, { LPQ_CUDA_LIBS: libraries });
    assert.equal(ran.code, 3, ran.stdout);
    assert.deepEqual(readdirSync(dir), []);
    return events(ran).at(-1) as Record<string, string>;
  };
  const old = await failure(fake.library('libcublas.so.13', 'int nothing_of_use;'));
  assert.equal(old.code, 'LPQ_CUDA_LIBRARY', old.message);
  assert.match(old.message as string, /lacks cublas\w+: it is older than CUDA 12/);
  const full = await failure(blas(3));
  assert.equal(full.code, 'LPQ_CUDA_MEMORY', full.message);
  const broken = await failure(blas(1));
  assert.equal(broken.code, 'LPQ_CUDA_LIBRARY');
  assert.match(broken.message as string, /cuBLAS failed with status 1 while starting/);

  // A file that is no library says so; then the search goes on, and where this machine has cuBLAS it is found.
  const garbage = path.join(scratch(t), 'libcublas.so.13');
  writeFileSync(garbage, 'no library');
  const ran = await run(path.join(dir, 'out'), GPTQ, { LPQ_CUDA_LIBS: path.dirname(garbage) });
  const missing = events(ran).at(-1) ?? {};
  if (!/ was not found; /.test(String(missing.message)))
    return t.skip('SKIPPED in part: this machine has a cuBLAS of its own');
  assert.match(
    String(missing.message),
    /libcublas\.so\.13 or libcublas\.so\.12 was not found; .*(too short|invalid ELF)/,
  );
  assert.match(String(missing.got), /^none in .*, the system's loader/);
  assert.equal(missing.expected, 'libcublas.so.13 or libcublas.so.12');
  assert.match(String(missing.hint), /nvidia-cublas.*LPQ_CUDA_LIBS/);
});

test('cuSOLVER: too old, not found', { skip }, async (t) => {
  const factor = async (libraries: string) => {
    const script = fileURLToPath(new URL('../../../native/fake-cuda/factor.js', import.meta.url));
    const { stdout } = await execa(process.execPath, [script], {
      env: { ...fake.env, LPQ_CUDA_LIBS: libraries },
      reject: false,
    });
    return JSON.parse(stdout || '{}') as Record<string, string>;
  };
  const solver = fake.library('libcusolver.so.12', 'int nothing_of_use;');
  const old = await factor(`${blas(0)}:${solver}`);
  assert.equal(old.code, 'LPQ_CUDA_LIBRARY', old.message);
  assert.match(old.message as string, /in the operation cholesky: .*lacks cusolver\w+: it is older than CUDA 12/);
  const missing = await factor(blas(0));
  if (!/ was not found; /.test(String(missing.message)))
    return t.skip('SKIPPED in part: this machine has a cuSOLVER of its own');
  assert.equal(missing.code, 'LPQ_CUDA_LIBRARY');
  assert.equal(missing.expected, 'libcusolver.so.12 or libcusolver.so.11');
  assert.match(missing.hint as string, /nvidia-cusolver.*LPQ_CUDA_LIBS/);
});

test('--device auto tells of a GPU that it cannot take, and computes on the CPU', { skip }, async (t) => {
  const dir = scratch(t);
  for (const [i, [env, says]] of (
    [
      [{ FAKE_CUDA_VERSION: '11080' }, /computing on the CPU: the NVIDIA driver speaks CUDA 11\.8/],
      [{ FAKE_CUDA_ARCH: '75' }, /computing on the CPU: Fake 0 has compute capability 7\.5/],
      [{ FAKE_CUDA_INIT: '100' }, undefined],
    ] as const
  ).entries()) {
    const ran = await run(path.join(dir, String(i)), RTN.slice(0, -2), env);
    assert.equal(ran.code, 0, ran.stdout);
    const warning = events(ran).find(({ event }) => event === 'warning');
    if (says) assert.match(String(warning?.message), says);
    else assert.equal(warning, undefined);
  }
});
