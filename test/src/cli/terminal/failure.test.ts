import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CommanderError } from 'commander';
import { asLpqError } from '../../../../src/cli/terminal/failure.js';
import { errorEvent, formatError } from '../../../../src/cli/terminal/print-error.js';
import { terminalText } from '../../../../src/cli/terminal/terminal.js';
import { LpqError } from '../../../../src/core/error.js';

const native = (code: string, message: string, op?: string) => Object.assign(new Error(message), { code, op });
const system = (code: string, syscall: string, path?: string) =>
  Object.assign(new Error(`${code}: something, ${syscall}`), { code, syscall, path });

// [what is thrown, the code it becomes, what its sentence must say]
const CASES: readonly (readonly [unknown, string, RegExp])[] = [
  [native('LPQ_ABORTED', 'stopped on request'), 'LPQ_ABORTED', /interrupted/],
  [native('LPQ_NATIVE_MEMORY', 'out of memory', 'linear'), 'LPQ_MEMORY', /linear/],
  [native('LPQ_NATIVE_NUMERICS', 'NaN at row 3', 'gram_accumulate'), 'LPQ_MODULE_NUMERICS', /row 3/],
  [native('LPQ_NATIVE_FILE', 'short read'), 'LPQ_FILE', /short read/],
  [native('LPQ_NATIVE_ARGUMENT', 'shapes differ', 'add'), 'LPQ_INTERNAL', /shapes differ.*add.*LPQ_NATIVE_ARGUMENT/],
  [native('LPQ_NATIVE', 'surprise'), 'LPQ_INTERNAL', /surprise/],
  [system('ENOSPC', 'write', '/out/a'), 'LPQ_DISK_FULL', /\/out\/a/],
  [system('EDQUOT', 'fsync'), 'LPQ_DISK_FULL', /the output/],
  [system('ENOENT', 'open', '/in/b'), 'LPQ_FILE', /\/in\/b cannot be read: it does not exist/],
  [system('EACCES', 'open', '/in/b'), 'LPQ_FILE', /permission denied/],
  [system('EACCES', 'mkdir', '/out'), 'LPQ_OUTPUT_WRITE', /\/out cannot be written: permission denied/],
  [system('EROFS', 'open', '/out'), 'LPQ_OUTPUT_WRITE', /read-only/],
  [system('ENOMEM', 'mmap'), 'LPQ_MEMORY', /memory/],
  [new RangeError('Array buffer allocation failed'), 'LPQ_MEMORY', /memory/],
  [new TypeError('x is undefined'), 'LPQ_INTERNAL', /x is undefined/],
  ['a string', 'LPQ_INTERNAL', /a string/],
  [undefined, 'LPQ_INTERNAL', /undefined/],
];

for (const [thrown, code, says] of CASES)
  test(`${String(thrown)} becomes ${code}`, () => {
    const error = asLpqError(thrown);
    assert.equal(error.code, code);
    assert.match(error.message, says);
    if (thrown instanceof Error) assert.equal(error.cause, thrown);
  });

test('a designed error passes unchanged; a suggestion of commander becomes the hint', () => {
  const error = new LpqError('LPQ_TYPE', 'no');
  assert.equal(asLpqError(error), error);
  const usage = asLpqError(
    new CommanderError(1, 'commander.unknownOption', "error: unknown option '--bit'\n(Did you mean --bits?)"),
  );
  assert.deepEqual(
    [usage.code, usage.message, usage.hint],
    ['LPQ_USAGE', "unknown option '--bit'", 'Did you mean --bits?'],
  );
});

test('an error prints code, sentence, got, expected, hint and the chain of causes', () => {
  const inner = new Error('the disk said no');
  const cause = new Error('outer cause', { cause: inner });
  const error = new LpqError('LPQ_GROUP_SIZE', 'groups of 96 do not divide', {
    got: 96,
    expected: ['64', '128'],
    hint: 'Choose 64.',
    cause,
  });
  assert.equal(
    formatError(error, { color: false, verbose: false }),
    [
      'LPQ_GROUP_SIZE  groups of 96 do not divide',
      '  got       96',
      '  expected  64, 128',
      '  hint      Choose 64.',
      '  caused by outer cause',
      '  caused by the disk said no',
      '',
    ].join('\n'),
  );
  assert.deepEqual(errorEvent(error, false), {
    code: 'LPQ_GROUP_SIZE',
    message: 'groups of 96 do not divide',
    exit: 2,
    got: 96,
    expected: ['64', '128'],
    hint: 'Choose 64.',
    causes: ['outer cause', 'the disk said no'],
  });
});

test('a cause that the sentence repeats is not printed twice, and a circle of causes ends', () => {
  const loop = new Error('again') as Error & { cause?: unknown };
  loop.cause = loop;
  const text = formatError(new LpqError('LPQ_FILE', 'x cannot be read: again', { cause: loop }), {
    color: false,
    verbose: false,
  });
  assert.equal(text, 'LPQ_FILE  x cannot be read: again\n');
});

test('only --verbose shows a stack, and only of an internal error', () => {
  const internal = asLpqError(new TypeError('oops'));
  assert.doesNotMatch(formatError(internal, { color: false, verbose: false }), /at .*failure\.test/);
  assert.match(formatError(internal, { color: false, verbose: true }), /TypeError: oops\n\s+at .*failure\.test/);
  assert.match(String(errorEvent(internal, true).stack), /failure\.test/);
  const designed = new LpqError('LPQ_TYPE', 'no');
  assert.doesNotMatch(formatError(designed, { color: false, verbose: true }), /\n\s+at /);
});

test('colour codes appear only when asked for', () => {
  const error = new LpqError('LPQ_TYPE', 'no', { got: 1 });
  assert.ok(terminalText(formatError(error, { color: true, verbose: false })).includes('\x1b[31mLPQ_TYPE\x1b[39m'));
  assert.ok(!formatError(error, { color: false, verbose: false }).includes('\x1b'));
});
