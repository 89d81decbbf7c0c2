import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { scratch } from '../../formats/scratch.js';
import { filesOf, runIn, toyTree } from '../../toy-tree.js';
import { checkpointOf, made } from './checkpoint.js';
import { LAYOUT, TARGET } from './toy-files.js';

/** A layout and a target are added to a copy of the tree, which then packs, verifies and multiplies with no other file changed. */

/** verify, with the kernels of the CPU. */
const KERNELS = `
import { createRuntime } from './dist/native/binding.js';
import { verifyArtifact } from './dist/src/verify/verify.js';
const [dir, against] = process.argv.slice(2);
const runtime = createRuntime(1);
const { ok, checks, failures, modules } = await verifyArtifact({ dir, against, runtime, kernel: runtime });
const kernel = checks.find(({ name }) => name === 'kernel');
console.log(JSON.stringify({ ok, failures, kernel, layouts: modules.map(({ layout }) => layout) }));
`;

test('a new layout touches at most 8 files and a new target 6', async () => {
  assert.ok(filesOf(LAYOUT) <= 8, `a layout touches ${filesOf(LAYOUT)} files`);
  assert.ok(filesOf(TARGET) <= 6, `a target touches ${filesOf(TARGET)} files`);

  const dir = scratch();
  const tree = toyTree(dir, [...LAYOUT, ...TARGET]);
  const [quantized, packed] = [path.join(dir, 'quantized'), path.join(dir, 'packed')];
  const module = made({ type: 'i4', n: 24, k: 128, group: 32 });
  await checkpointOf(dir, 'quantized', { 'model.layers.0.mlp.up_proj': module });
  runIn(tree, 'bin/lpq.js', 'pack', quantized, '--target', 'toybox', '-o', packed);
  runIn(tree, 'bin/lpq.js', 'verify', packed, '--against', quantized);
  writeFileSync(path.join(tree, 'kernels.mjs'), KERNELS);
  const { ok, failures, kernel, layouts } = JSON.parse(runIn(tree, 'kernels.mjs', packed, quantized));
  assert.deepEqual([ok, failures, layouts, kernel.status], [true, [], ['toy'], 'passed']);
});
