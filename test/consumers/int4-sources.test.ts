import assert from 'node:assert/strict';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { execa } from 'execa';
import { openSource } from '../../formats/canonical/source.js';
import { typed } from '../../native/binding.js';
import { kimi } from '../formats/foreign/published.js';
import { root } from '../src/cli/lpq.js';
import { PlainFile } from '../src/model/fixtures.js';

const python = process.env.LPQ_CONSUMERS_PYTHON ?? path.join(root, 'build', 'consumers', 'bin', 'python');
const skip = existsSync(python)
  ? false
  : `SKIPPED: no Python with compressed-tensors (node scripts/consumers.mjs makes ${python}, or set LPQ_CONSUMERS_PYTHON)`;

test('weights of a model published in INT4 are those that compressed-tensors decodes, bit by bit', {
  skip,
}, async (t) => {
  const dir = mkdtempSync(path.join(tmpdir(), 'lpq-int4-sources-'));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  const { low } = await kimi(dir);
  const decoded = path.join(dir, 'decoded.safetensors');
  const script = path.join(root, 'test', 'consumers', 'unpack_int4.py');
  await execa(python, [script, path.join(low, 'model.safetensors'), decoded], { env: { OMP_NUM_THREADS: '1' } });
  const expected = new PlainFile(decoded);
  const source = openSource(low);
  const names = Object.keys(expected.header);
  assert.equal(names.length, 9);
  for (const name of names) assert.deepEqual(typed(await source.tensor(name)), typed(expected.tensor(name)), name);
  source.close();
});
