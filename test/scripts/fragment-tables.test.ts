import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';

const ROOT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');

test('native/cuda/gemm/fragment_tables.inc is what scripts/fragment-tables.mjs prints of src/layout', async () => {
  const script = pathToFileURL(path.join(ROOT, 'scripts/fragment-tables.mjs')).href;
  const { file, text } = (await import(script)) as { file: string; text: string };
  assert.equal(readFileSync(file, 'utf8'), text, 'run node scripts/fragment-tables.mjs --write');
});
