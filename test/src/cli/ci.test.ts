import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { listCommands } from '../../../src/cli/commands.js';
import { buildProgram } from '../../../src/cli/main.js';
import { manualPage } from '../../../src/cli/manual.js';
import { junitOf } from '../../../src/cli/verify/junit.js';
import { version } from '../../../src/cli/version.js';
import { CODES } from '../../../src/core/codes.js';
import type { VerifyReport } from '../../../src/verify/report.js';
import { wellFormed } from '../report/markup.js';
import { CALIB, events, lpq, model, root, scratch, text } from './lpq.js';

const commands = listCommands(await buildProgram());

test('every code is explained; a code that is none is refused with those spelled alike', async () => {
  for (const code of Object.keys(CODES).filter((_, i) => i % 12 === 0)) {
    const ran = await lpq(['explain', code.slice('LPQ_'.length).toLowerCase(), '--json']);
    const [found] = events(ran);
    assert.equal(found?.code, code);
    assert.ok(String(found?.remedy).length > 10, code);
  }
  const all = await lpq(['explain']);
  for (const code of Object.keys(CODES)) assert.ok(all.stdout.includes(code), code);
  const wrong = await lpq(['explain', 'LPQ_DISK']);
  assert.equal(wrong.code, 2);
  assert.match(wrong.stderr, /LPQ_DISK_FULL/);
});

test('the manual page is that of the command line, and groff finds nothing wrong with it', async (t) => {
  const file = path.join(root, 'share', 'man', 'man1', 'lpq.1');
  const page = readFileSync(file, 'utf8');
  assert.equal(page, manualPage(await buildProgram(), version()), 'npm run man');
  for (const { path: name } of commands) assert.ok(page.includes(`"lpq ${name.replace(/-/g, '\\-')}`), name);
  // Not under our sanitizers, which groff does not pass.
  const env = { ...process.env, LD_PRELOAD: '' };
  const groff = spawnSync('groff', ['-man', '-Tutf8', '-ww', '-z', file], { encoding: 'utf8', env });
  if (groff.error) return t.skip('SKIPPED: there is no groff');
  assert.equal(groff.stderr, '');
});

test('bash completes commands, options, values and values with colons', async (t) => {
  const script = path.join(scratch(t), 'lpq.bash');
  writeFileSync(script, (await lpq(['completion', 'bash'])).stdout);
  /** What bash offers for each line, which one process asks. */
  const complete = (lines: readonly (readonly string[])[]) => {
    const asked = lines.map((words) => {
      // As readline splits the line: colons are words.
      const split = words.flatMap((word) => word.split(/(:)/).filter((part) => part !== ''));
      if (words.at(-1) === '') split.push('');
      const quoted = ['lpq', ...split].map((word) => `'${word}'`).join(' ');
      return `COMP_WORDS=(${quoted}); COMP_CWORD=${split.length}; _lpq; printf '%s\\n' "\${COMPREPLY[@]}"; printf '\\f'`;
    });
    const run = `source '${script}'\n${asked.join('\n')}`;
    const { stdout, stderr } = spawnSync('bash', ['-c', run], { encoding: 'utf8', cwd: root });
    assert.equal(stderr, '');
    return stdout
      .split('\f')
      .slice(0, -1)
      .map((each) => each.split('\n').filter((line) => line !== ''));
  };
  const offers: readonly (readonly [line: string, offered: readonly string[]])[] = [
    ['qu', ['quantize']],
    ['quantize --met', ['--method']],
    ['quantize share --method ', ['gptq', 'rtn', 'fmpq']],
    ['pack x --target mar', ['marlin']],
    ['quantize --device cuda:', ['0', 'all']],
    ['bench ker', ['kernels']],
    ['completion f', ['fish']],
    ['inspect share/tiny-l', ['share/tiny-llama']],
  ];
  assert.deepEqual(
    complete(offers.map(([line]) => line.split(' '))),
    offers.map(([, offered]) => offered),
  );
  const flags = complete(commands.map(({ path: name }) => [...name.split(' '), '--']));
  for (const [i, { path: name, options }] of commands.entries())
    assert.deepEqual(
      flags[i]?.sort(),
      [
        ...options.flatMap(({ short, long }) => [long, ...(short?.startsWith('--') && short !== long ? [short] : [])]),
        '--help',
      ].sort(),
      name,
    );
});

