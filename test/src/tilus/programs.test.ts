import assert from 'node:assert/strict';
import { test } from 'node:test';
import { QUANT_TYPES } from '../../../src/core/quant-type.js';
import { canonical } from '../../../src/layout/canonical.js';
import { local, spatial } from '../../../src/layout/make.js';
import { product } from '../../../src/layout/product.js';
import { check, type Settings } from '../../../src/tilus/check/check.js';
import { layoutKey } from '../../../src/tilus/check/layout-map.js';
import { run } from '../../../src/tilus/interpret/run.js';
import { program } from '../../../src/tilus/programs.js';
import { elements, noise, numberOf, packed, typeNamed, valuesOf } from './direct.js';

const [K, N] = [32, 32];
const gcd = (a: number, b: number): number => (b === 0 ? a : gcd(b, a % b));

/** Codes of finite numbers. */
function codesOf(type: string, count: number, seed: number): number[] {
  const random = noise(seed);
  return Array.from({ length: count }, () => {
    for (;;) {
      const code = random(2 ** typeNamed(type).bits);
      if (Number.isFinite(numberOf(type, code))) return code;
    }
  });
}

function transformed(type: string, codes: readonly number[], settings: Settings): Uint8Array {
  const tiles = new Uint8Array((codes.length * typeNamed(type).bits) / 8);
  const ran = run(check(program('transform'), { settings: { T: type, K, N, ...settings } }), {
    w_ptr: packed(typeNamed(type).bits, codes),
    transformed_ptr: { output: tiles },
  });
  assert.equal(ran.unwritten.transformed_ptr, 0);
  return tiles;
}

/** Section 7.2 for a tile of 16 x 16, byte by byte: n bytes of a lane in loads of n1 = gcd(n, 16), load after load of all lanes. */
function closedForm(bits: number, codes: readonly number[]): Uint8Array {
  const out = new Uint8Array((K * N * bits) / 8);
  const together = gcd(bits, 16);
  for (let k = 0; k < K; k++)
    for (let n = 0; n < N; n++) {
      const [kr, nr] = [k % 16, n % 16];
      const lane = 4 * (nr % 8) + Math.floor((kr % 8) / 2);
      const element = 4 * Math.floor(nr / 8) + 2 * Math.floor(kr / 8) + (kr % 2);
      const tile = (Math.floor(k / 16) * (N / 16) + Math.floor(n / 16)) * 32 * bits;
      for (let bit = 0; bit < bits; bit++) {
        if (Math.floor(codes[k * N + n]! / 2 ** bit) % 2 === 0) continue;
        const byte = (element * bits + bit) >> 3;
        out[tile + Math.floor(byte / together) * 32 * together + lane * together + (byte % together)]! |=
          1 << ((element * bits + bit) & 7);
      }
    }
  return out;
}

test('transform, dequantize and matmul of all 36 types: bytes by the closed form, numbers by the definition', () => {
  const random = noise(3);
  const a = Array.from({ length: 16 * K }, () => (random(9) - 4) / 4);
  for (const { name, bits } of QUANT_TYPES) {
    const codes = codesOf(name, K * N, bits + 1);
    const tiles = transformed(name, codes, {});
    assert.deepEqual(Buffer.from(tiles), Buffer.from(closedForm(bits, codes)), name);
    const numbers = codes.map((code) => numberOf(name, code));
    const w = new Uint8Array(K * N * 4);
    const settings = { T: name, K, N, O: 'f32', SCALED: 0 };
    run(check(program('dequantize'), { settings }), { tiles_ptr: tiles, s_ptr: w, z_ptr: w, w_ptr: { output: w } });
    assert.deepEqual(valuesOf('f32', w), numbers, name);
    // bf16 holds every number of the types but those of more than 8 significant bits, which there are none.
    const c = new Uint8Array(16 * N * 4);
    const matmul = check(program('matmul'), {
      settings: { T: name, K, N, A: 'bf16', X: 'bf16', S: 'bf16', O: 'f32', SCALED: 0 },
    });
    run(matmul, {
      a_ptr: elements('bf16', a),
      w_ptr: tiles,
      s_ptr: w,
      z_ptr: w,
      bias_ptr: w,
      c_ptr: { output: c },
      m: 16,
    });
    assert.deepEqual(valuesOf('f32', c), sums(a, numbers, 16), name);
  }
});

/** Sums of 16 products are added to the sum before them exactly and rounded once, as the machine is defined. */
function sums(a: readonly number[], w: readonly number[], m: number): number[] {
  return Array.from({ length: m * N }, (_, i) => {
    let sum = 0;
    for (let k = 0; k < K; k += 16) {
      let all = sum;
      for (let at = k; at < k + 16; at++) all += a[Math.floor(i / N) * K + at]! * w[at * N + (i % N)]!;
      sum = Math.fround(all);
    }
    return sum;
  });
}

