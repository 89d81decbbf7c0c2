import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { PassThrough } from 'node:stream';
import { test } from 'node:test';
import { main } from '../../../../src/cli/main.js';
import { model, root, scratch } from '../lpq.js';

/** The command line in this process, with --json: its exit code and its last event. */
async function run(...args: string[]) {
  const out = new PassThrough();
  let text = '';
  out.on('data', (chunk) => {
    text += chunk;
  });
  const code = await main([...args, '--json'], { stdout: out, stderr: new PassThrough() } as never);
  const events = text
    .split('\n')
    .filter(Boolean)
    .map((line) => JSON.parse(line));
  return { code, events, last: events.at(-1) };
}

interface Check {
  readonly name: string;
  readonly status: string;
  readonly detail: string;
}
const check = (report: { checks: Check[] }) => report.checks.find(({ name }) => name === 'end-to-end') as Check;

test('a packed model computes and writes what the quantized one does; another one does not', async (t) => {
  const dir = scratch(t);
  const [q, other, packed, text] = ['q', 'other', 'packed', 'text.txt'].map((name) => path.join(dir, name)) as [
    ...[string, string, string, string],
  ];
  writeFileSync(text, readFileSync(path.join(root, 'share', 'text', 'books-valid.txt'), 'utf8').slice(0, 3000));
  const quantize = ['quantize', model, '--method', 'rtn', '--device', 'cpu'];
  // GPTQ's format has no place for floats of 6 bits: those modules are stored dense, rounded to the model's dtype.
  const recipe = path.join(dir, 'recipe.yaml');
  writeFileSync(recipe, 'bits: 4\nrules:\n  - match: v_proj$\n    dtype: f6e3m2\n');
  assert.equal((await run(...quantize, '-o', q, '--recipe', recipe)).code, 0);
  assert.equal((await run(...quantize, '-o', other, '--bits', '4', '--group-size', '64')).code, 0);
  assert.equal((await run('pack', q, '-o', packed, '--target', 'gptq', '--device', 'cpu')).code, 0);

  const { modules } = JSON.parse(readFileSync(path.join(packed, 'lpq.json'), 'utf8')) as {
    modules: Record<string, { layout: string }>;
  };
  assert.deepEqual([...new Set(Object.values(modules).map(({ layout }) => layout))].sort(), ['dense', 'gptq']);

  const verify = ['verify', packed, '--end-to-end', '--text', text, '--device', 'cpu'];
  const good = await run(...verify, '--against', q, '--source', model);
  assert.equal(good.code, 0);
  assert.equal(check(good.last).status, 'passed');
  assert.match(check(good.last).detail, /64 tokens written, ppl \d+\.\d{4}, source \d+\.\d{4}, KL 0\.\d+ nats/);
  const { decoded, source } = good.last.endToEnd;
  assert.deepEqual([decoded.largest.difference, decoded.kl.mean, decoded.sameWritten], [0, 0, 64]);
  assert.equal(decoded.ppl.mean, decoded.referencePpl.mean);
  assert.ok(source.kl.mean > 0.01 && source.kl.mean < 0.2);

  // It says that it is of the same run: else verify tells of that alone.
  const [theirs, ours] = [other, q].map((each) => JSON.parse(readFileSync(path.join(each, 'lpq.json'), 'utf8')));
  writeFileSync(path.join(other, 'lpq.json'), JSON.stringify({ ...theirs, provenance: ours.provenance }));
  const bad = await run(...verify, '--against', other);
  assert.equal(bad.code, 1);
  const report = bad.events.find(({ event }) => event === 'result');
  assert.equal(check(report).status, 'failed');
  const own = report.failures.filter((failure: { check: string }) => failure.check === 'end-to-end');
  assert.match(own[0].message, /the logits of the decoded artifact differ from those of .*other/);
  assert.match(own[1].message, /writes a different text than .*other from token \d+ on/);

  const unasked = await run('verify', packed, '--device', 'cpu');
  assert.deepEqual([check(unasked.last).status, check(unasked.last).detail], ['skipped', 'not requested']);
  for (const [args, words] of [
    [['--end-to-end'], /--end-to-end needs the checkpoint that was packed/],
    [['--source', model], /--source has no effect without --end-to-end/],
    [['--against', q, '--text', text], /--text has no effect without --end-to-end/],
  ] as const) {
    const refused = await run('verify', packed, ...args);
    assert.equal(refused.code, 2);
    assert.match(refused.last.message, words);
  }
});