test('zsh and fish take their scripts, where they are installed', async (t) => {
  const dir = scratch(t);
  for (const shell of ['zsh', 'fish']) {
    const { stdout } = await lpq(['completion', shell]);
    for (const { path: name, options } of commands)
      for (const { long } of options) assert.ok(stdout.includes(long.replace(/^--/, '')), `${shell} ${name} ${long}`);
    const file = path.join(dir, shell);
    writeFileSync(file, stdout);
    const ran = spawnSync(shell, ['-n', file], { encoding: 'utf8' });
    if (ran.error) t.diagnostic(`SKIPPED: there is no ${shell}`);
    else assert.equal(ran.stderr, '');
  }
  assert.equal((await lpq(['completion', 'csh'])).code, 2);
});

function reportOf(over: Partial<VerifyReport> = {}): VerifyReport {
  return {
    ...{ ok: false, dir: 'a & b', against: null, target: 'marlin', seed: 0, unproved: [], notes: [], seconds: 2 },
    checks: [
      { name: 'files', status: 'passed', count: 3, failures: 0 },
      { name: 'tensors', status: 'failed', count: 9, failures: 1 },
      { name: 'against', status: 'skipped', count: 0, failures: 0, detail: 'not asked "for"' },
    ],
    failures: [{ check: 'tensors', module: 'm.<1>', message: 'row 3 of m.<1> is "wrong" & more\u0007' }],
    modules: [
      { name: 'm.<1>', layout: 'marlin', type: 'i4', shape: [8, 8], ok: false, seconds: 0.5 },
      { name: 'm.2', layout: 'marlin', type: 'i4', shape: [8, 8], ok: true, seconds: 0.25 },
    ],
    ...over,
  };
}

/** Throws unless Python's parser takes it; where there is no Python the structural check above has to do. */
function parsed(xml: string): void {
  wellFormed(xml.replace(/^<\?xml[^>]*\?>/, ''));
  const python = spawnSync(
    'python3',
    ['-c', 'import sys, xml.etree.ElementTree as e; e.fromstring(sys.stdin.buffer.read())'],
    {
      input: xml,
      encoding: 'utf8',
    },
  );
  if (!python.error) assert.equal(python.stderr, '');
}

