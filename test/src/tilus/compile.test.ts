import assert from 'node:assert/strict';
import { test } from 'node:test';
import { QUANT_TYPES } from '../../../src/core/quant-type.js';
import { check, type Settings } from '../../../src/tilus/check/check.js';
import type { Program } from '../../../src/tilus/check/program.js';
import { compile } from '../../../src/tilus/compile/compile.js';
import { evaluate } from '../../../src/tilus/interpret/evaluate.js';
import { type LaunchArguments, run } from '../../../src/tilus/interpret/run.js';
import { type Builder, build } from '../../../src/tilus/language/build.js';
import { program } from '../../../src/tilus/programs.js';
import { sampled } from '../../sample.js';
import { elements, noise, numberOf, packed, typeNamed, valuesOf } from './direct.js';
import { hostCompiler, type Launch, simulate } from './simulated.js';

/** Runs programs in the interpreter and as compiled kernels on the simulator: the same bytes. */
class Twins {
  private readonly launches: Launch[] = [];
  private readonly wanted: (readonly [string, string, Uint8Array, Uint8Array])[] = [];

  /** Returns what the interpreter made of the output. */
  add(
    label: string,
    checked: Program,
    args: Record<string, number | Uint8Array>,
    [output, type, count]: readonly [string, string, number],
  ): Uint8Array {
    const bytes = (count * typeNamed(type).bits) / 8;
    const made = new Uint8Array(bytes);
    const again = new Uint8Array(bytes);
    const named = (to: Uint8Array): LaunchArguments =>
      Object.fromEntries(checked.parameters.map(({ name }) => [name, name === output ? { output: to } : args[name]!]));
    run(checked, named(made));
    const scalars = new Map(
      Object.entries(args).filter((pair): pair is [string, number] => typeof pair[1] === 'number'),
    );
    const blocks = checked.grid.reduce((all, size) => all * evaluate(size, scalars), 1);
    const kernel = compile(checked, `${checked.name}_${this.launches.length}`);
    this.launches.push({ kernel, blocks, args: named(again) });
    this.wanted.push([label, type, made, again]);
    return made;
  }
  compare(compiler: string): void {
    simulate(compiler, this.launches);
    // Numbers, for one NaN is as good as another.
    for (const [label, type, made, again] of this.wanted)
      assert.deepEqual(numbers(type, again), numbers(type, made), label);
  }
}

const numbers = (type: string, bytes: Uint8Array): number[] =>
  type === 'i32' ? [...new Int32Array(bytes.slice().buffer)] : valuesOf(type, bytes);

interface Form {
  readonly [name: string]: string | number | undefined;
  readonly m: number;
  readonly K: number;
  readonly N: number;
  readonly A?: string;
  readonly X?: string;
  readonly O?: string;
  readonly GROUPS?: number;
  readonly ZEROS?: number;
  readonly WN?: number;
  readonly RN?: number;
  readonly RK?: number;
}

const TYPES = ['u1', 'u3', 'i4', 'u4', 'i6', 'u7', 'i8', 'f3e1m1', 'f4e2m1', 'f6e3m2', 'f7e5m1', 'f8e4m3'];
const FORMS: readonly Form[] = [
  { m: 16, K: 32, N: 32, RN: 2 },
  {
    m: 21,
    K: 64,
    N: 32,
    RN: 2,
    WN: 2,
    RK: 2,
    STAGES: 3,
    GROUPS: 2,
    ZEROS: 1,
    BIAS: 1,
    A: 'bf16',
    X: 'bf16',
    O: 'bf16',
  },
  { m: 70, K: 64, N: 64, WM: 2, WN: 2, RM: 2, RN: 2, RK: 2, STAGES: 2, A: 'f32', BIAS: 1, O: 'f32' },
  { m: 11, K: 128, N: 32, RN: 2, WK: 4, STAGES: 2, GROUPS: 4, BIAS: 1 },
];

/** Codes of finite numbers that f16 holds, so that no sum of the test is infinite. */
function codesOf(type: string, count: number, random: (below: number) => number): number[] {
  return Array.from({ length: count }, () => {
    for (;;) {
      const code = random(2 ** typeNamed(type).bits);
      if (Math.abs(numberOf(type, code)) < 2048) return code;
    }
  });
}

