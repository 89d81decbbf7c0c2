import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { canonical } from '../../../src/layout/canonical.js';
import { indexAt, type Layout, layout, localCount, threadCount } from '../../../src/layout/layout.js';
import { local, spatial } from '../../../src/layout/make.js';
import { permute, product } from '../../../src/layout/product.js';
import { equal } from './equal.js';
import { locate } from './locate.js';
import { randomLayout, replicated } from './random-layout.js';

/** The map written out: element of every (thread, local). */
function table(value: Layout): string {
  const rows: string[] = [];
  for (let t = 0; t < threadCount(value); t++)
    for (let i = 0; i < localCount(value); i++) rows.push(indexAt(value, t, i).join(','));
  return `${threadCount(value)}x${localCount(value)} [${value.shape}] ${rows.join(' ')}`;
}

const small = (value: Layout): boolean => threadCount(value) * localCount(value) <= 4096;
const anyRank = fc.integer({ min: 1, max: 3 });
const one = anyRank.chain((rank) => randomLayout(rank)).filter(small);
const several = (count: number) =>
  anyRank
    .chain((rank) => fc.array(randomLayout(rank), { minLength: count, maxLength: count }))
    .filter((list) => small(list.reduce((f, g) => product(f, g))));

test('the product follows its definition', () => {
  fc.assert(
    fc.property(several(2), ([f, g]) => {
      const h = product(f!, g!);
      const [tg, ng] = [threadCount(g!), localCount(g!)];
      assert.equal(threadCount(h), threadCount(f!) * tg);
      for (let t = 0; t < threadCount(h); t++)
        for (let i = 0; i < localCount(h); i++) {
          const outer = indexAt(f!, Math.floor(t / tg), Math.floor(i / ng));
          const inner = indexAt(g!, t % tg, i % ng);
          assert.deepEqual(
            indexAt(h, t, i),
            outer.map((digit, dim) => digit * g!.shape[dim]! + inner[dim]!),
          );
        }
    }),
    { numRuns: 60 },
  );
});

test('the product is associative', () => {
  fc.assert(
    fc.property(several(3), ([f, g, h]) => {
      assert.equal(table(product(product(f!, g!), h!)), table(product(f!, product(g!, h!))));
      assert.ok(equal(product(product(f!, g!), h!), product(f!, product(g!, h!))));
    }),
    { numRuns: 60 },
  );
});

test('the canonical form keeps the map, is idempotent and the only one of its map', () => {
  fc.assert(
    fc.property(one, fc.infiniteStream(fc.nat()), (value, keys) => {
      const form = canonical(value);
      assert.equal(table(form), table(value));
      assert.deepEqual(canonical(form), form);
      // Another way to write the same map: split every mode where it can be, then canonicalise.
      const next = (): number => keys.next().value as number;
      const finer = splitModes(value, next);
      assert.equal(table(finer), table(value));
      assert.deepEqual(canonical(finer), form);
    }),
    { numRuns: 200 },
  );
});

test('layouts with different maps are not equal', () => {
  fc.assert(
    fc.property(several(2), ([a, b]) => {
      assert.equal(equal(a!, b!), table(a!) === table(b!));
    }),
    { numRuns: 300 },
  );
});

test('the inverse map finds every element again', () => {
  fc.assert(
    fc.property(one, (value) => {
      const seen = new Map<string, number[]>();
      for (let t = 0; t < threadCount(value); t++)
        for (let i = 0; i < localCount(value); i++) {
          const index = indexAt(value, t, i);
          const found = locate(value, index);
          assert.equal(found.local, i);
          assert.ok(found.threads.includes(t));
          assert.equal(found.threads.length, value.replication);
          const key = index.join();
          seen.set(key, [...(seen.get(key) ?? []), t]);
        }
      assert.equal(
        seen.size,
        value.shape.reduce((a, b) => a * b, 1),
      );
      for (const [key, threads] of seen)
        assert.deepEqual(locate(value, key === '' ? [] : key.split(',').map(Number)).threads, threads);
    }),
    { numRuns: 100 },
  );
});

test('permute acts on the map', () => {
  fc.assert(
    fc.property(
      randomLayout(3).filter(small),
      fc.shuffledSubarray([0, 1, 2], { minLength: 3, maxLength: 3 }),
      (value, order) => {
        const turned = permute(value, order);
        for (let t = 0; t < threadCount(value); t++)
          for (let i = 0; i < localCount(value); i++) {
            const index = indexAt(value, t, i);
            assert.deepEqual(
              indexAt(turned, t, i),
              order.map((axis) => index[axis]!),
            );
          }
      },
    ),
    { numRuns: 60 },
  );
});

test('adjacent replicas merge', () => {
  const twice = product(replicated(2, 1), replicated(3, 1), spatial(4), local(1));
  assert.deepEqual(canonical(twice).spatialModes, [-6, 0]);
});

test('wrong layouts are refused with LPQ_LAYOUT', () => {
  const wrong = (make: () => unknown): void => {
    assert.throws(make, (error: { code?: string }) => error.code === 'LPQ_LAYOUT');
  };
  wrong(() => layout([4], [3], [0], []));
  wrong(() => layout([4], [2, 2], [0], []));
  wrong(() => layout([4], [2, 2], [0, 1], [1]));
  wrong(() => layout([4], [4, 2], [0], [1]));
  wrong(() => layout([4], [0], [0], []));
  wrong(() => layout([4], [4], [0, -1.5], []));
  wrong(() => product(local(2), local(2, 2)));
  wrong(() => permute(local(2, 2), [0, 0]));
  wrong(() => indexAt(local(2, 2), 0, 4));
  wrong(() => locate(local(2, 2), [0, 2]));
  wrong(() => locate(local(2, 2), [0]));
});

function splitModes(value: Layout, next: () => number): Layout {
  const modeShape: number[] = [];
  const pieces = value.modeShape.map((size) => {
    const divisors = Array.from({ length: size }, (_, i) => i + 1).filter((d) => size % d === 0);
    const outer = divisors[next() % divisors.length]!;
    const at = modeShape.length;
    // A leading 1 of a dimension is fine, a trailing one would move to the next dimension's end: put it first.
    modeShape.push(...(size / outer === 1 ? [1, outer] : [outer, size / outer]));
    return [at, at + 1];
  });
  const split = (modes: readonly number[]): number[] => modes.flatMap((mode) => (mode < 0 ? [mode] : pieces[mode]!));
  return layout(value.shape, modeShape, split(value.spatialModes), split(value.localModes));
}
