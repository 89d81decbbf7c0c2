import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import test from 'node:test';
import fc from 'fast-check';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { createRuntime, type NativeRuntime } from '../../../native/binding.js';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import { GPTQ_DEFAULTS } from '../../../src/gptq/options.js';
import { gptqQuantizer } from '../../../src/gptq/quantizer.js';
import type { Feed } from '../../../src/model/program.js';
import { shareOut, together } from '../../../src/quantize/lanes.js';
import { quantizeCheckpoint } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';

const feed = (id: string, k: number, ns: readonly number[]): Feed => ({
  id,
  linears: ns.map((n, i) => ({ name: `${id}.${i}`, n, k })),
});

test('every linear goes to exactly one device, in model order, and none idles while there is work for it', () => {
  const feeds = fc.array(
    fc.record({
      k: fc.integer({ min: 1, max: 64 }),
      ns: fc.array(fc.integer({ min: 1, max: 99 }), { minLength: 1, maxLength: 4 }),
    }),
    { maxLength: 9 },
  );
  fc.assert(
    fc.property(feeds, fc.integer({ min: 1, max: 5 }), (shapes, count) => {
      const all = shapes.map(({ k, ns }, i) => feed(`f${i}`, k, ns));
      const shares = shareOut(all, count);
      assert.equal(shares.length, count);
      const names = shares.map((share) => share.flatMap(({ linears }) => linears.map(({ name }) => name)));
      const order = all.flatMap(({ linears }) => linears.map(({ name }) => name));
      assert.deepEqual(names.flat().sort(), [...order].sort());
      for (const own of names)
        assert.deepEqual(
          own,
          order.filter((name) => own.includes(name)),
        );
      for (const share of shares) assert.equal(new Set(share.map(({ id }) => id)).size, share.length);
      const busy = names.filter((own) => own.length > 0).length;
      assert.ok(busy >= Math.min(count, all.length));
    }),
  );
});

test('gate and up go to two devices, the wide one apart from the narrow ones', () => {
  const [first, second] = shareOut([feed('gate_up', 64, [96, 96])], 2);
  assert.deepEqual(
    [first, second].map((share) => share?.map(({ linears }) => linears.length)),
    [[1], [1]],
  );
  const [q, kv] = shareOut([feed('qkv', 64, [640, 16, 16])], 2);
  assert.deepEqual(
    [q, kv].map((share) => share?.[0]?.linears.map(({ n }) => n)),
    [[640], [16, 16]],
  );
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

/** Words of a generator: any text would do. */
function sequences(count: number, length: number): Int32Array[] {
  let state = 11;
  const next = () => {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0;
    return (state >>> 8) % 2048;
  };
  return Array.from({ length: count }, () => Int32Array.from({ length }, next));
}

test('two devices give what one gives, but for the order of sums', async (t) => {
  const dir = mkdtempSync(path.join(tmpdir(), 'lpq-lanes-'));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  const list = sequences(6, 60);
  const run = async (name: string, rts: readonly NativeRuntime[], alpha: number) => {
    const output = path.join(dir, name);
    const summary = await quantizeCheckpoint(rts, {
      source: path.join(shareDirectory(), 'tiny-llama'),
      output,
      scheme: schemeFromOptions({ bits: 4, groupSize: 64 }),
      rules: [{ match: /layers\.[23]\./, scheme: 'skip' }],
      // One order for all: a static order turns a rounding of the Hessian's diagonal into another permutation.
      quantizer: gptqQuantizer({ ...GPTQ_DEFAULTS, alpha, order: 'none' }),
      calibration: {
        name: 'made',
        sha256: '0'.repeat(64),
        seed: 0,
        length: 60,
        kind: 'windows',
        sequences: list,
        tokens: 360,
        available: 6,
      },
      lmHead: false,
      options: {},
      version: 'test',
    });
    const checkpoint = CanonicalCheckpoint.open(output);
    assert.deepEqual(await checkpoint.verifyHashes(), []);
    return {
      summary,
      hashes: Object.fromEntries(Object.entries(checkpoint.manifest.modules).map(([key, { sha256 }]) => [key, sha256])),
    };
  };
  const [a, b, c] = [createRuntime(1), createRuntime(1), createRuntime(1)];
  const one = await run('one', [a], 0);
  const two = await run('two', [a, b], 0);
  assert.deepEqual(
    two.summary.modules.map(({ name }) => name).sort(),
    one.summary.modules.map(({ name }) => name).sort(),
  );
  for (const line of one.summary.modules) {
    const other = two.summary.modules.find(({ name }) => name === line.name)!;
    assert.equal(other.tokens, 360);
    // Codes on the border between two may fall to either side; the error hardly moves.
    assert.ok(
      Math.abs(other.relativeError! / line.relativeError! - 1) < 0.02,
      `${line.name} ${line.relativeError} ${other.relativeError}`,
    );
  }
  const three = await run('three', [a, b, c], 0.25);
  const again = await run('again', [a, b, c], 0.25);
  assert.deepEqual(again.hashes, three.hashes, 'the same devices, the same bytes');
});
