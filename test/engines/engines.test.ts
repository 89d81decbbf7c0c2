import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { ALL } from '../sample.js';
import { root } from '../src/cli/lpq.js';
import { columnsOf, readRecord } from './device.js';
import { ENGINES, formatsOf } from './engines.js';
import { pageWith } from './page.js';
import { AVX512, type Cell, pythonOf, table } from './run.js';

/**
 * Engines over what lpq packs, each by its own loaders: a cell that is not as expected.json has it is a failure. LPQ_TEST_ALL=1 runs the
 * whole table; LPQ_ENGINES_WRITE=1 writes expected.json and the page instead of comparing.
 */

const expected = path.join(root, 'test', 'engines', 'expected.json');
const page = path.join(root, 'docs', 'engine-runs.md');
const read = () => JSON.parse(readFileSync(expected, 'utf8')) as Record<string, Record<string, Cell>>;
const writes = process.env.LPQ_ENGINES_WRITE === '1';

/** LPQ_ENGINES_ONLY=REGEX: formats by their names. */
const only = new RegExp(process.env.LPQ_ENGINES_ONLY ?? '');

/** What is the same on every machine. */
const lasting = ({ outcome, dtype, sentence }: Cell) => ({ outcome, dtype, sentence });

for (const engine of ENGINES) {
  const found = pythonOf(engine);
  test(`${engine.name} loads, runs or refuses as expected`, { skip: 'skip' in found && found.skip }, async (t) => {
    assert.ok('python' in found);
    const dir = mkdtempSync(path.join(tmpdir(), 'lpq-engines-'));
    t.after(() => rmSync(dir, { recursive: true, force: true }));
    const formats = formatsOf(engine).filter(({ name, commit }) => only.test(name) && (ALL || commit));
    const cells = await table(engine, found.python, formats, dir);
    const missing = formats.filter(({ name }) => !cells[name]).map(({ name }) => name);
    if (missing.length > 0) t.diagnostic(`SKIPPED: LPQ_SHARED has not the models of ${missing.join('; ')}`);
    const known = read();
    if (writes) {
      const all = { ...known[engine.name], ...cells };
      known[engine.name] = Object.fromEntries(
        formatsOf(engine).flatMap(({ name }) => (all[name] ? [[name, all[name]]] : [])),
      );
      const text = JSON.stringify(known, null, 2).replace(/\[\s+(\S+),\s+(\S+)\s+\]/g, '[$1, $2]'); // as biome has it
      writeFileSync(expected, `${text}\n`);
      return;
    }
    for (const [name, cell] of Object.entries(cells)) {
      if (cell.avx512 !== undefined && known[engine.name]?.[name]?.avx512 !== AVX512) continue;
      assert.deepEqual(lasting(cell), lasting(known[engine.name]?.[name] ?? { outcome: 'refused' }), name);
    }
  });
}

test('the page is what the table says', () => {
  const text = readFileSync(page, 'utf8');
  const made = pageWith(read(), columnsOf(readRecord()), text);
  if (writes) writeFileSync(page, made);
  else assert.equal(text, made, 'LPQ_ENGINES_WRITE=1 node scripts/test.mjs test/engines writes it');
});

test('the table has a cell for every engine and format, and no other', () => {
  const known = read();
  assert.deepEqual(Object.keys(known).sort(), ENGINES.map(({ name }) => name).sort());
  for (const engine of ENGINES) {
    const wanted = formatsOf(engine).map(({ name }) => name);
    assert.deepEqual(Object.keys(known[engine.name]!).sort(), wanted.sort());
  }
});
