import assert from 'node:assert/strict';
import { existsSync, readdirSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { SafetensorsFile } from '../../../formats/safetensors/read.js';
import { writeSafetensors } from '../../../formats/safetensors/write.js';
import { createRuntime, typed } from '../../../native/binding.js';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import { LpqError } from '../../../src/core/error.js';
import { logitsOf, readIds, writeLogits } from '../../../src/eval/logits.js';
import { scratch } from '../../formats/scratch.js';
import { plainSource } from '../model/fixtures.js';

const dir = scratch();
const source = plainSource(path.join(shareDirectory(), 'tiny-llama'));
const ids = Int32Array.of(5, 9, 1000, 77, 6, 1);
let files = 0;
async function idsFile(dtype: 'I32' | 'I64' | 'F32', shape: number[], data: ArrayBufferView, name = 'input_ids') {
  const file = path.join(dir, `ids-${files++}.safetensors`);
  await writeSafetensors(file, [{ name, dtype, shape, data }]);
  return file;
}

test('logits go to a file as [B, T, V], the same as in memory, a row as if it were alone', async () => {
  const rt = createRuntime(2);
  const input = await idsFile('I32', [2, 3], ids);
  const output = path.join(dir, 'logits.safetensors');
  assert.deepEqual(await writeLogits(rt, source, input, output), [2, 3, 2048]);
  const written = SafetensorsFile.open(output);
  const logits = typed(written.tensor('logits'));
  assert.deepEqual(written.spec('logits').shape, [2, 3, 2048]);
  assert.deepEqual(logits, typed(await logitsOf(rt, source, { ids, shape: [2, 3] })));
  const second = typed(await logitsOf(rt, source, { ids: ids.slice(3), shape: [1, 3] }));
  assert.deepEqual(logits.slice(3 * 2048), second);
  await assert.rejects(
    writeLogits(rt, source, input, output),
    (error) => error instanceof LpqError && error.code === 'LPQ_OUTPUT_EXISTS',
  );
});

test('ids may be I64 or one sequence', async () => {
  const long = await idsFile('I64', [6], BigInt64Array.from(ids, BigInt));
  assert.deepEqual(readIds(long), { ids, shape: [1, 6] });
});

test('ids that cannot be used are refused and no output is left', async () => {
  const rt = createRuntime(1);
  const output = path.join(dir, 'none.safetensors');
  const refuses = async (file: string, code: string) => {
    await assert.rejects(
      writeLogits(rt, source, file, output),
      (error) => error instanceof LpqError && error.code === code,
    );
    assert.equal(existsSync(output), false);
    assert.deepEqual(
      readdirSync(dir).filter((name) => name.includes('tmp')),
      [],
    );
  };
  await refuses(await idsFile('I32', [6], ids, 'ids'), 'LPQ_TENSOR_MISSING');
  await refuses(await idsFile('F32', [6], Float32Array.from(ids)), 'LPQ_DTYPE');
  await refuses(await idsFile('I32', [1, 2, 3], ids), 'LPQ_TENSOR_SHAPE');
  await refuses(await idsFile('I32', [0, 6], new Int32Array(0)), 'LPQ_TENSOR_SHAPE');
  await refuses(await idsFile('I32', [2], Int32Array.of(1, 2048)), 'LPQ_CONFIG');
  await assert.rejects(
    writeLogits(rt, source, await idsFile('I32', [6], ids), path.join(dir, 'logits.bin')),
    (error) => error instanceof LpqError && error.code === 'LPQ_USAGE',
  );
});
