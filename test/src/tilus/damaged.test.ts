import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { LpqError } from '../../../src/core/error.js';
import { check } from '../../../src/tilus/check/check.js';
import { compile } from '../../../src/tilus/compile/compile.js';
import { run } from '../../../src/tilus/interpret/run.js';
import { parse } from '../../../src/tilus/language/parse.js';
import { PROGRAMS, programText } from '../../../src/tilus/programs.js';

/** Words to put in the place of others, besides those of the programs. */
const WORDS = [
  'constructor',
  '__proto__',
  '0',
  '1',
  '-',
  '2147483648',
  '1e300',
  '0.5',
  '((((',
  ']',
  'if',
  'while 1:',
  'f4e2m1',
  'local(1000000, 1000000)',
  '  ',
  '\n',
  '\t',
  '\0',
  '"',
];

const words = (text: string): string[] => text.replace(/1024/g, '64').match(/\w+|\s+|[^\w\s]/g)!;
const all = [...new Set([...PROGRAMS.flatMap((name) => words(programText(name))), ...WORDS])];

const edits = fc.array(
  fc.record({
    at: fc.double({ min: 0, max: 1, noNaN: true }),
    kind: fc.constantFrom('set', 'remove', 'insert'),
    word: fc.constantFrom(...all),
  }),
  { minLength: 1, maxLength: 3 },
);

test('texts that are nested without end are refused', () => {
  for (const text of [
    `const A = ${'('.repeat(5000)}1${')'.repeat(5000)}`,
    `const A = ${'-'.repeat(5000)}1`,
    `const A = 1${' + 1'.repeat(50_000)}`,
    `const A = local(1)${'.local(1)'.repeat(50_000)}`,
    `def a<1>():\n    if 1:\n        Exit()\n${'    elif 1:\n        Exit()\n'.repeat(5000)}`,
    `def a<1>():\n${Array.from({ length: 500 }, (_, i) => `${' '.repeat(i + 1)}if 1:\n`).join('')}${' '.repeat(600)}Exit()\n`,
  ])
    assert.throws(
      () => parse(text),
      { code: 'LPQ_TILUS', message: /^line \d+: the text is nested too deeply$/ },
      text.slice(0, 20),
    );
});

test('whatever is wrong with a program ends in LPQ_TILUS, soon', () => {
  let ran = 0;
  let refused = 0;
  fc.assert(
    fc.property(fc.constantFrom(...PROGRAMS), edits, (name, list) => {
      const tokens = words(programText(name));
      for (const { at, kind, word } of list) {
        const place = Math.floor(at * tokens.length);
        tokens.splice(place, kind === 'insert' ? 0 : 1, ...(kind === 'remove' ? [] : [word]));
      }
      const began = performance.now();
      try {
        const program = check(parse(tokens.join('')), { arch: 90 });
        const args = Object.fromEntries(
          program.parameters.map(({ name: parameter, pointer }) => [parameter, pointer ? new Uint8Array(20_000) : 8]),
        );
        compile(program);
        run(program, args, 60);
        ran++;
      } catch (error) {
        if (!(error instanceof LpqError && error.code === 'LPQ_TILUS')) throw error;
        assert.ok(error.message.length < 2000);
        refused++;
      }
      assert.ok(performance.now() - began < 10_000);
    }),
    {
      numRuns: Number(process.env.LPQ_FUZZ_RUNS ?? 250),
      seed: Number(process.env.LPQ_FUZZ_SEED ?? Date.now() % 2 ** 31),
    },
  );
  assert.ok(ran + refused > 0);
});
