import assert from 'node:assert/strict';
import { copyFileSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { writeWidened } from '../../model/fixtures.js';
import { events, lpq, model, scratch } from '../lpq.js';

/** Experts that calibration hardly reaches are told of by name; --moe-coverage lets them see tokens. */

interface Idle {
  readonly name: string;
  readonly tokens: number;
}

test('an expert that saw fewer tokens than an eighth of its input features is told by name', async (t) => {
  const dir = scratch(t);
  const source = path.join(dir, 'moe');
  // 8 experts of 128 input features, two a token: 40 tokens are 10 an expert, where 16 are the least.
  await writeWidened('qwen3_moe', source, {
    vocab_size: 2048,
    num_local_experts: 8,
    num_experts: 8,
    num_hidden_layers: 1,
  });
  for (const file of ['tokenizer.json', 'tokenizer_config.json'])
    copyFileSync(path.join(model, file), path.join(source, file));
  const text = path.join(dir, 'text.txt');
  writeFileSync(
    text,
    'The ship lay at anchor in the bay, and nobody on board knew when the wind would turn again. '.repeat(9),
  );
  const quantize = (output: string, ...more: string[]) =>
    lpq([
      ...['quantize', source, '-o', path.join(dir, output), '--bits', '4', '--group-size', '32', '--calib', text],
      ...['--samples', '1', '--seq-len', '40', '--device', 'cpu', ...more],
    ]);

  const told = await quantize('few', '--json');
  assert.equal(told.code, 0, told.stderr);
  const rows = events(told);
  const modules = rows.filter(({ event }) => event === 'module') as unknown as (Idle & {
    method: string;
    note?: string;
  })[];
  const experts = modules.filter(({ name }) => name.includes('experts'));
  const least = 128 / 8;
  const idle = experts.filter(({ tokens }) => tokens < least);
  assert.ok(idle.length > 0 && idle.length < experts.length, `${idle.length} of ${experts.length}`);
  for (const each of experts) assert.equal(each.method, idle.includes(each) ? 'rtn' : 'gptq', each.name);
  for (const { note, tokens } of idle) assert.match(note!, new RegExp(`only ${tokens} calibration rows`));
  const warned = rows.find(
    ({ event, message }) => event === 'warning' && /fewer calibration tokens/.test(String(message)),
  );
  assert.deepEqual(
    warned!.modules,
    idle.map(({ name, tokens }) => ({ name, tokens })),
  );
  const report = JSON.parse(readFileSync(path.join(dir, 'few.report.json'), 'utf8')) as {
    modules: { name: string; note: string | null }[];
  };
  for (const { name } of idle)
    assert.match(report.modules.find((each) => each.name === name)!.note!, /calibration rows/);

  const quiet = await quantize('quiet', '--quiet', '--no-report');
  assert.match(
    quiet.stderr,
    new RegExp(`${idle.length} modules saw fewer .*${idle[0]!.name.replaceAll('.', '\\.')} \\(\\d+ token`),
  );

  const covered = await quantize('covered', '--moe-coverage', '0.5', '--quiet', '--no-report');
  assert.equal(covered.code, 0, covered.stderr);
  assert.doesNotMatch(covered.stderr, /fewer calibration tokens/);
});
