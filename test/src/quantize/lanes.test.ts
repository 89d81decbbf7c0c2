import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import test from 'node:test';
import fc from 'fast-check';
import { createRuntime, type NativeRuntime } from '../../../native/binding.js';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import { GPTQ_DEFAULTS } from '../../../src/gptq/options.js';
import { gptqQuantizer } from '../../../src/gptq/quantizer.js';
import type { Feed } from '../../../src/model/program.js';
import { onlySum, type Part, shareOut, together } from '../../../src/quantize/lanes.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { quantizeOver, sequences } from './over-devices.js';

const feed = (id: string, k: number, ns: readonly number[]): Feed => ({
  id,
  linears: ns.map((n, i) => ({ name: `${id}.${i}`, n, k })),
});

const cut = schemeFromOptions({ bits: 4 });
const whole = schemeFromOptions({ dtype: 'nvfp4' });

const rowsOf = (parts: readonly Part[]) => parts.map(({ linear, first, rows }) => `${linear.name} ${first}+${rows}`);

test('every row goes to exactly one device, in model order, and none idles while there is work for it', () => {
  const feeds = fc.array(
    fc.record({
      k: fc.integer({ min: 1, max: 64 }),
      ns: fc.array(fc.integer({ min: 1, max: 900 }), { minLength: 1, maxLength: 4 }),
    }),
    { maxLength: 9 },
  );
  fc.assert(
    fc.property(feeds, fc.integer({ min: 1, max: 5 }), fc.boolean(), (shapes, count, divisible) => {
      const all = shapes.map(({ k, ns }, i) => feed(`f${i}`, k, ns));
      const shares = shareOut(all, count, () => (divisible ? cut : whole));
      assert.equal(shares.length, count);
      const linears = all.flatMap(({ linears }) => linears);
      for (const own of shares) {
        const order = own.flatMap(({ parts }) => parts.map(({ linear }) => linears.indexOf(linear)));
        assert.deepEqual(
          order,
          [...order].sort((a, b) => a - b),
        );
        assert.equal(new Set(own.map(({ feed: { id } }) => id)).size, own.length);
      }
      for (const linear of linears) {
        const parts = shares.flat().flatMap((share) => share.parts.filter((part) => part.linear === linear));
        let at = 0;
        for (const { first, rows } of parts.sort((a, b) => a.first - b.first)) {
          assert.equal(first, at);
          assert.ok(rows > 0 && (divisible || rows === linear.n));
          at += rows;
        }
        assert.equal(at, linear.n);
      }
      const busy = shares.filter((own) => own.length > 0).length;
      assert.ok(busy >= Math.min(count, all.length) || all.length < count);
    }),
  );
});

test('rows are cut in equal runs, at whole tiles', () => {
  const shares = shareOut([feed('qkv', 64, [4096, 1024, 1024])], 2, () => cut);
  assert.deepEqual(
    shares.map(([share]) => rowsOf(share!.parts)),
    [['qkv.0 0+3072'], ['qkv.0 3072+1024', 'qkv.1 0+1024', 'qkv.2 0+1024']],
  );
  const three = shareOut([feed('down', 64, [4096])], 3, () => cut);
  assert.deepEqual(
    three.map(([share]) => rowsOf(share!.parts)),
    [['down.0 0+1024'], ['down.0 1024+2048'], ['down.0 3072+1024']],
  );
  // One second level of scales is for all rows of both.
  const shared = shareOut([feed('gate_up', 64, [96, 96])], 2, () => whole);
  assert.deepEqual(
    shared.map((shares) => shares.flatMap(({ parts }) => rowsOf(parts))),
    [['gate_up.0 0+96', 'gate_up.1 0+96'], []],
  );
});

test('statistics are used in place on the only device, and gathered where there are several', () => {
  const rt = createRuntime(1);
  const sums = new Map([['qkv', { h: rt.allocate('f64', [1, 1]), tokens: 3 }]]);
  assert.equal(onlySum([[sums]], 'qkv'), sums.get('qkv'));
  // A second device has no sequence: the sum is not where it solves.
  assert.equal(onlySum([[sums], []], 'qkv'), undefined);
});

test('a failure waits for the others', async () => {
  let ended = false;
  const slow = new Promise<void>((resolve) =>
    setTimeout(() => {
      ended = true;
      resolve();
    }, 20),
  );
  await assert.rejects(together([Promise.reject(new Error('no')), slow]), /no/);
  assert.ok(ended);
});

test('two devices give what one gives, but for the order of sums', async (t) => {
  const dir = mkdtempSync(path.join(tmpdir(), 'lpq-lanes-'));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  const list = sequences(6, 60);
  const model = path.join(shareDirectory(), 'tiny-llama');
  // One order for all: a static order turns a rounding of the Hessian's diagonal into another permutation.
  const run = (name: string, rts: readonly NativeRuntime[], alpha: number, some = list) =>
    quantizeOver(rts, model, path.join(dir, name), some, gptqQuantizer({ ...GPTQ_DEFAULTS, alpha, order: 'none' }));
  const [a, b, c, d] = [createRuntime(1), createRuntime(1), createRuntime(1), createRuntime(1)];
  const one = await run('one', [a], 0);
  const two = await run('two', [a, b], 0);
  assert.deepEqual(
    two.summary.modules.map(({ name }) => name).sort(),
    one.summary.modules.map(({ name }) => name).sort(),
  );
  for (const line of one.summary.modules) {
    const other = two.summary.modules.find(({ name }) => name === line.name)!;
    assert.equal(other.tokens, 360);
    // The first stage sees the same inputs: its Hessian differs by the rounding of f64 sums, what follows from it by that of
    // f32 (2^-24 times a condition number of K / damp, 10^5 at most, in the least direction only). Later stages compute
    // with codes of which some fell to the other side of a tie: within 2 %, as two backends are allowed.
    const first = /layers\.0\.self_attn\.[qkv]_proj$/.test(line.name);
    assert.ok(
      Math.abs(other.relativeError! / line.relativeError! - 1) < (first ? 1e-5 : 0.02),
      `${line.name} ${line.relativeError} ${other.relativeError}`,
    );
  }
  assert.deepEqual(Object.keys(two.hashes).sort(), Object.keys(one.hashes).sort());
  const three = await run('three', [a, b, c], 0.25);
  const again = await run('again', [a, b, c], 0.25);
  assert.deepEqual(again.hashes, three.hashes, 'the same devices, the same bytes');
  const four = await run('four', [a, b, c, d], 0.25);
  const pair = await run('pair', [c, d], 0.25);
  assert.deepEqual(pair.hashes, four.hashes, 'two and four devices sum up the same sections');
  const few = await run('few', [a, b], 0.25, list.slice(0, 2));
  const idle = await run('idle', [a, b, c], 0.25, list.slice(0, 2));
  assert.deepEqual(idle.hashes, few.hashes, 'a device without a sequence');
});
