import assert from 'node:assert/strict';
import { check, type Settings } from '../../../src/tilus/check/check.js';
import { run } from '../../../src/tilus/interpret/run.js';
import { program } from '../../../src/tilus/programs.js';
import { elements, noise, numberOf, packed, typeNamed, valuesOf } from '../../src/tilus/direct.js';
import type { Twin } from './device.js';

type Numbers = Readonly<Record<string, number>>;

/** A shape of weights with the form of the programs: a plain one, slices of steps, all that matmul has, bf16 in parts. */
export interface Form {
  readonly m: number;
  readonly settings: Settings;
  readonly tile: Settings;
  readonly X: 'f16' | 'bf16' | 'i8';
  readonly N: number;
  readonly K: number;
  readonly GROUPS: number;
  readonly O: string;
  readonly SPLIT: number;
}

const form = (m: number, tile: Numbers & { N: number; K: number }, rest: Settings): Form => ({
  m,
  tile,
  settings: { ...tile, ...rest },
  X: (rest.X ?? 'f16') as Form['X'],
  N: tile.N,
  K: tile.K,
  GROUPS: (rest.GROUPS ?? 1) as number,
  O: (rest.O ?? 'f16') as string,
  SPLIT: (rest.SPLIT ?? 1) as number,
});

export const FORMS: readonly Form[] = [
  form(9, { N: 64, K: 64, RN: 2, RK: 1 }, {}),
  form(5, { N: 64, K: 256, RN: 2, RK: 2 }, { WK: 4, GROUPS: 2, STAGES: 2 }),
  form(37, { N: 128, K: 256, WN: 4, RN: 2, RK: 2 }, { WM: 2, STAGES: 3, GROUPS: 4, ZEROS: 1, BIAS: 1 }),
  form(
    19,
    { N: 192, K: 128, WN: 2, RN: 4, RK: 1 },
    { RM: 2, STAGES: 2, SPLIT: 2, O: 'f32', A: 'bf16', X: 'bf16', S: 'bf16' },
  ),
];

/** Whole numbers times the tensor cores of i8: integer types that i8 holds. */
export const BYTES = form(
  21,
  { N: 128, K: 128, WN: 2, RN: 2, RK: 2 },
  { STAGES: 3, GROUPS: 2, A: 'i8', X: 'i8', S: 'f32', SUM: 'i32' },
);

/** Codes of finite numbers of at most this size. */
function codesOf(T: string, count: number, seed: number, most = Number.MAX_VALUE): number[] {
  const random = noise(seed);
  const finite = Array.from({ length: 2 ** typeNamed(T).bits }, (_, code) => code).filter(
    (code) => Math.abs(numberOf(T, code)) <= most,
  );
  return Array.from({ length: count }, () => finite[random(finite.length)]!);
}

const same = (type: string) => (interpreted: Uint8Array, device: Uint8Array) => {
  if (Buffer.from(interpreted).equals(Buffer.from(device))) return;
  // One NaN is as good as another, -0 is not 0.
  assert.deepEqual(valuesOf(type, device), valuesOf(type, interpreted));
};

/** The program that lays out codes of numbers of at most a size, and its output by the interpreter. */
export function transformTwin(
  T: string,
  { tile, X, N, K }: Form,
  seed: number,
  most?: number,
): { twin: Twin; tiles: Uint8Array; codes: number[] } {
  const { bits } = typeNamed(T);
  const codes = codesOf(T, N * K, seed, most);
  const transform = check(program('transform'), { settings: { ...tile, T, X } });
  const w_ptr = packed(bits, codes);
  const tiles = new Uint8Array((N * K * bits) / 8);
  run(transform, { w_ptr, transformed_ptr: { output: tiles } });
  const twin: Twin = {
    label: `transform ${T} ${N}x${K}`,
    program: transform,
    args: { w_ptr },
    output: ['transformed_ptr', tiles.length],
    compare: same('u8'),
  };
  return { twin, tiles, codes };
}

/** Numbers of codes, with a scale and a zero point of their groups. Every step rounds once, as it is defined: exact. */
export function dequantizeTwin(T: string, of: Form, tiles: Uint8Array): Twin {
  const { tile, N, K, GROUPS, X } = of;
  const O = X === 'bf16' ? 'bf16' : of.GROUPS > 1 ? 'f32' : 'f16';
  const random = noise(N);
  const s = Array.from({ length: GROUPS * N }, () => (1 + random(200)) / 64);
  const z = Array.from({ length: GROUPS * N }, () => random(7));
  const settings = { ...tile, T, X, O, GROUPS, ZEROS: GROUPS > 1 ? 1 : 0 };
  return {
    label: `dequantize ${T} ${N}x${K} to ${O}`,
    program: check(program('dequantize'), { settings }),
    args: { tiles_ptr: tiles, s_ptr: elements(O, s), z_ptr: elements(O, z) },
    output: ['w_ptr', (N * K * typeNamed(O).bits) / 8],
    compare: same(O),
  };
}

/**
 * Integers, and activations and scales of few bits, make sums that f32 holds: exact. Other numbers differ as tensor cores add: they align the 16
 * products of an instruction and its sum to the largest of these 17 numbers and cut them off 23 bits below it at least, so one
 * instruction adds an error of 17 x 2^-23 of the largest, which is at most the sum of the sizes of all products so far.
 */
