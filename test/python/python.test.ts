import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { execa } from 'execa';
import { writeSafetensors } from '../../formats/safetensors/write.js';
import { writeDecoded } from '../consumers/expected.js';
import { sampled } from '../sample.js';
import { lpq, model, root } from '../src/cli/lpq.js';

/** The package of python/, by its own tests: pytest over artifacts that are made here, and the wheel. */

const python = process.env.LPQ_CONSUMERS_PYTHON ?? path.join(root, 'build', 'consumers', 'bin', 'python');
const skip =
  existsSync(python) && spawnSync(python, ['-c', 'import pytest, torch']).status === 0
    ? false
    : `SKIPPED: no Python with torch and pytest (node scripts/consumers.mjs makes ${python}, or set LPQ_CONSUMERS_PYTHON)`;
const library = path.join(process.env.LPQ_BUILD_DIR ?? path.join(root, 'native', 'build'), 'liblpq_kernels.so.1');

const W4 = ['--bits', '4', '--group-size', '64'];
// `shifts`: turbomind rounds -zero * scale to f16, so that weights with zero points are not those of the codes.
const CASES: readonly {
  name: string;
  target: string;
  options: readonly string[];
  packing?: readonly string[];
  shifts?: boolean;
}[] = [
  { name: 'tilus', target: 'tilus', options: W4 },
  { name: 'sm80', target: 'sm80', options: W4 },
  { name: 'sm89', target: 'sm89', options: ['--dtype', 'f6e3m2', '--group-size', '128'] },
  { name: 'sm90', target: 'sm90', options: ['--bits', '3', '--group-size', '32', '--asym'] },
  { name: 'marlin', target: 'marlin', options: W4 },
  { name: 'turbomind', target: 'turbomind', options: W4 },
  { name: 'ranks', target: 'sm90', options: ['--bits', '3', '--group-size', '64', '--asym'], packing: ['--tp', '2'] },
  { name: 'shifted', target: 'turbomind', options: [...W4, '--asym'], shifts: true },
];
/** The operations of torch, as the wheel has them. */
async function operations(): Promise<string> {
  const program = 'import wheel_backend; print(wheel_backend.operations())';
  const env = { PYTHONDONTWRITEBYTECODE: '1' };
  return (await execa(python, ['-c', program], { cwd: path.join(root, 'python'), env })).stdout;
}

/** Tests name these; a commit draws half of the others. */
const NAMED = ['tilus', 'sm90', 'ranks'];
const cases = [
  ...CASES.filter(({ name }) => NAMED.includes(name)),
  ...sampled(
    'artifacts in Python',
    CASES.filter(({ name }) => !NAMED.includes(name)),
    2,
  ),
];

async function run(...args: string[]): Promise<void> {
  const ran = await lpq([...args, '--quiet']);
  assert.equal(ran.code, 0, `lpq ${args.join(' ')}\n${ran.stderr}`);
}

test('the Python package: its products, artifacts in it and in transformers', { skip }, async (t) => {
  const dir = mkdtempSync(path.join(tmpdir(), 'lpq-python-'));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  const ids = path.join(dir, 'ids.safetensors');
  const data = Int32Array.from({ length: 32 }, (_, i) => i + 3);
  await writeSafetensors(ids, [{ name: 'input_ids', dtype: 'I32', shape: [1, 32], data }]);
  for (const { name, target, options, packing = [] } of cases) {
    const [quantized, packed] = [path.join(dir, `${name}.q`), path.join(dir, name)];
    await run('quantize', model, '-o', quantized, '--method', 'rtn', '--no-report', ...options);
    await run('pack', quantized, '--target', target, '-o', packed, ...packing);
    await run('logits', packed, '--ids', ids, '-o', `${packed}.logits.safetensors`);
    await writeDecoded(quantized, packed, `${packed}.expected.safetensors`);
  }
  writeFileSync(
    path.join(dir, 'cases.json'),
    JSON.stringify(cases.map(({ name, shifts }) => ({ name, shifts: shifts ?? false }))),
  );
  const ran = await execa(
    python,
    ['-m', 'pytest', '-q', '-p', 'no:cacheprovider', path.join(root, 'python', 'tests')],
    {
      env: {
        PYTHONPATH: [path.join(root, 'python', 'src'), process.env.PYTHONPATH].filter(Boolean).join(':'),
        PYTHONDONTWRITEBYTECODE: '1',
        LPQ_KERNELS: library,
        LPQ_TORCH_OPS: await operations(),
        LPQ_ARTIFACTS: dir,
        LPQ_COMMAND: `${process.execPath} ${path.join(root, 'bin', 'lpq.js')}`,
        HF_HUB_OFFLINE: '1',
        OMP_NUM_THREADS: '2',
        // Waiting threads would take the core that another test file computes on.
        OMP_WAIT_POLICY: 'passive',
      },
      reject: false,
    },
  );
  assert.equal(ran.exitCode, 0, ran.stdout.slice(-6000) + ran.stderr.slice(-2000));
  assert.doesNotMatch(ran.stdout, /skipped/);
});

test('the wheel holds the library, and runs where it is unpacked', { skip }, async (t) => {
  const dir = mkdtempSync(path.join(tmpdir(), 'lpq-wheel-'));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  await execa(process.execPath, [path.join(root, 'scripts', 'wheel.mjs'), '-o', dir], {
    env: { LPQ_PYTHON: python, LPQ_KERNELS: library },
  });
  const program = [
    'import glob, sys, zipfile',
    'dir = sys.argv[1]',
    "wheel, = glob.glob(dir + '/lpq_kernels-*.whl')",
    "zipfile.ZipFile(wheel).extractall(dir + '/site')",
    "sys.path.insert(0, dir + '/site')",
    'import torch, lpq_kernels as lpq',
    "block = lpq.pack_codes('u4', torch.full((8, 64), 3, dtype=torch.uint8), torch.ones(8, 1))",
    'print(lpq.Linear(block)(torch.ones(1, 64))[0, 0].item(), lpq.__file__.startswith(dir), lpq.ops.operations)',
  ].join('\n');
  const { stdout } = await execa(python, ['-c', program, dir], {
    env: { LPQ_KERNELS: '', PYTHONDONTWRITEBYTECODE: '1' },
  });
  assert.equal(stdout, '192.0 True compiled');
  const [fatbin, wheel] = [path.join(dir, 'some.fatbin'), path.join(dir, 'cuda')];
  const again = (content: string) => {
    writeFileSync(fatbin, content);
    const env = { LPQ_PYTHON: python, LPQ_KERNELS: library, LPQ_CUDA_FATBIN: fatbin };
    return execa(process.execPath, [path.join(root, 'scripts', 'wheel.mjs'), '-o', wheel], { env, reject: false });
  };
  assert.match((await again('no kernels')).stderr, /is no lpq_kernels\.fatbin: `npm run build:cuda` makes one/);
  const made = await again('LPQFAT2\0and so on');
  assert.equal(made.exitCode, 0, made.stderr);
  const names = 'import sys, zipfile; print(zipfile.ZipFile(sys.argv[1]).read("lpq_kernels/lpq_kernels.fatbin"))';
  assert.equal((await execa(python, ['-c', names, made.stdout])).stdout, "b'LPQFAT2\\x00and so on'");
});