/** Whole numbers, of which all arithmetic here is exact: every form of matmul must give the same C. */
test('every form of matmul: pipelined, split, grouped, with zero points and bias, activations of 8, 16 and 32 bits, tails', () => {
  const forms: readonly (Settings & { m: number })[] = [
    { m: 16, SCALED: 0 },
    { m: 5, SCALED: 1, GROUPS: 2, ZEROS: 1, BIAS: 1 },
    { m: 33, STAGES: 2, WM: 2, WN: 2, RM: 1, RN: 2, GROUPS: 2, SCALED: 1 },
    { m: 40, STAGES: 3, WM: 1, WN: 2, RM: 2, RN: 2, RK: 1, ZEROS: 1, SCALED: 1, A: 'bf16', X: 'bf16', S: 'bf16' },
    { m: 20, STAGES: 4, WN: 4, RN: 1, RK: 2, A: 'f32', SCALED: 0 },
    { m: 16, SPLIT: 2, BIAS: 0, SCALED: 1, O: 'f32' },
    { m: 19, A: 'i8', X: 'i8', S: 'f32', SUM: 'i32', SCALED: 1, BIAS: 1 },
    { m: 7, WK: 2, GROUPS: 2, SCALED: 1, ZEROS: 1, BIAS: 1 },
    { m: 21, WK: 2, WM: 2, RN: 2, STAGES: 2, GROUPS: 2, SCALED: 1, ZEROS: 1, SPLIT: 1 },
    { m: 19, A: 'i8', X: 'i8', S: 'f32', SUM: 'i32', GROUPS: 1, STAGES: 2, SCALED: 1 },
  ];
  for (const { m, ...form } of forms) {
    const {
      T = 'i4',
      WN = 1,
      RN = 2,
      RK = 1,
      X = 'f16',
      A = 'f16',
      S = 'f16',
      O = 'f16',
      GROUPS = 1,
      ZEROS = 0,
      SCALED = 0,
      BIAS = 0,
      SPLIT = 1,
    } = form;
    const random = noise(m);
    const codes = codesOf(T as string, K * N, m);
    const tiles = transformed(T as string, codes, { WN, RN, RK, X });
    const a = Array.from({ length: m * K }, () => random(7) - 3);
    const groups = GROUPS as number;
    const [scales, zeros] = [0, 1].map((least) => Array.from({ length: groups * N }, () => least - 1 + random(3))) as [
      number[],
      number[],
    ];
    const bias = Array.from({ length: N }, () => random(5));
    const w = codes.map((code, i) => {
      const at = Math.floor(Math.floor(i / N) / (K / groups)) * N + (i % N);
      return (numberOf(T as string, code) - (ZEROS ? zeros[at]! : 0)) * (SCALED ? scales[at]! : 1);
    });
    const c = new Uint8Array((SPLIT as number) * m * N * (O === 'f32' ? 4 : 2));
    const ran = run(check(program('matmul'), { settings: { T, K, N, ...form } }), {
      a_ptr: elements(A as string, a),
      w_ptr: tiles,
      s_ptr: elements(S as string, scales),
      z_ptr: elements(X === 'i8' ? 'i8' : (X as string), zeros),
      bias_ptr: elements('f32', bias),
      c_ptr: { output: c },
      m,
    });
    assert.equal(ran.unwritten.c_ptr, 0, JSON.stringify(form));
    const want = sums(a, w, m).map((sum, i) => sum + (BIAS ? bias[i % N]! : 0));
    const got = SPLIT === 1 ? c : summed(c, m, SPLIT as number);
    // A negative scale of 0 is -0.
    assert.deepEqual(
      valuesOf('f16', got).map((value) => value + 0),
      want.map((value) => value + 0),
      JSON.stringify(form),
    );
  }
});

function summed(parts: Uint8Array, m: number, split: number): Uint8Array {
  const c = new Uint8Array(m * N * 2);
  const sum = check(program('sum'), { settings: { N, SPLIT: split } });
  run(sum, { parts_ptr: parts, bias_ptr: new Uint8Array(4 * N), c_ptr: { output: c }, m });
  return c;
}

test('the register layout of a weight follows from the mma and the type: n1 = gcd(n, 16)', () => {
  const cases: readonly (readonly [Settings, readonly [number, number, number]])[] = [
    // Fig. 2: 24 bits a thread are local(3).spatial(32).
    [{ T: 'i6', RN: 1 }, [3, 32, 1]],
    [{ T: 'u4' }, [1, 32, 4]],
    [{ T: 'u8', RK: 2, WN: 2 }, [1, 64, 16]],
    [{ T: 'f6e3m2', RK: 4 }, [3, 32, 8]],
    [{ T: 'u1' }, [1, 32, 1]],
  ];
  for (const [settings, [n2, threads, n1]] of cases) {
    const found = check(program('transform'), { settings: { K: 64, N: 64, ...settings } }).constants.get('LU');
    assert.equal(found, `layout ${layoutKey(canonical(product(local(n2), spatial(threads), local(n1))))}`);
  }
});