test('JUnit XML counts what it holds, and escapes everything', () => {
  const report = reportOf();
  const xml = junitOf({ ...report, kind: report.target });
  parsed(xml);
  assert.match(
    xml,
    /<testsuites name="lpq verify a &amp; b" tests="5" failures="2" errors="0" skipped="1" time="2.000">/,
  );
  const count = (pattern: RegExp) => [...xml.matchAll(pattern)].length;
  assert.deepEqual([count(/<testcase /g), count(/<failure /g), count(/<skipped /g)], [5, 2, 1]);
  for (const [, tests] of xml.matchAll(/<testsuite name="[^"]*" tests="(\d+)"/g))
    assert.ok(tests === '3' || tests === '2');
  assert.match(xml, /message="row 3 of m\.&lt;1&gt; is &quot;wrong&quot; &amp; more\ufffd"/);
});

test('verify --junit: passed, failed and broken artifacts, with the exit codes of each', async (t) => {
  const dir = scratch(t);
  const out = path.join(dir, 'q');
  const made = await lpq([
    'quantize',
    model,
    '-o',
    out,
    '--bits',
    '4',
    '--method',
    'rtn',
    '--pack',
    'marlin',
    '--quiet',
  ]);
  assert.equal(made.code, 0, made.stderr);
  assert.equal(made.stderr, '');
  const packed = `${out}-marlin`;
  const junit = path.join(dir, 'j.xml');
  const passed = await lpq(['verify', packed, '--junit', junit, '--quiet']);
  assert.equal(passed.code, 0, passed.stderr);
  assert.equal(passed.stderr, '');
  parsed(readFileSync(junit, 'utf8'));
  assert.match(readFileSync(junit, 'utf8'), /failures="0" errors="0"/);

  const bytes = readFileSync(path.join(packed, 'model.safetensors'));
  bytes[bytes.length - 5000] = (bytes[bytes.length - 5000] as number) ^ 1;
  writeFileSync(path.join(packed, 'model.safetensors'), bytes);
  const failed = await lpq(['verify', packed, '--junit', junit, '--json']);
  assert.equal(failed.code, 1);
  assert.equal(events(failed).at(-1)?.code, 'LPQ_VERIFY');
  parsed(readFileSync(junit, 'utf8'));
  assert.match(readFileSync(junit, 'utf8'), /<failure type="LPQ_VERIFY"/);

  writeFileSync(path.join(packed, 'lpq.json'), '{');
  const broken = await lpq(['verify', packed, '--junit', junit]);
  assert.equal(broken.code, 4);
  parsed(readFileSync(junit, 'utf8'));
  assert.match(readFileSync(junit, 'utf8'), /errors="1"[\s\S]*<error type="LPQ_/);

  const other = path.join(dir, 'mine.xml');
  writeFileSync(other, '<mine/>');
  assert.equal((await lpq(['verify', packed, '--junit', other])).code, 2);
  assert.equal(readFileSync(other, 'utf8'), '<mine/>');
});

test('what --print-recipe prints repeats the run: the same bytes', async (t) => {
  const dir = scratch(t);
  const rules = path.join(dir, 'rules.yaml');
  writeFileSync(
    rules,
    'groupSize: 64\ncalib: [text.txt]\nrules:\n  - match: \\.v_proj$\n    bits: 8\n  - match: layers\\.[1-3]\\.\n    skip: true\n',
  );
  cpSync(text, path.join(dir, 'text.txt'));
  const skips = path.join(dir, 'skips.json');
  writeFileSync(skips, JSON.stringify({ rules: [{ match: 'mlp|layers\\.[12]\\.', skip: true }] }));
  const runs = [
    ['--bits', '3', '--asym', '--recipe', rules, '--samples', '2', '--seq-len', '64', '--damp', '0.02'],
    ['--dtype', 'nvfp4', '--method', 'rtn'],
    [
      '--bits',
      '4',
      '--sparsity',
      '2:4',
      '--samples',
      '2',
      '--seq-len',
      '32',
      ...CALIB,
      '--seed',
      '5',
      '--order',
      'none',
    ],
  ];
  for (const [i, args] of runs.entries()) {
    const [one, two, recipe] = ['one', 'two', 'recipe.yaml'].map((name) => path.join(dir, `${i}-${name}`)) as [
      string,
      string,
      string,
    ];
    const printed = await lpq(['quantize', model, '-o', one, ...args, '--print-recipe']);
    assert.equal(printed.code, 0, printed.stderr);
    assert.ok(!existsSync(one));
    mkdirSync(path.dirname(recipe), { recursive: true });
    writeFileSync(recipe, printed.stdout);
    for (const [place, given] of [
      [one, args],
      [two, ['--recipe', recipe]],
    ] as const) {
      const ran = await lpq(['quantize', model, '-o', place, ...given, '--no-report', '--quiet', '--device', 'cpu']);
      assert.equal(ran.code, 0, ran.stderr);
    }
    for (const file of ['model.safetensors', 'lpq.json', 'config.json'])
      assert.ok(
        readFileSync(path.join(one, file)).equals(readFileSync(path.join(two, file))),
        `${args.join(' ')}: ${file}`,
      );
  }
});

test('a YAML recipe is refused at its place; what is no YAML by its line', async (t) => {
  const file = path.join(scratch(t), 'r.yaml');
  for (const [text, says] of [
    ['bits: 4\nbits: 5\n', /not valid YAML.*unique/],
    ['bits: [4\n', /not valid YAML/],
    ['bit: 4\n', /at \/bit is no setting/],
    ['rules: [{ match: a, bits: 99 }]\n', /at \/rules\/0\/bits/],
    ['a: &a [x, x]\nb: &b [*a, *a, *a]\nc: [*b, *b, *b, *b]\n', /r\.yaml/],
    ['', /r\.yaml/],
  ] as const) {
    writeFileSync(file, text);
    const ran = await lpq(['quantize', model, '-o', `${file}.out`, '--bits', '4', '--recipe', file]);
    assert.equal(ran.code, 2, text);
    assert.match(ran.stderr, /^LPQ_RECIPE/);
    assert.match(ran.stderr, says);
  }
});

test('command lines in the documents have only options that there are', () => {
  const known = new Map(
    commands.map(({ path: name, options }) => [name, new Set(options.flatMap(({ long, short }) => [long, short]))]),
  );
  const files = [
    'README.md',
    ...['ci', 'recipes', 'reports', 'resume', 'calibration', 'preflight', 'scale-out'].map((name) => `docs/${name}.md`),
  ];
  let checked = 0;
  for (const file of files) {
    const text = readFileSync(path.join(root, file), 'utf8');
    for (const [, line = ''] of text.matchAll(
      /(?:^|[`(;]|run: |lpq )lpq ((?:quantize|pack|verify|eval|report|inspect|completion|explain|doctor|merge) [^`\n|)>]*)/gm,
    )) {
      const [name = '', ...words] = line.trim().split(/\s+/);
      for (const word of words.filter((each) => /^--?[a-z]/.test(each)))
        assert.ok(known.get(name)?.has(word.replace(/[=,.;:]+$/, '')), `${file}: lpq ${line}: ${word}`);
      checked++;
    }
  }
  assert.ok(checked > 20, String(checked));
});
