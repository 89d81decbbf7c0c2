import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Interrupt } from '../../../../src/cli/terminal/interrupt.js';
import { Eta, PlainProgress } from '../../../../src/cli/terminal/progress.js';
import { Reporter } from '../../../../src/cli/terminal/reporter.js';
import { table } from '../../../../src/cli/terminal/table.js';
import { bytes, count, duration } from '../../../../src/cli/terminal/units.js';
import { LpqError } from '../../../../src/core/error.js';

/** Streams that remember; `tty` says what they claim to be. */
function output(tty: boolean) {
  const text = { stdout: '', stderr: '' };
  const stream = (name: 'stdout' | 'stderr') =>
    ({
      isTTY: tty,
      columns: 100,
      on() {},
      write: (chunk: string) => {
        text[name] += chunk;
        return true;
      },
    }) as unknown as NodeJS.WriteStream;
  return { text, stdout: stream('stdout'), stderr: stream('stderr') };
}

const plain = { json: false, quiet: false, verbose: false };

function everything(report: Reporter): void {
  report.event('module', { name: 'q' }, 'q line');
  const task = report.task('work', 2);
  task.update(1, 'half');
  report.event('module', { name: 'k' }, 'k line');
  report.warn('careful');
  task.end();
  report.result({ ppl: 2 }, 'ppl 2\n');
  report.error(new LpqError('LPQ_TYPE', 'no type'));
}

test('plain: results on stdout, log and errors on stderr', () => {
  const out = output(false);
  everything(new Reporter(out, plain));
  assert.equal(out.text.stdout, 'ppl 2\n');
  assert.equal(out.text.stderr, 'q line\nk line\nwarning  careful\nLPQ_TYPE  no type\n');
});

test('json: every line of stdout is an event and stderr is silent', () => {
  const out = output(true);
  everything(new Reporter(out, { ...plain, json: true }));
  const events = out.text.stdout
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line).event);
  assert.deepEqual(events, ['module', 'module', 'warning', 'result', 'error']);
  assert.equal(out.text.stderr, '');
});

test('quiet: results, warnings and errors only', () => {
  const out = output(false);
  everything(new Reporter(out, { ...plain, quiet: true }));
  assert.equal(out.text.stdout, 'ppl 2\n');
  assert.equal(out.text.stderr, 'warning  careful\nLPQ_TYPE  no type\n');
});

test('a terminal gets colours unless NO_COLOR is set', (t) => {
  const before = { NO_COLOR: process.env.NO_COLOR, TERM: process.env.TERM };
  t.after(() => {
    for (const [name, value] of Object.entries(before))
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
  });
  process.env.TERM = 'xterm';
  for (const [value, colored] of [
    [undefined, true],
    ['', true],
    ['1', false],
  ] as const) {
    if (value === undefined) delete process.env.NO_COLOR;
    else process.env.NO_COLOR = value;
    const out = output(true);
    new Reporter(out, plain).error(new LpqError('LPQ_TYPE', 'no'));
    assert.equal(out.text.stderr.includes('\x1b['), colored, `NO_COLOR=${value}`);
  }
});

test('time left follows the mean rate, and is unknown before any work is done', () => {
  let now = 100;
  const eta = new Eta(10, () => now);
  assert.equal(eta.left(0), undefined);
  now = 104;
  assert.equal(eta.left(2), 16);
  assert.equal(eta.left(10), 0);
  assert.equal(eta.left(11), 0);
});

test('without a terminal progress is a line every ten seconds', () => {
  let now = 0;
  const lines: string[] = [];
  const view = new PlainProgress(
    'eval',
    200,
    (line) => lines.push(line),
    10,
    () => now,
  );
  for (let done = 1; done <= 30; done++) {
    now = done;
    view.update(done, `window ${done}`);
  }
  assert.deepEqual(lines, [
    'eval 5%, 3m 10s left  window 10',
    'eval 10%, 3m 00s left  window 20',
    'eval 15%, 2m 50s left  window 30',
  ]);
});

test('without a terminal a step that goes on is told every ten seconds, too, with its total or without', () => {
  let now = 0;
  const lines: string[] = [];
  for (const total of [4, 0]) {
    const view = new PlainProgress(
      'verify',
      total,
      (line) => lines.push(line),
      10,
      () => now,
    );
    view.update(1, 'q');
    for (const end = now + 25; now < end; now++) view.wait('hashing q, 1 of 4', now);
  }
  assert.deepEqual(lines, [
    'verify 25%, 30s left  hashing q, 1 of 4  10s',
    'verify 25%, 1m 00s left  hashing q, 1 of 4  20s',
    'verify  hashing q, 1 of 4  35s',
    'verify  hashing q, 1 of 4  45s',
  ]);
});

test('the first signal stops the runtimes and raises the signal; the second cleans up and leaves with 130', () => {
  const said: string[] = [];
  const left: number[] = [];
  let [stopped, cleaned] = [0, 0];
  const interrupt = new Interrupt(
    (line) => said.push(line),
    (code) => left.push(code),
  );
  interrupt.watch({ abort: () => stopped++ } as never);
  interrupt.cleanup(() => {
    throw new Error('locked');
  });
  interrupt.cleanup(() => cleaned++);
  interrupt.check();
  interrupt.raise();
  assert.deepEqual([stopped, cleaned, left.length, interrupt.signal.aborted], [1, 0, 0, true]);
  assert.throws(
    () => interrupt.check(),
    (error) => error instanceof LpqError && error.code === 'LPQ_ABORTED',
  );
  interrupt.raise();
  interrupt.uninstall();
  // A clean-up that fails does not keep the next from running.
  assert.deepEqual([cleaned, left], [1, [130]]);
  assert.match(said.join('\n'), /Ctrl-C again[\s\S]*locked/);
});

test('units and tables', () => {
  assert.deepEqual([0, 999, 1500, 7348736, 8.03e9].map(bytes), ['0 B', '999 B', '1.50 kB', '7.35 MB', '8.03 GB']);
  assert.deepEqual([512, 3672320, 70.6e9].map(count), ['512', '3.67 M', '70.6 B']);
  assert.deepEqual([0.04, 9.96, 59.7, 75.2, 3599.6, 7300].map(duration), [
    '0.0s',
    '10.0s',
    '1m 00s',
    '1m 15s',
    '1h 00m',
    '2h 01m',
  ]);
  assert.equal(
    table(
      ['name', 'n'],
      [
        ['a', '1'],
        ['long', '10'],
      ],
    ),
    'name   n\na      1\nlong  10\n',
  );
});
