import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { scratch } from '../../formats/scratch.js';
import { ROOT } from '../model/fixtures.js';
import { checkpointOf, made } from './checkpoint.js';
import { LAYOUT, TARGET, type Touched } from './toy-files.js';

/** A layout and a target are added to a copy of the tree, which then packs, verifies and multiplies with no other file changed. */

const files = (touched: readonly Touched[]): number => new Set(touched.map(({ file }) => file)).size;

function touch(tree: string, { file, text, before }: Touched): void {
  const place = path.join(tree, file);
  const old = before === undefined ? '' : readFileSync(place, 'utf8');
  const at = before === undefined ? 0 : old.lastIndexOf(before);
  assert.ok(at >= 0, `${file} has no '${before}'`);
  writeFileSync(place, old.slice(0, at) + text + old.slice(at));
}

function run(tree: string, ...args: readonly string[]): string {
  const { status, stdout, stderr } = spawnSync(process.execPath, args, { cwd: tree, encoding: 'utf8' });
  assert.equal(status, 0, `${args.join(' ')}: ${stdout}${stderr}`);
  return stdout;
}

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
  assert.ok(files(LAYOUT) <= 8, `a layout touches ${files(LAYOUT)} files`);
  assert.ok(files(TARGET) <= 6, `a target touches ${files(TARGET)} files`);

  const dir = scratch();
  const tree = path.join(dir, 'tree');
  mkdirSync(path.join(tree, 'native'), { recursive: true });
  for (const each of ['src', 'formats', 'bin', 'bench'])
    cpSync(path.join(ROOT, each), path.join(tree, each), {
      recursive: true,
      filter: (file) => !file.includes('results'),
    });
  const native = readdirSync(path.join(ROOT, 'native')).filter((each) => each.endsWith('.ts'));
  for (const each of native) cpSync(path.join(ROOT, 'native', each), path.join(tree, 'native', each));
  for (const each of ['node_modules', 'native/build', 'package.json'])
    symlinkSync(path.join(ROOT, each), path.join(tree, each));
  const config = JSON.parse(readFileSync(path.join(ROOT, 'tsconfig.json'), 'utf8'));
  writeFileSync(
    path.join(tree, 'tsconfig.json'),
    JSON.stringify({ ...config, include: ['src/**/*.ts', 'formats/**/*.ts', 'native/*.ts'] }),
  );
  for (const each of [...LAYOUT, ...TARGET]) touch(tree, each);
  run(tree, 'node_modules/typescript/bin/tsc', '-p', '.');

  const [quantized, packed] = [path.join(dir, 'quantized'), path.join(dir, 'packed')];
  const module = made({ type: 'i4', n: 24, k: 128, group: 32 });
  await checkpointOf(dir, 'quantized', { 'model.layers.0.mlp.up_proj': module });
  run(tree, 'bin/lpq.js', 'pack', quantized, '--target', 'toybox', '-o', packed);
  run(tree, 'bin/lpq.js', 'verify', packed, '--against', quantized);
  writeFileSync(path.join(tree, 'kernels.mjs'), KERNELS);
  const { ok, failures, kernel, layouts } = JSON.parse(run(tree, 'kernels.mjs', packed, quantized));
  assert.deepEqual([ok, failures, layouts, kernel.status], [true, [], ['toy'], 'passed']);
});
