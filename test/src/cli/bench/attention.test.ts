import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { after, test } from 'node:test';
import { type AttentionRow, attentionBenchSchema } from '../../../../bench/attention/schema.js';
import { addon } from '../../../../native/binding.js';
import { attentionKernels } from '../../../native/fake-cuda/attention.js';
import { type FakeCuda, fakeCuda } from '../../../native/fake-cuda/fake.js';
import { events, lpq, scratch } from '../lpq.js';

const made = fakeCuda(attentionKernels());
const fake = made as FakeCuda;
if (typeof made !== 'string') after(() => fake.remove());
const skip =
  typeof made === 'string'
    ? made
    : addon().cudaOperations().includes('kv_append')
      ? false
      : 'this build has no kv_append';

const SMALL = ['bench', 'attention', '--contexts', '1x256', '--heads', '2/1', '--head-dim', '64', '--passes', '1'];

test('attention is timed on the CPU, written as JSON and Markdown, and nothing is overwritten', async (t) => {
  const dir = scratch(t);
  const [json, md] = ['r.json', 'r.md'].map((name) => path.join(dir, name)) as [string, string];
  const args = [...SMALL, '--device', 'cpu', '--kv', '4,8', '--kv-granularity', 'channel,token'];
  const ran = await lpq([...args, '--results', json, '--markdown', md, '--json']);
  assert.equal(ran.code, 0, ran.stderr);
  const result = events(ran).at(-1) as { command: string; rows: unknown[] };
  const bench = attentionBenchSchema.parse(JSON.parse(readFileSync(json, 'utf8')));
  assert.equal(result.command, 'bench attention');
  assert.deepEqual(result.rows, bench.rows);
  assert.deepEqual(
    bench.rows.map(({ name, scheme }) => `${name} ${scheme.form} ${scheme.keys.granularity}`),
    ['KV4 bitdecoding channel', 'KV4 turbomind token', 'KV8 bitdecoding channel', 'KV8 turbomind token'],
  );
  assert.match(readFileSync(md, 'utf8'), /^\| KV4 token \|/m);
  const again = await lpq([...SMALL, '--results', json]);
  assert.equal(again.code, 2);
  assert.match(again.stderr, /^LPQ_OUTPUT_EXISTS/);
});

test('a wrong option, or a device that is none, is refused before anything is measured', async (t) => {
  const never = path.join(scratch(t), 'never');
  const cases: [string[], string, RegExp][] = [
    [['--kv', '3'], 'LPQ_USAGE', /--kv does not take '3'/],
    [['--kv-group', '48'], 'LPQ_USAGE', /--kv-group/],
    [['--tail', '-1'], 'LPQ_USAGE', /--tail/],
    [['--markdown', never], 'LPQ_USAGE', /never/],
    [['--device', 'cuda:97'], 'LPQ_DEVICE', /cuda:97/],
  ];
  for (const [args, code, names] of cases) {
    const ran = await lpq(['bench', 'attention', ...args, '--results', never]);
    assert.notEqual(ran.code, 0);
    const [first = ''] = ran.stderr.split('\n');
    assert.ok(first.startsWith(`${code}  `), ran.stderr);
    assert.match(first, names);
    assert.ok(!existsSync(never));
  }
});

test('on a device caches rotate past L2, and a pass of graphs is divided among its calls', { skip }, async (t) => {
  const results = path.join(scratch(t), 'r.json');
  const args = ['bench', 'attention', '--device', 'cuda', '--contexts', '2x512', '--passes', '1'];
  const ran = await lpq([...args, '--kv', '2', '--results', results], fake.env);
  assert.equal(ran.code, 0, ran.stderr);
  const bench = attentionBenchSchema.parse(JSON.parse(readFileSync(results, 'utf8')));
  assert.equal(bench.machine.gpu, 'Fake 0');
  // Every pass takes a millisecond of the fake's clock.
  const [row] = bench.rows as [AttentionRow];
  const decodes = 1000 / row.us;
  assert.ok(decodes >= 20 && Math.abs(decodes - Math.round(decodes)) < 1e-9, `${decodes}`);
  assert.deepEqual([1000 / row.append.us, row.pack.us], [256, 1000]);
});
