import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { buildProgram } from '../../src/cli/main.js';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const page = readFileSync(path.join(root, 'README.md'), 'utf8');

/** Pages and the scripts that fill their figures. */
const FILLED = [
  ['README.md', 'readme'],
  ['docs/choose-bits.md', 'choose-bits'],
  ['docs/comparison.md', 'comparison'],
] as const;

for (const [file, script] of FILLED)
  test(`the figures of ${file} are those of bench/results`, () => {
    const code = `import { filled } from './scripts/${script}.mjs'; import { readFileSync } from 'node:fs';
      process.stdout.write(filled(readFileSync('${file}', 'utf8')));`;
    const { stdout, stderr } = spawnSync(process.execPath, ['--input-type=module', '-e', code], {
      cwd: root,
      encoding: 'utf8',
    });
    assert.equal(stdout, readFileSync(path.join(root, file), 'utf8'), stderr);
  });

test('README.md has at most 120 lines, and the commands that there are', async () => {
  assert.ok(page.split('\n').length <= 121);
  const program = await buildProgram();
  const known = new Set(program.commands.map((command) => command.name()));
  for (const [, name] of page.matchAll(/^lpq ([a-z]+) (?=[A-Z])/gm)) assert.ok(known.has(name as string), name);
});
