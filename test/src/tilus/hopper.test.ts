import assert from 'node:assert/strict';
import { test } from 'node:test';
import { check } from '../../../src/tilus/check/check.js';
import { compile } from '../../../src/tilus/compile/compile.js';
import { run } from '../../../src/tilus/interpret/run.js';
import { parse } from '../../../src/tilus/language/parse.js';
import { program, programText } from '../../../src/tilus/programs.js';
import { elements, noise, numberOf, packed, typeNamed } from './direct.js';
import { hostCompiler, simulate } from './simulated.js';

const [N, K, m, BM] = [64, 384, 40, 32];

function operands(T: string) {
  const random = noise(9);
  const codes = Array.from({ length: N * K }, () => random(2 ** typeNamed(T).bits));
  const a = Array.from({ length: m * K }, () => (random(17) - 8) / 8);
  const scales = Array.from({ length: N }, () => 1 + random(3));
  const tiles = new Uint8Array((N * K * typeNamed(T).bits) / 8);
  const transform = check(program('transform_hopper'), { settings: { T, N, K } });
  run(transform, { w_ptr: packed(typeNamed(T).bits, codes), transformed_ptr: { output: tiles } });
  const want = Array.from({ length: m * N }, (_, i) => {
    const [token, n] = [Math.floor(i / N), i % N];
    let sum = 0;
    // Sums of products of few bits are exact in f32.
    for (let k = 0; k < K; k++) sum += a[token * K + k]! * numberOf(T, codes[n * K + k]!);
    return sum * scales[n]!;
  });
  return { args: { a_ptr: elements('f16', a), w_ptr: tiles, s_ptr: elements('f32', scales), m }, want };
}

test('a program of sm_90: TMA, barriers and products of warpgroups, in the interpreter and compiled', (t) => {
  const launches = ['u3', 'f6e3m2'].map((T, i) => {
    const { args, want } = operands(T);
    const hopper = check(program('hopper'), { settings: { T, N, K, BM, STAGES: 3 + (i % 2), RK: 1 + i }, arch: 90 });
    const made = new Uint8Array(2 * m * N);
    const ran = run(hopper, { ...args, c_ptr: { output: made } });
    assert.equal(ran.unwritten.c_ptr, 0);
    assert.deepEqual(Buffer.from(made), Buffer.from(elements('f16', want)), T);
    const again = new Uint8Array(made.length);
    const kernel = compile(hopper, `hopper_${T}`);
    assert.deepEqual(
      kernel.maps.map(({ name, box }) => [name, box]),
      [['ga_map', [64, BM, 1]]],
    );
    const { a_ptr, w_ptr, s_ptr } = args;
    const launch = {
      kernel,
      blocks: (N / 64) * Math.ceil(m / BM),
      args: { a_ptr, w_ptr, s_ptr, c_ptr: { output: again }, m },
    };
    return { launch, made, again };
  });
  const compiler = hostCompiler();
  if (compiler === undefined) return t.diagnostic('no C++ compiler was found');
  simulate(
    compiler,
    launches.map(({ launch }) => launch),
  );
  for (const { made, again } of launches) assert.deepEqual(Buffer.from(again), Buffer.from(made));
});

test('what a warpgroup leaves undefined is reported', () => {
  const { args } = operands('u4');
  const without = (line: string, instead = ''): (() => void) => {
    const text = programText('hopper');
    assert.ok(text.includes(line), line);
    return () => {
      const broken = check(parse(text.replace(line, instead)), { settings: { T: 'u4', N, K }, arch: 90 });
      run(broken, { ...args, c_ptr: { output: new Uint8Array(2 * m * N) } });
    };
  };
  const cases: readonly (readonly [RegExp, string, string?])[] = [
    [
      /reads byte 0 of shared memory before the copy of line 31 .* has arrived$/,
      'BarrierWait(full, step % STAGES, step / STAGES % 2)',
      'x = 0',
    ],
    [/reads total while products add to it$/, '            WarpgroupWait()\n'],
    [/byte \d+ of shared memory, which .* with no Synchronize in between$/, '        Synchronize()\n'],
    [
      /waits forever: 0 of 1 copies of this phase have begun$/,
      'range(RK):\n                CopyTensor(sa, ga, full, early',
      'range(RK - early):\n                CopyTensor(sa, ga, full, early',
    ],
    [/waits forever: 1 of 2 copies/, 'AllocateBarrier(STAGES, RK)', 'AllocateBarrier(STAGES, 2)'],
    [/takes barrier 4 of 4$/, 'BarrierWait(full, step % STAGES', 'BarrierWait(full, STAGES'],
    [/the operand in shared memory must be swizzled, with rows of 64 numbers$/, 'BM = 64', 'BM = 40'],
    [/TMA copies rows of 128 bytes to a swizzled tensor$/, 'swizzle=1', 'swizzle=0'],
    [/ga is not a barrier|ga is in global memory$/, 'ga, full, early', 'ga, ga, early'],
  ];
  for (const [message, line, instead] of cases)
    assert.throws(without(line, instead), { code: 'LPQ_TILUS', message }, line);
  assert.throws(() => check(program('hopper')), { message: /^line 24, .*: this instruction needs sm_90$/ });
});
