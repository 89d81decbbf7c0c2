import assert from 'node:assert/strict';
import { test } from 'node:test';
import { allocate, createRuntime, fromTyped } from '../../../native/binding.js';
import { pack } from '../../../src/layout/engine.js';
import { MMA_M16N8K16, reorderLocals, storedTile, WORD_3120, WORD_75316420 } from '../../../src/layout/fragment.js';
import { loadedFragment, loadedTile, TENSOR_CORES } from '../../../src/layout/hardware-aware.js';
import { indexAt } from '../../../src/layout/layout.js';
import { local, spatial } from '../../../src/layout/make.js';
import { bitPositions, type MemoryLayout, memoryLayout, repeatTile } from '../../../src/layout/memory.js';
import { permute, product } from '../../../src/layout/product.js';
import { type TurboMindForm, turbomindWeight } from '../../../src/pack/layouts/turbomind.js';
import { designed } from '../../formats/scratch.js';

const runtime = createRuntime(2);
const FORMS: readonly TurboMindForm[] = ['b', 'a', 'sm70'];

/** The table that the derivation took the place of: fragments of the PTX ISA by hand, and the order of words by name. */
function declared(n: number, k: number, bits: 4 | 8, form: TurboMindForm, order: 'k-major' | 'n-major'): MemoryLayout {
  const tile = {
    b: permute(product(local(1, 2), local(1, 2), MMA_M16N8K16.b), [1, 0]),
    a: MMA_M16N8K16.a,
    sm70: product(spatial(32, 1), local(1, 8)),
  }[form];
  const stored = storedTile(reorderLocals(tile, bits === 4 ? WORD_75316420 : WORD_3120), bits);
  const [down, across] = [n / tile.shape[0]!, k / tile.shape[1]!];
  const inner = order === 'n-major' || form === 'sm70';
  const strides: readonly [number, number] = inner
    ? [across * stored.bits, stored.bits]
    : [stored.bits, down * stored.bits];
  return memoryLayout({ bits, ...repeatTile(stored, [down, across], strides), bytes: (n * k * bits) / 8 });
}

test('the derivation puts every bit where the declared table does', () => {
  for (const bits of [4, 8] as const)
    for (const form of FORMS)
      for (const order of ['k-major', 'n-major'] as const) {
        const [n, k] = [64, 48];
        const [derived, table] = [turbomindWeight(n, k, bits, form, order), declared(n, k, bits, form, order)];
        for (let row = 0; row < n; row++)
          for (let column = 0; column < k; column++)
            assert.deepEqual(
              bitPositions(derived, row, column),
              bitPositions(table, row, column),
              `${bits} ${form} ${order}`,
            );
      }
});

/**
 * The steps done to memory instead of to layouts: codes extended to 16 bits in a tile of shared memory, ldmatrix.x4 on the addresses that a
 * GEMM gives it, the registers' halves masked into words, words stored lane after lane.
 */
function byHand(codes: Uint8Array, n: number, k: number, bits: 4 | 8, form: 'b' | 'a'): Uint32Array {
  const words: number[] = [];
  const fragments = form === 'b' ? 2 : 1;
  for (let kt = 0; kt < k; kt += 16)
    for (let nt = 0; nt < n; nt += 16 * fragments)
      for (let lane = 0; lane < 32; lane++)
        for (let f = 0; f < fragments; f++) {
          // Register r is matrix r; memory has 8 elements of 16 bits in a row: n for B (transposed by the load), k for A.
          const registers = [0, 1, 2, 3].map((r) =>
            [0, 1].map((half) => {
              const [slow, fast] = [r >> 1, r & 1];
              const [row, element] = [lane >> 2, 2 * (lane & 3) + half];
              const at = nt + 16 * f;
              return form === 'b'
                ? codes[(at + 8 * slow + row) * k + kt + 8 * fast + element]!
                : codes[(at + 8 * fast + row) * k + kt + 8 * slow + element]!;
            }),
          );
          const inWord = 16 / bits;
          for (let w = 0; w < 4 / inWord; w++) {
            let word = 0;
            for (let r = 0; r < inWord; r++)
              for (let half = 0; half < 2; half++) word |= registers[w * inWord + r]![half]! << (16 * half + bits * r);
            words.push(word >>> 0);
          }
        }
  return Uint32Array.from(words);
}

test('packed words are what ldmatrix, masks and plain stores would leave', async () => {
  const [n, k] = [96, 80];
  for (const bits of [4, 8] as const)
    for (const form of ['b', 'a'] as const) {
      const codes = Uint8Array.from({ length: n * k }, (_, i) => (i * 7 + (i >> 5) * 3) % 2 ** bits);
      const stream =
        bits === 8
          ? codes
          : Uint8Array.from({ length: (n * k) / 2 }, (_, i) => codes[2 * i]! | (codes[2 * i + 1]! << 4));
      const packed = allocate('i32', [(n * k * bits) / 32]);
      pack(runtime, turbomindWeight(n, k, bits, form), fromTyped('u8', [n, (k * bits) / 8], stream), packed, {
        streamColumns: k,
      });
      await runtime.sync();
      assert.deepEqual(new Uint32Array(packed.bytes().slice().buffer), byHand(codes, n, k, bits, form));
    }
});

test('what is loaded is what the tensor core multiplies, on every architecture', () => {
  for (const [arch, core] of Object.entries(TENSOR_CORES)) {
    if (core.load !== 'ldmatrix') continue;
    const [a, b] = [loadedFragment(core, 'a'), loadedFragment(core, 'b')];
    for (let lane = 0; lane < 32; lane++)
      for (let i = 0; i < 8; i++) {
        assert.deepEqual(indexAt(a, lane, i), indexAt(MMA_M16N8K16.a, lane, i), `sm_${arch}, operand A`);
        const [row, column] = indexAt(MMA_M16N8K16.b, lane, i % 4) as [number, number];
        assert.deepEqual(indexAt(b, lane, i), [row, column + 8 * (i >> 2)], `sm_${arch}, operand B`);
      }
  }
  assert.deepEqual(loadedTile(TENSOR_CORES[70], 'b', 1).shape, [32, 8]);
  assert.throws(() => loadedFragment(TENSOR_CORES[70], 'a'), designed('LPQ_LAYOUT', 'operand B'));
});