function addPrograms(twins: Twins, T: string, which: number): void {
  const {
    m,
    K,
    N,
    A = 'f16',
    X = 'f16',
    O = 'f16',
    GROUPS = 1,
    ZEROS = 0,
    WN = 1,
    RN = 2,
    RK = 1,
    ...form
  } = FORMS[which]!;
  const random = noise(T.length * 7 + which + 1);
  const codes = codesOf(T, K * N, random);
  const weight = { T, K, N, X, WN, RN, RK };
  const label = `${T} ${JSON.stringify(FORMS[which])}`;
  const stream = packed(typeNamed(T).bits, codes);
  const transform = check(program('transform'), { settings: weight });
  const tiles = twins.add(`transform ${label}`, transform, { w_ptr: stream }, ['transformed_ptr', 'u8', stream.length]);
  const scales = Array.from({ length: GROUPS * N }, () => (1 + random(7)) / 8);
  const zeros = Array.from({ length: GROUPS * N }, () => random(4));
  const plain = { tiles_ptr: tiles, w_ptr: tiles, s_ptr: elements(X, scales), z_ptr: elements(X, zeros) };
  const dequantize = check(program('dequantize'), { settings: { ...weight, O: X, GROUPS, ZEROS } });
  twins.add(`dequantize ${label}`, dequantize, plain, ['w_ptr', X, K * N]);
  const a = elements(
    A,
    Array.from({ length: m * K }, () => (random(33) - 16) / 16),
  );
  const bias = elements(
    'f32',
    Array.from({ length: N }, () => random(9) / 4),
  );
  const settings: Settings = { ...weight, ...(form as Settings), A, O, S: X, GROUPS, ZEROS };
  twins.add(`matmul ${label}`, check(program('matmul'), { settings }), { ...plain, a_ptr: a, bias_ptr: bias, m }, [
    'c_ptr',
    O,
    m * N,
  ]);
}

/** All codes of a type, cast to every type that it is cast to. */
function addCasts(twins: Twins, T: string): void {
  const { bits, kind, signed } = typeNamed(T);
  const count = 32 * 8;
  const codes = packed(
    bits,
    Array.from({ length: count }, (_, i) => (i * 37) % 2 ** bits),
  );
  const whole = kind === 'int' && (signed || bits < 8);
  for (const to of ['f16', 'bf16', 'f32', ...(kind === 'int' ? ['i32'] : []), ...(whole ? ['i8'] : [])]) {
    const cast = build('cast<1>(u8* from, O* to)', { T, O: to }, (b) =>
      b.add(
        `g = ViewGlobal(from, shape=[${codes.length}])`,
        `h = ViewGlobal(to, shape=[${count}])`,
        `u = LoadGlobal(g, layout=spatial(32).local(${bits}))`,
        'q = View(u, dtype=T, layout=spatial(32).local(8))',
        'w = Cast(q, O)',
        'StoreGlobal(w, h)',
      ),
    );
    twins.add(`${T} to ${to}`, check(cast), { from: codes }, ['to', to, count]);
  }
}

