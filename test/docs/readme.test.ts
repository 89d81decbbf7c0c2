import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { buildProgram } from '../../src/cli/main.js';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const page = readFileSync(path.join(root, 'README.md'), 'utf8');

test('the figures of README.md are those of bench/results', () => {
  const script = "import { filled } from './scripts/readme.mjs'; import { readFileSync } from 'node:fs';";
  const { stdout, stderr } = spawnSync(
    process.execPath,
    ['--input-type=module', '-e', `${script} process.stdout.write(filled(readFileSync('README.md', 'utf8')));`],
    { cwd: root, encoding: 'utf8' },
  );
  assert.equal(stdout, page, stderr);
});

test('README.md has at most 120 lines, and the commands that there are', async () => {
  assert.ok(page.split('\n').length <= 121);
  const program = await buildProgram();
  const known = new Set(program.commands.map((command) => command.name()));
  for (const [, name] of page.matchAll(/^lpq ([a-z]+) (?=[A-Z])/gm)) assert.ok(known.has(name as string), name);
});
