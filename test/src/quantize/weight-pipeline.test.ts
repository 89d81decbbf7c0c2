import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime, fromTyped, type Tensor } from '../../../native/binding.js';
import type { LinearRef } from '../../../src/model/program.js';
import type { FinishedModule } from '../../../src/quantize/assembly.js';
import type { BlockContext } from '../../../src/quantize/blocks.js';
import { roundWeight } from '../../../src/quantize/round.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { WeightPipeline } from '../../../src/quantize/weight-pipeline.js';
import { rtnQuantizer } from '../../../src/rtn/quantizer.js';

const rt = createRuntime(2);
const scheme = schemeFromOptions({ bits: 4, groupSize: 32 });
const [N, K] = [24, 64];

/** A source of `count` modules m0, m1, ...; those in `broken` hold a NaN, those in `absent` cannot be read. */
function source(count: number, broken: readonly number[] = [], absent: readonly number[] = []) {
  const linears: LinearRef[] = Array.from({ length: count }, (_, i) => ({ name: `m${i}`, n: N, k: K }));
  const state = { open: 0, mostOpen: 0, let: [] as string[] };
  const weight = (i: number) => {
    const values = Float32Array.from({ length: N * K }, (_, j) => Math.sin(1 + i * 7919 + j * 0.37));
    if (broken.includes(i)) values[5] = Number.NaN;
    return fromTyped('f32', [N, K], values);
  };
  const reader = {
    dir: '',
    config: {},
    names: () => linears.map(({ name }) => `${name}.weight`),
    has: () => true,
    shape: () => [N, K],
    async tensor(name: string): Promise<Tensor> {
      const i = Number(/\d+/.exec(name)?.[0]);
      if (absent.includes(i)) throw new Error(`no ${name}`);
      state.mostOpen = Math.max(state.mostOpen, ++state.open);
      // Later modules are read sooner, so that order has to be kept.
      for (let turns = (count - i) % 5; turns > 0; turns--) await new Promise(setImmediate);
      return weight(i);
    },
    weights: {
      advise(name: string) {
        state.open--;
        state.let.push(name);
      },
    },
  };
  return { linears, reader, state, weight };
}

function context(linears: readonly LinearRef[], onModule: (module: FinishedModule) => Promise<void>): BlockContext {
  const quantizer = rtnQuantizer();
  const schemes = new Map(linears.map(({ name }) => [name, scheme]));
  return { quantizer, schemes, onModule, onStage: () => {} };
}

test('modules come in order, one at a time, with the bytes of one alone; few are in flight', async () => {
  const { linears, reader, state, weight } = source(50);
  const seen: string[] = [];
  let busy = false;
  const skipped = { name: 'other', n: N, k: K };
  const pipeline = new WeightPipeline(
    context(linears, async ({ linear, result }) => {
      assert.equal(busy, false);
      busy = true;
      const alone = await roundWeight(rt, weight(seen.length), scheme, linear.name);
      assert.deepEqual(result.codes.bytes(), alone.codes.bytes());
      assert.deepEqual(result.scales.bytes(), alone.scales.bytes());
      seen.push(linear.name);
      busy = false;
    }),
    rt,
    reader,
  );
  for (let at = 0; at < linears.length; at += 7) await pipeline.add([...linears.slice(at, at + 7), skipped]);
  await pipeline.drain();
  assert.deepEqual(
    seen,
    linears.map(({ name }) => name),
  );
  assert.ok(state.mostOpen > 1 && state.mostOpen <= 16, `${state.mostOpen} in flight`);
  assert.equal(state.let.length, 50);
  await pipeline.abandon();
});

test('the first failure in order is thrown, whatever fails behind it; what is in flight ends', async () => {
  for (const [broken, absent, message] of [
    [[4], [6], /m4/],
    [[6], [4], /no m4/],
    [[4, 5, 6], [], /m4/],
  ] as const) {
    const { linears, reader, state } = source(12, broken, absent);
    const seen: string[] = [];
    const pipeline = new WeightPipeline(
      context(linears, async ({ linear }) => {
        seen.push(linear.name);
      }),
      rt,
      reader,
    );
    await assert.rejects(async () => {
      await pipeline.add(linears);
      await pipeline.drain();
    }, message);
    await pipeline.abandon();
    assert.deepEqual(seen, ['m0', 'm1', 'm2', 'm3']);
    assert.equal(state.open, 0);
    await rt.sync(); // the queue is of use again
  }
});

test('what the receiver throws ends the pipeline', async () => {
  const { linears, reader, state } = source(6);
  const pipeline = new WeightPipeline(
    context(linears, async () => {
      throw new Error('disk full');
    }),
    rt,
    reader,
  );
  await assert.rejects(async () => {
    await pipeline.add(linears);
    await pipeline.drain();
  }, /disk full/);
  await pipeline.abandon();
  assert.equal(state.open, 0);
});
