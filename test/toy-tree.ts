import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { ROOT } from './src/model/fixtures.js';

/** A file that is new, or lines that go into an old one where `before` stands for the last time. */
export interface Touched {
  readonly file: string;
  readonly text: string;
  readonly before?: string;
}

export const filesOf = (touched: readonly Touched[]): number => new Set(touched.map(({ file }) => file)).size;

/** Runs Node.js in a tree; returns what it prints. */
export function runIn(tree: string, ...args: readonly string[]): string {
  const { status, stdout, stderr } = spawnSync(process.execPath, args, { cwd: tree, encoding: 'utf8' });
  assert.equal(status, 0, `${args.join(' ')}: ${stdout}${stderr}`);
  return stdout;
}

/** A copy of the product's TypeScript in `dir`, changed and compiled; the native part and packages are the repository's. */
export function toyTree(dir: string, changes: readonly Touched[]): string {
  const tree = path.join(dir, 'tree');
  mkdirSync(path.join(tree, 'native'), { recursive: true });
  for (const each of ['src', 'formats', 'bin', 'bench'])
    cpSync(path.join(ROOT, each), path.join(tree, each), {
      recursive: true,
      filter: (file) => file !== path.join(ROOT, 'bench', 'results'),
    });
  const native = readdirSync(path.join(ROOT, 'native')).filter((each) => each.endsWith('.ts'));
  for (const each of native) cpSync(path.join(ROOT, 'native', each), path.join(tree, 'native', each));
  for (const each of ['node_modules', 'native/build', 'package.json', 'share'])
    symlinkSync(path.join(ROOT, each), path.join(tree, each));
  const config = JSON.parse(readFileSync(path.join(ROOT, 'tsconfig.json'), 'utf8'));
  const include = ['src/**/*.ts', 'formats/**/*.ts', 'native/*.ts'];
  writeFileSync(path.join(tree, 'tsconfig.json'), JSON.stringify({ ...config, include }));
  // What did not change is not compiled again.
  for (const each of ['src', 'formats', 'native', 'bench', 'tsconfig.tsbuildinfo'])
    cpSync(path.join(ROOT, 'dist', each), path.join(tree, 'dist', each), { recursive: true });
  for (const each of changes) touch(tree, each);
  runIn(tree, 'node_modules/typescript/bin/tsc', '-p', '.');
  return tree;
}

function touch(tree: string, { file, text, before }: Touched): void {
  const place = path.join(tree, file);
  mkdirSync(path.dirname(place), { recursive: true });
  const old = before === undefined ? '' : readFileSync(place, 'utf8');
  const at = before === undefined ? 0 : old.lastIndexOf(before);
  assert.ok(at >= 0, `${file} has no '${before}'`);
  writeFileSync(place, old.slice(0, at) + text + old.slice(at));
}
