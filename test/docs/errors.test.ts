import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { CODES, type ErrorCode } from '../../src/core/codes.js';
import { REMEDIES } from '../../src/core/remedies.js';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const read = (file: string) => readFileSync(path.join(root, file), 'utf8');

/** Rows | CODE | exit | meaning | what to do | of the document. */
const rows = read('docs/errors.md')
  .split('\n')
  .map((line) => line.split('|').map((cell) => cell.trim()))
  .filter((cells) => /^`LPQ_/.test(cells[1] ?? ''))
  .map(([, code = '', exit = '', meaning = '', remedy = '']) => ({
    ...{ code: code.replaceAll('`', ''), exit: Number(exit), meaning, remedy },
  }));

test('docs/errors.md lists exactly the codes, with their exit codes, meanings and what to do', () => {
  assert.deepEqual(
    rows,
    Object.entries(CODES).map(([code, { exit, meaning }]) => ({
      ...{ code, exit, meaning, remedy: REMEDIES[code as ErrorCode] },
    })),
  );
});

test('the table of codes is sorted', () => {
  const codes = Object.keys(CODES);
  assert.deepEqual(codes, [...codes].sort());
});

/** Text of every source file that may print a code. */
function sources(): string {
  const files = ['src', 'formats', 'native', 'bench', 'bin', 'scripts'].flatMap((dir) =>
    readdirSync(path.join(root, dir), { recursive: true })
      .map((file) => path.join(dir, String(file)))
      .filter(
        (file) =>
          /\.(ts|mjs|js|cpp|h)$/.test(file) && !file.startsWith('native/build') && !file.endsWith('core/codes.ts'),
      ),
  );
  return files.map(read).join('\n');
}

test('something throws every code', () => {
  const used = new Set([...sources().matchAll(/['"`](LPQ_[A-Z_]+)\b/g)].map((match) => match[1] as string));
  assert.deepEqual(
    Object.keys(CODES).filter((code) => !used.has(code)),
    [],
  );
});

test('what runs before anything is compiled prints codes of the table too', () => {
  for (const file of ['bin/lpq.js', 'scripts/install.mjs'])
    for (const [, code] of read(file).matchAll(/(LPQ_[A-Z_]+)(?=:| {2})/g))
      assert.ok(Object.hasOwn(CODES, code as string), `${file} prints ${code}`);
});
