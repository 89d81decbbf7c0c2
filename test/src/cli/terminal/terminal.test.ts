import assert from 'node:assert/strict';
import { cpSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { PassThrough } from 'node:stream';
import { test } from 'node:test';
import { Reporter } from '../../../../src/cli/terminal/reporter.js';
import { table } from '../../../../src/cli/terminal/table.js';
import { line, paint, terminalText } from '../../../../src/cli/terminal/terminal.js';
import { LpqError } from '../../../../src/core/error.js';
import { events, lpq, model, scratch } from '../lpq.js';

/** Sets the title, clears the screen, goes back in the line, begins a line of its own, turns the writing round. */
const EVIL = 'a\x1b]0;owned\x07\x1b[2J\x9b31m\r\nFAKE line\u2028FAKE\u202eb\x7f\x00';
const PLACE = EVIL.replace('\x00', '');

/** What a terminal was sent: nothing that it would obey, and no line that lpq did not begin. */
function assertTame(text: string, what: string): void {
  for (const char of text) {
    const code = char.codePointAt(0) as number;
    const tame = (code >= 0x20 && code < 0x7f) || char === '\n' || code > 0x9f;
    assert.ok(tame && !/[\u2028-\u202e\u2066-\u2069]/.test(char), `${what}: ${JSON.stringify(text)}`);
  }
  assert.doesNotMatch(text, /^FAKE/m, what);
}

/** The bundled model, with names in its files that mean harm. */
function hostileModel(dir: string): string {
  const place = path.join(dir, `m${PLACE}`);
  cpSync(model, place, { recursive: true });
  const file = path.join(place, 'model.safetensors');
  const bytes = readFileSync(file);
  const length = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.subarray(8, 8 + length).toString());
  const data = bytes.subarray(8 + length);
  header[`extra.${EVIL}.weight`] = { dtype: 'F32', shape: [1], data_offsets: [data.length, data.length + 4] };
  const json = Buffer.from(JSON.stringify(header));
  const size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(json.length));
  writeFileSync(file, Buffer.concat([size, json, data, Buffer.from([0, 0, 0x80, 0x7f])]));
  writeFileSync(path.join(place, `note${PLACE}.bin`), 'weights of another kind');
  return place;
}

function changeConfig(dir: string, change: Record<string, unknown>): string {
  const file = path.join(dir, 'config.json');
  writeFileSync(file, JSON.stringify({ ...JSON.parse(readFileSync(file, 'utf8')), ...change }));
  return dir;
}

