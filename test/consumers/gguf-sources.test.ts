import assert from 'node:assert/strict';
import { existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { execa } from 'execa';
import { SourceCheckpoint } from '../../formats/canonical/source.js';
import { ggufDirectory, ggufFiles } from '../../formats/gguf/source/directory.js';
import { createRuntime, type Tensor, typed } from '../../native/binding.js';
import { makeBatch } from '../../src/model/batch.js';
import { loadOuter, runForward } from '../../src/model/forward.js';
import { expertSource } from '../../src/model/fused-experts.js';
import { openModel } from '../../src/model/graph.js';
import { root } from '../src/cli/lpq.js';
import { ARCHITECTURES, PlainFile, plainSource } from '../src/model/fixtures.js';

/**
 * GGUF files of every architecture, written by gguf-py (its names, its keys) with tensors changed as llama.cpp's converter changes
 * them: read back they are the tensors of the checkpoint, bit by bit, and their config.json computes the checkpoint's logits.
 */

const python = process.env.LPQ_CONSUMERS_PYTHON ?? path.join(root, 'build', 'consumers', 'bin', 'python');
const skip = existsSync(python)
  ? false
  : `SKIPPED: no Python with gguf (node scripts/consumers.mjs makes ${python}, or set LPQ_CONSUMERS_PYTHON)`;

/** As f32, whatever it is stored in. */
function floats(tensor: Tensor): Float32Array {
  if (tensor.dtype === 'f32') return typed<Float32Array>(tensor);
  assert.equal(tensor.dtype, 'bf16');
  return new Float32Array(Uint32Array.from(typed<Uint16Array>(tensor), (bits) => bits << 16).buffer);
}

test('models of every architecture come back from GGUF whole', { skip }, async (t) => {
  const dir = mkdtempSync(path.join(tmpdir(), 'lpq-gguf-sources-'));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  await execa(python, [path.join(root, 'test', 'consumers', 'make_gguf.py'), ARCHITECTURES, dir]);
  const files = readdirSync(dir);
  assert.ok(files.length >= 21);
  for (const file of files)
    await t.test(path.basename(file, '.gguf'), async () => {
      const original = path.join(ARCHITECTURES, path.basename(file, '.gguf').replace(/\..*/, ''));
      const { dir: companion } = ggufDirectory(ggufFiles(path.join(dir, file)) as string[]);
      const source = SourceCheckpoint.open(companion);
      const expected = expertSource(plainSource(original));
      const left = new Set(source.names());
      for (const name of expected.names()) {
        if (name === 'lm_head.weight' && !left.has(name)) continue;
        const own = name.replace(/^(h|wte|wpe|ln_f)\./, 'transformer.$1.');
        assert.ok(left.delete(own), `${own} is missing`);
        const [got, want] = [await source.tensor(own), await expected.tensor(name)];
        assert.deepEqual(got.shape, want.shape, own);
        assert.deepEqual(floats(got), floats(want), own);
      }
      assert.deepEqual([...left], []);
      await compareLogits(source, new PlainFile(path.join(original, 'golden.safetensors')));
      source.close();
    });
});

/** As in test/src/model/golden.test.ts, whose bound this is. */
async function compareLogits(source: SourceCheckpoint, golden: PlainFile): Promise<void> {
  const rt = createRuntime(1);
  const ids = golden.tensor('input_ids');
  const [rows, length] = ids.shape as [number, number];
  const flat = typed<Int32Array>(ids);
  const sequences = Array.from({ length: rows }, (_, row) => flat.slice(row * length, (row + 1) * length));
  const graph = openModel(source);
  const outer = await loadOuter(rt, source, graph);
  const [state] = await runForward(rt, source, graph, outer, [makeBatch(rt, sequences)]);
  const logits = graph.logits(rt, outer, state!.h);
  await rt.sync();
  const want = typed<Float32Array>(golden.tensor('logits'));
  for (const [i, value] of typed<Float32Array>(logits).entries())
    assert.ok(Math.abs(value - (want[i] as number)) <= 1e-4, `logit ${i}: ${value}, not ${want[i]}`);
}