export function matmulTwin(T: string, of: Form, tiles: Uint8Array, codes: readonly number[]): Twin {
  const { m, settings, X, N, K, GROUPS, O, SPLIT } = of;
  const whole = typeNamed(T).kind === 'int';
  const random = noise(m + N);
  const { ZEROS = 0, A = 'f16', S = 'f16', BIAS = 0 } = settings;
  const a = Array.from({ length: m * K }, () => (whole ? random(5) - 2 : (random(4001) - 2000) / 2 ** 17));
  const s = Array.from({ length: GROUPS * N }, () => (whole ? 2 ** random(2) : (64 + random(64)) / 128));
  const z = Array.from({ length: GROUPS * N }, () => random(4));
  const bias = Array.from({ length: N }, () => random(9) - 4);
  const typed = (name: string, values: number[]) => elements(name, roundedTo(name, values));
  const args = {
    a_ptr: typed(A as string, a),
    w_ptr: tiles,
    s_ptr: typed(S as string, s),
    z_ptr: typed(X, z),
    bias_ptr: elements('f32', bias),
    m,
  };
  const w = codes.map((code, i) => {
    const at = Math.floor(Math.floor(i / N) / (K / GROUPS)) * N + (i % N);
    return Math.abs((numberOf(T, code) - (ZEROS ? z[at]! : 0)) * s[at]!);
  });
  const bound = (i: number): number => {
    const [row, n] = [Math.floor(i / N) % m, i % N];
    let sizes = BIAS ? Math.abs(bias[n]!) : 0;
    for (let k = 0; k < K; k++) sizes += Math.abs(a[row * K + k]!) * w[k * N + n]!;
    // 1.01: w rounded to X. Then, twice, the rounding of what is stored, and the least f16.
    return 1.01 * sizes * ((K / 16) * 17 * 2 ** -23 + (O === 'f32' ? 2 ** -23 : 2 ** -10)) + 2 ** -24;
  };
  const compare = whole
    ? same(O)
    : (interpreted: Uint8Array, device: Uint8Array) => {
        const want = valuesOf(O, interpreted);
        for (const [i, value] of valuesOf(O, device).entries())
          if (!(Math.abs(value - want[i]!) <= bound(i)))
            assert.fail(`element ${i} is ${value}, the interpreter has ${want[i]}, bound ${bound(i)}`);
      };
  return {
    label: `matmul ${T} ${m}x${N}x${K} ${X}`,
    program: check(program('matmul'), { settings: { ...settings, T } }),
    args,
    output: ['c_ptr', (SPLIT * m * N * typeNamed(O).bits) / 8],
    compare,
  };
}

/** f16 and bf16 numbers nearest to `values`: what elements() takes is exact. */
function roundedTo(name: string, values: readonly number[]): number[] {
  const mantissa = { f16: 10, bf16: 7 }[name];
  if (mantissa === undefined) return [...values];
  return values.map((value) => {
    if (value === 0) return 0;
    const unit = 2 ** (Math.floor(Math.log2(Math.abs(value))) - mantissa);
    return Math.round(value / unit) * unit;
  });
}

/** Parts of a product, added up in order: exact. */
export function sumTwin(): Twin {
  const [N, SPLIT, m] = [96, 3, 7];
  const random = noise(5);
  const numbers = (count: number) => Array.from({ length: count }, () => (random(2 ** 20) - 2 ** 19) / 1000);
  return {
    label: 'sum',
    program: check(program('sum'), { settings: { N, SPLIT, BIAS: 1 } }),
    args: { parts_ptr: elements('f32', numbers(SPLIT * m * N)), bias_ptr: elements('f32', numbers(N)), m },
    output: ['c_ptr', 2 * m * N],
    compare: same('f16'),
  };
}

/** MARLIN's and TurboMind's order of codes; whole numbers: exact. */
export function fragmentsTwin(P: number, settings: Settings): Twin {
  const [m, N, K, GROUPS] = [19, 128, 64, 2];
  const random = noise(P);
  const values = (count: number, below: number) => Array.from({ length: count }, () => random(below) - (below >> 1));
  const X = (settings.X ?? 'f16') as string;
  return {
    label: `fragments ${P} ${X}`,
    program: check(program('fragments'), { settings: { P, N, K, GROUPS, ...settings } }),
    args: {
      a_ptr: elements(X, values(m * K, 5)),
      w_ptr: Uint8Array.from({ length: (N * K) / 2 }, () => random(256)),
      s_ptr: elements(X, values(GROUPS * N, 5)),
      m,
    },
    output: ['c_ptr', 2 * m * N],
    compare: same(X),
  };
}

/** TMA, barriers and products of warpgroups; whole numbers: exact. */
export function hopperTwins(T: string, settings: Settings & { readonly BM: number }): Twin[] {
  const [N, K, m] = [128, 384, 75];
  const { BM, SPLIT = 1, O = 'f16' } = settings;
  const { bits, kind } = typeNamed(T);
  const random = noise(BM);
  const codes = codesOf(T, N * K, BM);
  const tiles = new Uint8Array((N * K * bits) / 8);
  const transform = check(program('transform_hopper'), { settings: { T, N, K } });
  const w_ptr = packed(bits, codes);
  run(transform, { w_ptr, transformed_ptr: { output: tiles } });
  const a = Array.from({ length: m * K }, () => (kind === 'int' ? random(5) - 2 : 2 ** (random(3) - 1)));
  const scales = Array.from({ length: N }, () => 2 ** random(2));
  return [
    {
      label: `transform_hopper ${T}`,
      program: transform,
      args: { w_ptr },
      output: ['transformed_ptr', tiles.length],
      compare: same('u8'),
    },
    {
      label: `hopper ${T} ${JSON.stringify(settings)}`,
      program: check(program('hopper'), { settings: { T, N, K, ...settings }, arch: 90 }),
      args: { a_ptr: elements('f16', a), w_ptr: tiles, s_ptr: elements('f32', scales), m },
      output: ['c_ptr', ((SPLIT as number) * m * N * typeNamed(O as string).bits) / 8],
      compare: same(O as string),
    },
  ];
}
