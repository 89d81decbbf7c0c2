import assert from 'node:assert/strict';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { execa } from 'execa';
import { writeDecoded } from '../consumers/expected.js';
import { model, root } from '../src/cli/lpq.js';
import { run } from './directories.js';
import { pythonOf } from './run.js';

/** LMDeploy's own reading of stored words, codes less zero points times scales, beside what lpq's verifier decodes. Its engine needs CUDA. */

const found = pythonOf({ name: 'LMDeploy 0.18', environment: 'engines/lmdeploy', variable: 'LPQ_LMDEPLOY_PYTHON' });

const GROUP = 128;
const ASYM = ['--asym'];
/** Its format is the configuration's quant_method, which gptq and gptq_v2 share; it takes zero points of gptq and gptq_v2 as stored minus one. */
const CASES: readonly { target: string; format?: string; more?: readonly string[]; steps?: number }[] = [
  { target: 'gptq' },
  { target: 'awq' },
  { target: 'awq', more: ASYM },
  { target: 'compressed-tensors' },
  { target: 'compressed-tensors', more: ASYM },
  { target: 'gptq_v2', format: 'gptq', steps: -1 },
];

interface Told {
  readonly accepted: boolean;
  readonly modules: number;
  readonly least: number;
  readonly most: number;
}

test("LMDeploy's loader reads each weight of what is packed for it, and gptq_v2 one step off, as pack says", {
  skip: 'skip' in found && found.skip,
}, async (t) => {
  assert.ok('python' in found);
  const dir = mkdtempSync(path.join(tmpdir(), 'lpq-lmdeploy-'));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  const cases: object[] = [];
  for (const { target, format = target, more = [] } of CASES) {
    const quantized = path.join(dir, ['q', ...more].join(''));
    const options = ['--method', 'rtn', '--bits', '4', '--group-size', String(GROUP)];
    if (!existsSync(quantized)) await run('quantize', model, '-o', quantized, '--no-report', ...options, ...more);
    const name = [target, ...more].join(' ');
    const directory = path.join(dir, name);
    await run('pack', quantized, '--target', target, '-o', directory);
    await writeDecoded(quantized, directory, `${directory}.expected.safetensors`);
    cases.push({ name, format, directory, group: GROUP });
    // As lmdeploy/turbomind/converter.py looks for it.
    const { quantization_config: said } = JSON.parse(readFileSync(path.join(directory, 'config.json'), 'utf8'));
    assert.equal(said.quant_method, format);
    if (format === 'compressed-tensors') assert.equal(said.config_groups.group_0.format, 'pack-quantized');
  }
  const [given, results] = [path.join(dir, 'cases.json'), path.join(dir, 'results.json')];
  writeFileSync(given, JSON.stringify(cases));
  await execa(found.python, [path.join(root, 'test', 'engines', 'read_lmdeploy.py'), given, results]);
  const told = JSON.parse(readFileSync(results, 'utf8')) as Record<string, Told>;
  for (const { target, more = [], steps = 0 } of CASES) {
    const name = [target, ...more].join(' ');
    const { accepted, modules, least, most } = told[name]!;
    assert.equal(accepted, true, name);
    assert.equal(modules, 28, name);
    // Integers of 4 bits times scales of 16: exact in f32, and so is their difference; over the scale it is off by an ulp.
    for (const each of [least, most])
      assert.ok(Math.abs(each - steps) <= 2 ** -22, `${name}: weights are ${least} to ${most} steps off, not ${steps}`);
  }
});