test('names, paths and settings of files reach no terminal as they are, whatever the command and form', async (t) => {
  const dir = scratch(t);
  const place = hostileModel(dir);
  const [q, p] = [path.join(dir, `q${PLACE}`), path.join(dir, `p${PLACE}`)];
  const text = path.join(dir, `t${PLACE}.txt`);
  writeFileSync(text, 'Once upon a time. '.repeat(400));
  const copy = (name: string, change: Record<string, unknown>) => {
    const to = path.join(dir, name);
    cpSync(place, to, { recursive: true });
    return changeConfig(to, change);
  };
  const unknown = copy('unknown', { model_type: EVIL, architectures: [EVIL] });
  const foreign = copy('foreign', { quantization_config: { quant_method: EVIL, [EVIL]: EVIL } });
  const gptq = copy('gptq', {
    quantization_config: { quant_method: 'gptq', bits: 4, group_size: EVIL, desc_act: EVIL },
  });
  const recipe = path.join(dir, 'r.yaml');
  writeFileSync(recipe, JSON.stringify({ rules: [{ match: EVIL, bits: 4, [EVIL]: 1 }] }));
  const shards = path.join(dir, 'shards');
  mkdirSync(shards);
  writeFileSync(path.join(shards, 'config.json'), '{}');
  writeFileSync(
    path.join(shards, 'model.safetensors.index.json'),
    JSON.stringify({ weight_map: { [EVIL]: `${PLACE}.safetensors` } }),
  );
  const small = ['--bits', '4', '--method', 'rtn'];
  const commands: string[][] = [
    ['quantize', place, '-o', q, ...small],
    ['pack', q, '--target', 'marlin', '-o', p],
    ['verify', p, '--against', q],
    ['verify', p, '--against', p],
    ['verify', place],
    ['inspect', p],
    ['inspect', q],
    ['inspect', q, '--check'],
    ['report', q],
    ['quantize', place, '-o', q, ...small],
    ['inspect', place, '--check'],
    ['pack', gptq, '--target', 'marlin', '-o', `${p}2`],
    ['quantize', place, '-o', `${q}2`, ...small, '--recipe', recipe],
    ['quantize', place, '-o', `${q}2`, ...small, '--dry-run', '--pack', 'marlin,gptq'],
    ['quantize', place, '-o', `${q}2`, ...small, '--print-recipe'],
    ['pack', q, '--target', EVIL.replace('\x00', ''), '-o', 'never'],
    ['eval', place, '--text', text, '--ctx', '64'],
    ['eval', place, '--text', `${text}2`],
    ['generate', place, '--prompt', PLACE, '--max-tokens', '2'],
    ['explain', PLACE],
    [PLACE],
    ['merge', `${q}3`],
    ['quantize', `org${PLACE}/name`, '-o', 'never', ...small],
    ...[place, unknown, foreign, gptq, shards].flatMap((each) => [
      ['inspect', each],
      ['doctor', each],
      ['verify', each],
    ]),
  ];
  for (const [i, args] of commands.entries()) {
    // A process takes a while: one in four tells in JSON.
    const json = i % 4 === 3;
    const ran = await lpq([...args, ...(json ? ['--json'] : [])], { HF_HUB_OFFLINE: '1' });
    assertTame(`${ran.stdout}${ran.stderr}`, args.join(' '));
    if (json) assert.ok(events(ran).length > 0, args.join(' '));
    assert.doesNotMatch(ran.stderr + ran.stdout, /LPQ_INTERNAL|^ +at /m, args.join(' '));
  }
});

test('every way of the reporter, on a terminal with a bar and without: colours of ours pass, nothing else', () => {
  for (const tty of [true, false]) {
    const sent = { stdout: '', stderr: '' };
    const stream = (name: 'stdout' | 'stderr') => {
      const made = new PassThrough();
      made.on('data', (chunk) => (sent[name] += chunk));
      return Object.assign(made, { isTTY: tty, columns: 200, clearLine() {}, cursorTo() {}, moveCursor() {} });
    };
    const report = new Reporter({ stdout: stream('stdout'), stderr: stream('stderr') } as never, {
      json: false,
      quiet: false,
      verbose: true,
    });
    const task = report.task('work', 2);
    report.event('x', {}, EVIL, [EVIL]);
    report.warn(EVIL);
    task.update(1, EVIL);
    task.end();
    report.text(EVIL.replace('\nFAKE', ''));
    report.result({}, table([EVIL], [[EVIL]]) + line`${EVIL}\n`);
    const cause = new Error(EVIL);
    report.error(new LpqError('LPQ_FILE', EVIL, { got: EVIL, expected: [EVIL], hint: EVIL, cause }));
    // What the bar draws with, and what paint() adds.
    // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
    const ours = /\x1b\[(\?25[lh]|\?7[lh]|[012]?[JK]|\d*[ABCDG]|(31|33|39|2|22)m)|\r/g;
    assertTame((sent.stdout + sent.stderr).replace(ours, ''), `tty ${tty}`);
    assert.equal(sent.stderr.includes('\x1b[33mwarning\x1b[39m'), tty && process.env.NO_COLOR === undefined);
  }
});

test('paint: a file cannot make its colours', () => {
  const [painted] = [terminalText(paint('x', 'red', true))];
  assert.equal(painted, '\x1b[31mx\x1b[39m');
  assert.equal(terminalText(line`${paint('x', 'red', true)}${painted}`), '\x1b[31mx\x1b[39m\\x1b[31mx\\x1b[39m');
});
