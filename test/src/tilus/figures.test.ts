import assert from 'node:assert/strict';
import { test } from 'node:test';
import { check } from '../../../src/tilus/check/check.js';
import { run } from '../../../src/tilus/interpret/run.js';
import { parse } from '../../../src/tilus/language/parse.js';
import { print } from '../../../src/tilus/language/print.js';
import { elements, noise, numberOf, packed, valuesOf } from './direct.js';

/** Fig. 2 (a), as printed. */
const FIGURE_2 = `\
const M, N, K, BM, BN, BK = 1024, 1024, 1024, 16, 8, 16 # M, N, K are matmul sizes while BM, BN, BK are tile sizes
def matmul<M / BM, N / BN>(f16* a_ptr, u8* transformed_b_ptr, f16* c_ptr):
    bi, bj = BlockIndices() # block index
    ga = ViewGlobal(a_ptr, dtype=f16, shape=[M, K]) # create global tensor views
    gb = ViewGlobal(transformed_b_ptr, dtype=u8, shape=[K/BK, N/BN, BK*BN*6/8])
    gc = ViewGlobal(c_ptr, dtype=f16, shape=[M, N])
    acc = AllocateRegister(f32, layout=[local(2, 1).spatial(8, 4).local(1, 2)], init=0.0)
    for bk in range(K / BK):
        a = LoadGlobal(ga, layout=column_local(2, 2).spatial(8, 4).local(1, 2), offset=[bi * BM:, bk * BK:])
        b = LoadGlobal(gb, layout=local(3).spatial(32), offset=[bk, bj, 0:])
        b1 = View(b, dtype=i6, layout=local(2, 1).column_spatial(4, 8).local(2, 1)) # reinterpret register tensor
        b2 = Cast(b1, dtype=f16)
        Dot(a, b2, acc, out=acc) # acc = dot(a, b2) + acc
    acc = Cast(acc, f16)
    StoreGlobal(acc, gc, offset=[bi * BM:, bj * BN:])
`;

/** Fig. 9; `layout` and `columns` are what it prints otherwise than Fig. 2 needs it. */
const figure9 = (layout: string, columns: string): string => `\
const M, N, K, BM, BN, BK = 1024, 1024, 1024, 16, 8, 16
def transform_b<K / BK, N / BN>(
    i6* b_ptr, u8* transformed_b_ptr
):
    bk, bj = BlockIndices()
    b_in = ViewGlobal(b_ptr, dtype=i6, shape=[K, N])
    b_out = ViewGlobal(transformed_b_ptr, dtype=u8,
        shape=[K / BK, N / BN, BK * BN * 6 / 8]
    )
    # the register tensor b is stored in 32 threads, each
    # thread holds 4 int6 elements (in total 24 bits)
    b = LoadGlobal(b_in,
        layout=${layout},
        offset=[bk*BK:, bj*${columns}:]
    )
    # reinterpret the tensor with uint8 data type and a
    # new layout. The 24 bits held by each thread will
    # be interpreted into 3 uint8 elements.
    b = View(b, dtype=u8, layout=local(3).spatial(32))
    StoreGlobal(b, b_out, offset=[bk, bj, 0:])
`;

test('Tilus Figs. 9 and 2: weights of i6 are transformed, then multiplied', () => {
  const settings = { M: 32, N: 24, K: 48 };
  const [m, n, k] = [32, 24, 48];
  const random = noise(6);
  const codes = Array.from({ length: k * n }, () => random(64));
  const tiles = new Uint8Array((k * n * 6) / 8);
  const layout = 'local(2, 1).column_spatial(4, 8).local(2, 1)';
  const transform = check(parse(figure9(layout, 'BN')), { settings });
  run(transform, { b_ptr: packed(6, codes), transformed_b_ptr: { output: tiles } });
  const a = Array.from({ length: m * k }, () => (random(33) - 16) / 16);
  const c = new Uint8Array(m * n * 2);
  const ran = run(check(parse(FIGURE_2), { settings }), {
    a_ptr: elements('f16', a),
    transformed_b_ptr: tiles,
    c_ptr: { output: c },
  });
  assert.equal(ran.unwritten.c_ptr, 0);
  // Sums of at most 48 products of 5 + 6 bits are exact in f32; f16 rounds them once.
  const want = Array.from({ length: m * n }, (_, i) => {
    let sum = 0;
    for (let at = 0; at < k; at++) sum += a[Math.floor(i / n) * k + at]! * numberOf('i6', codes[at * n + (i % n)]!);
    return sum;
  });
  assert.deepEqual(Buffer.from(c), Buffer.from(elements('f16', want)));
  assert.equal(valuesOf('f16', c).length, m * n);
});

test('Tilus Fig. 9 as printed has the layout of A: a View that does not keep the bits of a thread', () => {
  assert.throws(() => check(parse(figure9('column(2, 2).spatial(8, 4).local(1, 2)', 'BM'))), {
    code: 'LPQ_TILUS',
    message: 'line 19, b = View(b, dtype=u8, layout=local(3).spatial(32)): a View must keep the bits of each thread',
  });
});

test('what is printed of a program is the program', () => {
  for (const text of [FIGURE_2, figure9('local(2, 1).column_spatial(4, 8).local(2, 1)', 'BN')]) {
    const printed = print(parse(text));
    assert.equal(print(parse(printed)), printed);
    assert.deepEqual(check(parse(printed)).shared, { bytes: 0, places: [] });
  }
});