/** Products of 8 bits, sums of parts of K, and arithmetic. */
function addOthers(twins: Twins): void {
  const random = noise(5);
  const codes = packed(4, codesOf('i4', 64 * 32, random));
  const tiles = twins.add(
    'transform i4',
    check(program('transform'), { settings: { T: 'i4', X: 'i8', K: 64, N: 32 } }),
    { w_ptr: codes },
    ['transformed_ptr', 'u8', codes.length],
  );
  const f32 = elements(
    'f32',
    Array.from({ length: 64 }, () => random(9) / 8),
  );
  for (const form of [{ GROUPS: 1, STAGES: 2 }, { GROUPS: 2 }, { SPLIT: 2, O: 'f32' }]) {
    const settings = { T: 'i4', A: 'i8', X: 'i8', S: 'f32', SUM: 'i32', K: 64, N: 32, ...form };
    const a = packed(
      8,
      Array.from({ length: 20 * 64 }, () => random(256)),
    );
    const args = { a_ptr: a, w_ptr: tiles, s_ptr: f32, z_ptr: f32, bias_ptr: f32, m: 20 };
    const c = twins.add(`i8 ${JSON.stringify(form)}`, check(program('matmul'), { settings }), args, [
      'c_ptr',
      form.O ?? 'f16',
      20 * 32 * (form.SPLIT ?? 1),
    ]);
    if (form.SPLIT)
      twins.add(
        'sum',
        check(program('sum'), { settings: { N: 32, BIAS: 1 } }),
        { parts_ptr: c, bias_ptr: f32, m: 20 },
        ['c_ptr', 'f16', 20 * 32],
      );
  }
  for (const T of ['f16', 'bf16', 'f32', 'i32']) {
    const values = Array.from({ length: 256 }, (_, i) => (i % 2 === 0 ? 1 : -1) * (1 + random(100)));
    const p = T === 'i32' ? new Uint8Array(Int32Array.from(values).buffer) : elements(T, values);
    const arithmetic = build('arithmetic<1>(T* p, T* r)', { T, L: 'spatial(8, 4).local(1, 8)' }, (b) =>
      b.add(
        'g = ViewGlobal(p, shape=[8, 32])',
        'h = ViewGlobal(r, shape=[8, 32])',
        'x = LoadGlobal(g, layout=L)',
        'y = LoadGlobal(g, layout=L.collapse(1))',
        'z = Add(x, y)',
        'z = Mul(z, x)',
        'z = Sub(z, y)',
        'z = Div(z, x)',
        'z = Neg(z)',
        ...(T === 'i32' ? ['z = Mod(z, y)'] : []),
        'StoreGlobal(z, h)',
      ),
    );
    twins.add(`arithmetic of ${T}`, check(arithmetic), { p }, ['r', T, 256]);
  }
}

/** Codes in other orders than they lie in. */
function addOrders(twins: Twins): void {
  const random = noise(8);
  const words = packed(
    8,
    Array.from({ length: 64 * 64 }, () => random(256)),
  );
  const f16 = elements(
    'f16',
    Array.from({ length: 64 * 64 }, () => random(9) - 4),
  );
  for (const [P, X] of [
    [4, 'f16'],
    [2, 'bf16'],
  ] as const) {
    const settings = { P, X, N: 64, K: 64, GROUPS: 2 };
    const args = {
      a_ptr: elements(X, valuesOf('f16', f16)),
      w_ptr: words,
      s_ptr: elements(X, valuesOf('f16', f16)),
      m: 18,
    };
    twins.add(`fragments ${P}`, check(program('fragments'), { settings }), args, ['c_ptr', X, 18 * 64]);
  }
  for (const [T, to] of [
    ['u3', 'f16'],
    ['i8', 'bf16'],
    ['f8e5m2', 'f16'],
    ['f6e3m2', 'bf16'],
    ['u8', 'f16'],
    ['i5', 'f32'],
    ['u7', 'i32'],
  ] as const) {
    const { bits } = typeNamed(T);
    const ordered = build('cast<1>(u8* from, O* to)', { T, O: to }, (b) =>
      b.add(
        `g = ViewGlobal(from, shape=[${32 * bits}])`,
        'h = ViewGlobal(to, shape=[2, 4, 32])',
        `u = LoadGlobal(g, layout=spatial(32).local(${bits}))`,
        'q = View(u, dtype=T, layout=spatial(1, 1, 32).local(2, 4, 1))',
        'w = Cast(q, O, layout=spatial(1, 1, 32).column_local(2, 4, 1))',
        'StoreGlobal(w, h)',
      ),
    );
    twins.add(`${T} to ${to}, ordered`, check(ordered), { from: words.subarray(0, 32 * bits) }, ['to', to, 256]);
  }
}

