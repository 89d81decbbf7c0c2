import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Layout } from '../../../src/layout/layout.js';
import { bitPositions } from '../../../src/layout/memory.js';
import { MARLIN_STORED_TILE } from '../../../src/pack/layouts/marlin.js';
import { turbomindWeight } from '../../../src/pack/layouts/turbomind.js';
import { check, type Settings } from '../../../src/tilus/check/check.js';
import { sameLayout } from '../../../src/tilus/check/layout-map.js';
import { compile } from '../../../src/tilus/compile/compile.js';
import { visit } from '../../../src/tilus/compile/ranges.js';
import { run } from '../../../src/tilus/interpret/run.js';
import { program } from '../../../src/tilus/programs.js';
import { elements, noise, valuesOf } from './direct.js';

const [m, N, K, GROUPS] = [19, 128, 64, 2];
const div = Math.trunc;

/** Word and nibble of element (k, n): MARLIN's, and TurboMind's of 16-bit operands B (sm_75 and later). */
const PLACES: Readonly<Record<number, (k: number, n: number) => readonly [number, number]>> = {
  4: (k, n) => {
    const [kr, c] = [k % 16, n % 16];
    const lane = 4 * (c % 8) + div((kr % 8) / 2);
    const word = div(k / 16) * 2 * N + div(n / 64) * 128 + lane * 4 + div((n % 64) / 16);
    return [word, 4 * (kr & 1) + 2 * div(c / 8) + div(kr / 8)];
  },
  2: (k, n) => {
    const [p, s, c, e] = [div((n % 32) / 16), div((n % 16) / 8), div((k % 16) / 8), k % 2];
    const lane = 4 * (n % 8) + div((k % 8) / 2);
    const word = ((div(k / 16) * (N / 32) + div(n / 32)) * 32 + lane) * 2 + p;
    return [word, [0, 4, 1, 5, 2, 6, 3, 7][4 * s + 2 * c + e]!];
  },
};

function product(P: number, settings: Settings): { got: number[]; want: number[] } {
  const random = noise(P);
  const codes = Array.from({ length: K * N }, () => random(16));
  const words = new Uint32Array((K * N) / 8);
  for (let k = 0; k < K; k++)
    for (let n = 0; n < N; n++) {
      const [word, nibble] = PLACES[P]!(k, n);
      words[word]! |= codes[k * N + n]! << (4 * nibble);
    }
  const scales = Array.from({ length: GROUPS * N }, () => 1 + random(3));
  // MARLIN: of 64 columns, place p holds column p / 8 + 8 (p % 8).
  const stored = scales.map((_, i) => scales[i - (i % 64) + div((i % 64) / 8) + 8 * (i % 8)]!);
  const a = Array.from({ length: m * K }, () => random(5) - 2);
  const scaled = settings.SCALED !== 0;
  const want = Array.from({ length: m * N }, (_, i) => {
    let sum = 0;
    for (let k = 0; k < K; k++) {
      const at = k * N + (i % N);
      sum += a[div(i / N) * K + k]! * (codes[at]! - 8) * (scaled ? scales[div(k / (K / GROUPS)) * N + (i % N)]! : 1);
    }
    return sum;
  });
  const out = new Uint8Array(2 * m * N);
  const args = { a_ptr: elements('f16', a), w_ptr: new Uint8Array(words.buffer), s_ptr: elements('f16', stored) };
  run(check(program('fragments'), { settings: { P, N, K, GROUPS, ...settings } }), {
    ...args,
    c_ptr: { output: out },
    m,
  });
  return { got: valuesOf('f16', out).map((value) => value + 0), want: want.map((value) => value + 0) };
}

test('a program reads what MARLIN and TurboMind store', () => {
  for (const [P, settings] of [
    [4, {}],
    [4, { RM: 2 }],
    [2, { SCALED: 0 }],
  ] as const) {
    const { got, want } = product(P, settings);
    assert.deepEqual(got, want, `${P}`);
  }
});

test('the packer puts codes where the program finds them', () => {
  let found: Layout | undefined;
  visit(check(program('fragments')).body, (node) => {
    if (node.op === 'View') found = node.out.layout;
  });
  assert.ok(found && sameLayout(found, MARLIN_STORED_TILE));
  const turbomind = turbomindWeight(N, K, 4, 'b');
  for (let k = 0; k < K; k++)
    for (let n = 0; n < N; n++) {
      const [word, nibble] = PLACES[2]!(k, n);
      assert.equal(bitPositions(turbomind, n, k)[0], 32 * word + 4 * nibble);
    }
});

test("MARLIN's pairs are cut out by one AND each, and a lane's words come by one load", () => {
  const { text, selected } = compile(check(program('fragments')));
  assert.equal(selected.get('ld.global.128'), 1);
  assert.equal(
    text.match(
      /u4_pair_to_f16x2\(u\[\d\](?: >> \d+)? & 0x000f000fu\)|u4_pair_to_f16x2\(q\[\d\](?: >> \d+)? & 0x000f000fu\)/g,
    )?.length,
    16,
  );
});

test('a Cast leaves every element in its thread', () => {
  assert.throws(() => check(program('fragments'), { settings: { LB: 'local(1, 2 * P).spatial(16, 2).local(1, 4)' } }), {
    code: 'LPQ_TILUS',
    message:
      /^line 28, w = Cast\(q, X, layout=LB\): a Cast keeps every element in its thread; only their order may change$/,
  });
});
