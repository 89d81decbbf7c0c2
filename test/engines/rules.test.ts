import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { execa } from 'execa';
import { createRuntime } from '../../native/binding.js';
import { scratch } from '../formats/scratch.js';
import { CASES, type Case, caseName } from '../mutation/cases.js';
import { packedCase } from '../mutation/packed.js';
import { Shelf } from '../mutation/quantized.js';
import { lpq, root } from '../src/cli/lpq.js';

// Forms that need a device to run: vLLM's own classes read their settings, name every linear's scheme and shape its parameters.

const python = process.env.LPQ_VLLM_PYTHON ?? path.join(root, 'build', 'engines', 'vllm', 'bin', 'python');
const skip = existsSync(python) ? false : `SKIPPED: no Python with vLLM (node scripts/engines.mjs makes ${python})`;

/** What vLLM takes the modules of a case for, and whether the directory asks for a cache in FP8. */
const EXPECTED: readonly (readonly [
  target: string,
  variant: Case['variant'],
  schemes: readonly string[],
  cache: boolean,
])[] = [
  ['compressed-tensors', 'mxfp8', ['MXFP8'], false],
  ['compressed-tensors-w8a8', 'static8', ['static FP8'], true],
  ['compressed-tensors-w8a8', 'mxfp8', ['MXFP8'], false],
  ['compressed-tensors-w4a8', 'cache', ['4 bits with FP8 activations'], true],
  ['compressed-tensors-w4a4', 'static4', ['NVFP4 with activations'], true],
  ['modelopt', 'static4', ['NVFP4'], true],
  ['modelopt', 'eights', ['FP8_PER_CHANNEL_PER_TOKEN', 'MXFP8', 'W4A16_NVFP4'], false],
];

/** Rules for what vLLM fuses: q, k and v in 8 bits, gate and up as they are. */
const FUSED = ['gptq', 'fused'] as const;

/** A mixture whose experts three ranks share. */
async function sharedExperts(dir: string): Promise<string> {
  const mixture = path.join(root, 'test', 'fixtures', 'architectures', 'mixtral');
  const options = ['--bits', '4', '--group-size', '32', '--method', 'rtn', '--no-report', '--quiet'];
  const made = await lpq(['quantize', mixture, '-o', `${dir}-quantized`, ...options]);
  const packed = await lpq([
    ...['pack', `${dir}-quantized`, '--target', 'compressed-tensors', '-o', dir, '--ep', '3', '--quiet'],
  ]);
  assert.deepEqual([made.code, packed.code], [0, 0], made.stderr + packed.stderr);
  return dir;
}

test("vLLM's own code reads the settings of forms that need a device", { skip }, async () => {
  const runtime = createRuntime(1);
  const shelf = new Shelf(scratch(), runtime);
  const dirs: string[] = [];
  for (const [target, variant] of [...EXPECTED, FUSED]) {
    const each = CASES.find((found) => found.target === target && found.variant === variant) as Case;
    assert.ok(each, `${target} ${variant}`);
    dirs.push((await packedCase(shelf, each, runtime)).packed);
  }
  dirs.push(await sharedExperts(path.join(scratch(), 'experts')));
  const script = path.join(root, 'test', 'engines', 'rules.py');
  const { stdout } = await execa(python, [script, ...dirs], {
    env: { OMP_NUM_THREADS: '2', VLLM_LOGGING_LEVEL: 'ERROR' },
  });
  const results = stdout
    .split('\n')
    .filter((line) => line.startsWith('{'))
    .map((line) => JSON.parse(line));
  for (const [i, [target, variant, schemes, cache]] of EXPECTED.entries()) {
    const name = caseName({ target, variant });
    assert.deepEqual(results[i].problems, [], name);
    assert.deepEqual([...new Set(Object.values(results[i].schemes))].sort(), [...schemes].sort(), name);
    assert.equal(results[i].cache, cache ? 'FP8' : null, name);
  }
  assert.deepEqual([results.at(-1).problems, results.at(-1).schemes], [[], { ranks: 3 }]);
  const rules = results.at(-2);
  assert.deepEqual(rules.problems, []);
  assert.deepEqual(new Set(Object.values(rules.schemes)), new Set([4, 8, null]));
});