/** What programs of their own may do besides: shared memory of every kind, orders of memory, tails, control flow, a workspace. */
function addForms(twins: Twins): void {
  const values = Array.from({ length: 1024 }, (_, i) => (i % 61) - 30);
  const f16 = elements('f16', values);
  const add = (
    label: string,
    T: string,
    input: Uint8Array,
    count: number,
    fill: (b: Builder) => void,
    head = 'form<1>(T* p, T* r)',
  ): void => {
    twins.add(label, check(build(head, { T }, fill)), { p: input, n: 5 }, ['r', T, count]);
  };
  for (const swizzle of [0, 1])
    for (const [way, layout] of [
      ['ldmatrix', 'local(1, 2).mma_a(f16)'],
      ['ldmatrix.trans', 'local(1, 4).mma_b(f16)'],
      ['rows', 'spatial(16, 2).local(1, 16)'],
      ['columns', 'local(16, 1).spatial(1, 32)'],
    ] as const)
      add(`${way}, swizzle ${swizzle}`, 'f16', f16, 512, (b) =>
        b.add(
          'g = ViewGlobal(p, shape=[16, 32])',
          'h = ViewGlobal(r, shape=[16, 32])',
          `s = AllocateShared(f16, [2, 16, 32], swizzle=${swizzle})`,
          'x = LoadGlobal(g, layout=spatial(8, 4).local(2, 8))',
          'StoreShared(x, s, offset=[1, 0:, 0:])',
          'Synchronize()',
          `y = LoadShared(s, layout=${layout}, offset=[1, 0:, 0:])`,
          'StoreGlobal(y, h)',
        ),
      );
  add(
    'codes of 3 bits in shared memory',
    'u3',
    packed(
      3,
      values.map((value) => value & 7),
    ),
    256,
    (b) =>
      b.add(
        'g = ViewGlobal(p, shape=[4, 64])',
        'h = ViewGlobal(r, shape=[4, 64])',
        's = AllocateShared(u3, [4, 64])',
        'x = LoadGlobal(g, layout=spatial(4, 8).local(1, 8))',
        'StoreShared(x, s)',
        'Synchronize()',
        'y = LoadShared(s, layout=local(1, 2).spatial(4, 8).local(1, 4), offset=[0:, 0:])',
        'z = LoadShared(s, layout=spatial(4, 8).local(1, 8))',
        'StoreGlobal(z, h)',
      ),
  );
  add('orders of memory', 'u16', new Uint8Array(f16), 256, (b) =>
    b.add(
      'g = ViewGlobal(p, shape=[16, 16], layout=local(4, 2).column_local(4, 8))',
      'h = ViewGlobal(r, shape=[16, 16], layout=column_local(16, 16))',
      's = AllocateShared(T, [16, 16], layout=local(1, 4).column_local(16, 4))',
      'x = LoadGlobal(g, layout=spatial(8, 4).local(2, 4))',
      'StoreShared(x, s)',
      'Synchronize()',
      'y = LoadShared(s, layout=column_spatial(4, 8).local(4, 2))',
      'StoreGlobal(y, h)',
    ),
  );
  const flow = (b: Builder): void => {
    b.add(
      'i, j = BlockIndices()',
      'g = ViewGlobal(p, shape=[n, 12])',
      'h = ViewGlobal(r, shape=[2, 3, n, 16])',
      'w = AllocateGlobal(T, [6, 4, 16])',
      'turns = 0',
    );
    b.if('i * 3 + j == 4', (c) => c.add('Exit()'));
    b.add(
      'x = LoadGlobal(g, layout=spatial(4, 8).local(1, 2), offset=[i + j:, j:])',
      'y = AllocateRegister(T, layout=spatial(4, 8).local(1, 2), init=0.5)',
    );
    b.while('turns < 2 + j', (c) => c.add('y = Add(y, x)', 'turns = turns + 1'));
    b.if(
      'j == 1 or i == 1',
      (c) => c.add('y = Neg(y)'),
      (c) => c.add('y = Mul(y, y)'),
    );
    b.for('k', [1, 'n', 2], (c) => c.if('k < 4 and not k == 2', (d) => d.add('y = Add(y, x)')));
    b.add(
      'StoreGlobal(y, w, offset=[i * 3 + j, 0:, 0:])',
      'z = LoadGlobal(w, layout=spatial(4, 8).local(1, 2), offset=[i * 3 + j, 0:, 0:])',
      'StoreGlobal(z, h, offset=[i, j, 0:, 0:])',
    );
  };
  for (const T of ['f32', 'f16', 'bf16'])
    add(`control flow of ${T}`, T, elements(T, values), 2 * 3 * 5 * 16, flow, 'flow<2, 3>(T* p, T* r, i32 n)');
}

test('compiled text on the simulated GPU equals the interpreter bit by bit', (t) => {
  const compiler = hostCompiler();
  if (compiler === undefined) {
    t.skip('no C++ compiler was found');
    return;
  }
  const twins = new Twins();
  for (const T of sampled('tilus programs', TYPES, 12)) for (const which of FORMS.keys()) addPrograms(twins, T, which);
  for (const { name } of sampled('tilus casts', QUANT_TYPES, 18)) addCasts(twins, name);
  addOthers(twins);
  addForms(twins);
  addOrders(twins);
  twins.compare(compiler);
});
