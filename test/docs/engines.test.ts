import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { ENGINES } from '../../src/engines/index.js';
import { PACK_TARGETS } from '../../src/pack/targets/index.js';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const page = readFileSync(path.join(root, 'docs/engines.md'), 'utf8');

/** The table as the engines' own data make it. */
const table = ENGINES.flatMap(({ name, versions, evidence, forms }) =>
  forms.map(({ says, groups, target }, i) => {
    const first = i === 0 ? ` \`${name}\` | ${versions} | ${evidence} ` : ' | | ';
    return `|${first}| ${says} | ${groups.length > 0 ? groups.join(', ') : 'any'} | \`${target}\` |`;
  }),
);

test('docs/engines.md lists what each engine loads, as lpq decides by', () => {
  const rows = page.split('\n').filter((line) => /^\|/.test(line) && !/^\| `--for`|^\|---/.test(line));
  assert.deepEqual(rows, table);
});

test('every engine names targets that there are', () => {
  const names = new Set(PACK_TARGETS.map(({ name }) => name));
  for (const { forms } of ENGINES) for (const { target } of forms) assert.ok(names.has(target), target);
});
