import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { events, lpq, model, scratch } from '../lpq.js';

const RTN = ['--bits', '4', '--method', 'rtn', '--json'];

test('quantize --redo --from, packed and verified against the model', async (t) => {
  const dir = scratch(t);
  const [first, second] = [path.join(dir, 'first'), path.join(dir, 'second')];
  assert.equal((await lpq(['quantize', model, '-o', first, ...RTN])).code, 0);
  const redo = ['--redo', 'layers\\.1\\.mlp', '--from', first, '--pack', 'tilus'];
  const ran = await lpq(['quantize', model, '-o', second, '--bits', '8', ...RTN.slice(2), ...redo]);
  assert.equal(ran.code, 0, ran.stdout + ran.stderr);
  const done = events(ran);
  assert.equal(done.filter(({ event, scheme }) => event === 'module' && scheme === 'i8 g128').length, 3);
  assert.ok(existsSync(`${second}.report.html`));
  const verified = await lpq(['verify', `${second}-tilus`, '--json']);
  assert.equal(verified.code, 0, verified.stdout + verified.stderr);
});

test('quantize --redo: what does not go together is refused before any work', async (t) => {
  const dir = scratch(t);
  const cases: [args: string[], code: string, says: RegExp][] = [
    [['--redo', 'mlp'], 'LPQ_USAGE', /--redo has no effect alone/],
    [['--from', dir], 'LPQ_USAGE', /--from has no effect alone/],
    [['--redo', '(', '--from', dir], 'LPQ_USAGE', /'\(' is not a regular expression/],
    [['--redo', 'mlp', '--from', dir, '--shard', '0/2'], 'LPQ_USAGE', /does not go with --shard/],
    [['--redo', 'mlp', '--from', dir, '--dry-run'], 'LPQ_USAGE', /does not go with --dry-run/],
    [['--redo', 'mlp', '--from', model], 'LPQ_CANONICAL', /lpq\.json cannot be read/],
  ];
  for (const [args, code, says] of cases) {
    const ran = await lpq(['quantize', model, '-o', path.join(dir, 'out'), ...RTN, ...args]);
    assert.equal(ran.code, code === 'LPQ_USAGE' ? 2 : 4, ran.stdout);
    const error = events(ran).at(-1);
    assert.equal(error?.code, code);
    assert.match(String(error?.message), says);
  }
  assert.ok(!existsSync(path.join(dir, 'out')));
});
