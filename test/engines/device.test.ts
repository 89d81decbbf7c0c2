import assert from 'node:assert/strict';
import { test } from 'node:test';
import { columnsOf, readRecord, rowOf } from './device.js';
import { GPU_CELLS } from './gpu/cells.js';

/** Columns of a device in the page's table. */

const machine = { cards: [{ name: 'NVIDIA H200' }] };
const engines = 'vLLM 1.2.3, transformers 4.5, torch 6';

test('a record becomes columns: rows by what was packed, results rounded, reasons as sentences', () => {
  const cells = [
    { name: 'cost: torch.ops beside F.linear', outcome: 'ran' },
    { name: 'gptq W4', outcome: 'ran', off: 0.01234 },
    { name: 'compressed-tensors W8A8', outcome: 'ran', off: 0.2 },
    { name: 'compressed-tensors FP8', outcome: 'failed', reason: 'no result in 3 s; last: a | b' },
    { name: 'awq W4', outcome: 'differs', off: 9, reason: 'a logprob is 9 off, beyond 1' },
    { name: 'gptq W8', outcome: 'skipped', reason: 'the budget is used up' },
    { name: 'lpq: gptq W3, compiled', outcome: 'ran', off: 0.02 },
    { name: 'lpq: W3, sm90, two ranks', outcome: 'refused', reason: 'no' },
    { name: 'transformers: W4, sm80, Qwen3', outcome: 'ran', off: 0.03 },
  ];
  const columns = columnsOf({ engines, records: { a: { machine, cells }, b: { cells: [{ outcome: 'ran' }] } } });
  assert.deepEqual(columns, [
    {
      name: 'vLLM 1.2.3, H200',
      cells: {
        '4 bits, gptq': { outcome: 'ran', dtype: 'bfloat16', off: 0.012 },
        '8-bit weights and activations, compressed-tensors': { outcome: 'ran', dtype: 'int8', off: 0.2 },
        'FP8 weights, compressed-tensors': { outcome: 'failed', sentence: 'no result in 3 s; last: a' },
        '4 bits, awq': { outcome: 'failed', sentence: 'a logprob is 9 off, beyond 1' },
      },
    },
    {
      name: 'vLLM 1.2.3 with lpq_kernels, H200',
      cells: {
        '3 bits, gptq, by torch.compile': { outcome: 'ran', dtype: 'bfloat16', off: 0.02 },
        '3 bits, sm90, 2 ranks': { outcome: 'refused', sentence: 'no' },
      },
    },
    {
      name: 'transformers 4.5 with lpq_kernels, H200',
      cells: { '4 bits, sm80, Qwen3': { outcome: 'ran', dtype: 'bfloat16', off: 0.03 } },
    },
  ]);
});

test('of a cell that was run again, the last result stands, but for one that was skipped', () => {
  const ran = (outcome: string, off: number) => ({
    machine,
    cells: [{ name: 'gptq W4', outcome, off, reason: 'the budget is used up' }],
  });
  const off = (...records: object[]) =>
    columnsOf({ engines, records: { ...records } as never })[0]!.cells['4 bits, gptq']!.off;
  assert.equal(off(ran('ran', 0.1), ran('ran', 0.2)), 0.2);
  assert.equal(off(ran('ran', 0.1), ran('skipped', 0.2)), 0.1);
});

test('every cell of a device has a row of its column, and the record no cell that there is none of', () => {
  const rows = GPU_CELLS.map((cell) => `${cell.group}: ${rowOf(cell)}`);
  assert.ok(!rows.some((row) => row.endsWith('undefined')), rows.join('\n'));
  assert.equal(new Set(rows).size, rows.length);
  const recorded = Object.values(readRecord().records).flatMap(({ cells }) => cells.map(({ name }) => name));
  const unknown = recorded.filter(
    (name) => name !== undefined && !/^(cost|speed):/.test(name) && !GPU_CELLS.some((cell) => cell.name === name),
  );
  assert.deepEqual(unknown, []);
});
