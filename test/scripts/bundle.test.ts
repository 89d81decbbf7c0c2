import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, statSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const { closure, isBundled } = (await import(
  pathToFileURL(path.join(root, 'scripts', 'bundle', 'imports.mjs')).href
)) as {
  isBundled(file: string): boolean;
  closure(root: string, entries: readonly string[]): { files: string[]; packages: string[] };
};
const { dependencies } = JSON.parse(readFileSync(path.join(root, 'package.json'), 'utf8')) as {
  dependencies: Record<string, string>;
};

/** The file that a relative specifier names, as Node finds it. */
function target(from: string, specifier: string): string | undefined {
  const place = path.join(path.dirname(from), specifier);
  const found = [place, `${place}.js`, `${place}.cjs`, `${place}.json`, path.join(place, 'index.js')];
  return found.find((file) => existsSync(file) && statSync(file).isFile());
}

test('what a bundled file of a package loads is bundled too', () => {
  let links = 0;
  for (const name of Object.keys(dependencies)) {
    const dir = path.join(root, 'node_modules', name);
    const { main = 'index.js' } = JSON.parse(readFileSync(path.join(dir, 'package.json'), 'utf8')) as { main?: string };
    const first = target(path.join(dir, 'package.json'), `./${main}`);
    const waiting = first === undefined ? [] : [first];
    const seen = new Set(waiting);
    for (let file = waiting.pop(); file !== undefined; file = waiting.pop()) {
      assert.ok(isBundled(path.relative(dir, file)), `${path.relative(root, file)} is left out of the bundle`);
      if (file.endsWith('.json')) continue;
      for (const [, , specifier] of readFileSync(file, 'utf8').matchAll(
        /(?:\brequire\(|\bfrom\s*|\bimport\s*\(?)\s*(['"])(\.[^'"\n]*)\1/g,
      )) {
        const next = target(file, specifier as string);
        if (next === undefined || seen.has(next) || next.endsWith('.d.ts')) continue;
        links++;
        seen.add(next);
        waiting.push(next);
      }
    }
  }
  assert.ok(links > 200, `${links} files were looked at`);
});

test('the bill of materials names every package that lpq depends on, with the hash of the lockfile', () => {
  const text = execFileSync(process.execPath, [path.join(root, 'scripts', 'sbom.mjs')], { encoding: 'utf8' });
  const { components } = JSON.parse(text) as { components: { name: string; version: string; hashes?: unknown[] }[] };
  for (const [name, version] of Object.entries(dependencies)) {
    const entry = components.find((each) => each.name === name && each.version === version);
    assert.ok(entry?.hashes, `${name} ${version}`);
  }
  assert.ok(components.length > Object.keys(dependencies).length);
});

test('what the command loads are the packages that package.json names, and nothing that only looks like one', () => {
  const { files, packages } = closure(root, ['dist/src/cli/main.js']);
  assert.ok(files.length > 300);
  assert.deepEqual(
    packages.filter((name) => !Object.hasOwn(dependencies, name)),
    [],
  );
});
