import assert from 'node:assert/strict';
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  appendFileSync,
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { sampled } from '../../../sample.js';
import { events, lpq, model, root, scratch } from '../lpq.js';

const KILLS = Number(process.env.LPQ_KILLS ?? 8);
/** The attention's projections only: a run of seconds. */
const recipes = mkdtempSync(path.join(tmpdir(), 'lpq-recipes-'));
after(() => rmSync(recipes, { recursive: true }));
const recipe = path.join(recipes, 'attention.json');
writeFileSync(recipe, JSON.stringify({ rules: [{ match: 'mlp', skip: true }] }));
const text = path.join(recipes, 'text.txt');
writeFileSync(text, readFileSync(path.join(root, 'share', 'text', 'books-valid.txt'), 'utf8').slice(0, 8000));
const GPTQ = ['--bits', '4', '--samples', '2', '--seq-len', '48', '--recipe', recipe, '--calib', text];
const RTN = ['--bits', '4', '--method', 'rtn'];
const PARTIAL = ['journal.ndjson', 'output', 'owner.json'];

/** sha256 of every file below a directory. */
function hashes(dir: string): Record<string, string> {
  const names = readdirSync(dir, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
  return Object.fromEntries(
    names
      .map((entry) => path.join(entry.parentPath, entry.name))
      .sort()
      .map((file) => [path.relative(dir, file), createHash('sha256').update(readFileSync(file)).digest('hex')]),
  );
}

const quantize = (output: string, ...more: string[]) => lpq(['quantize', model, '-o', output, ...more]);

/** A run in a process of its own; `until` sees what it has said and decides when it is killed. */
function start(output: string, args: readonly string[], until: (said: string, child: ChildProcess) => void) {
  const child = spawn(process.execPath, [path.join(root, 'bin', 'lpq.js'), 'quantize', model, '-o', output, ...args], {
    cwd: root,
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  let said = '';
  child.stderr?.on('data', (chunk: Buffer) => {
    said += chunk.toString();
    until(said, child);
  });
  return new Promise<{ code: number | null; stderr: string }>((resolve) =>
    child.on('close', (code) => resolve({ code, stderr: said })),
  );
}

/** Leaves a partial output with at least `blocks` finished blocks, by killing a run as soon as its journal says so. */
async function stopped(output: string, args: readonly string[], blocks = 1): Promise<void> {
  const journal = path.join(`${output}.partial`, 'journal.ndjson');
  let timer: NodeJS.Timeout | undefined;
  const ended = start(output, args, (_, child) => {
    timer ??= setInterval(() => {
      if (existsSync(journal) && readFileSync(journal, 'utf8').split('\n').length - 2 >= blocks) child.kill('SIGKILL');
    }, 1);
  });
  const { code, stderr } = await ended;
  clearInterval(timer);
  assert.equal(code, null, `the run was not killed: ${stderr}`);
}

const METHODS = [
  ['gptq', GPTQ],
  ['rtn', RTN],
] as const;
for (const [name, args] of sampled('killed runs', METHODS, 2))
  test(`${name}: however often it is killed, a resumed run gives the bytes of an undisturbed one`, async (t) => {
    const dir = scratch(t);
    const began = performance.now();
    const undisturbed = await quantize(path.join(dir, 'whole'), ...args);
    const took = performance.now() - began;
    assert.equal(undisturbed.code, 0, undisturbed.stderr);
    const expected = hashes(path.join(dir, 'whole'));
    const output = path.join(dir, 'out');
    let [killed, finished, resumed, tries] = [0, 0, 0, 0];
    await stopped(output, args);
    const check = () => {
      finished++;
      assert.deepEqual(hashes(output), expected);
      assert.ok(!existsSync(`${output}.partial`));
      rmSync(output, { recursive: true });
    };
    for (; killed < (name === 'rtn' ? Math.ceil(KILLS / 4) : KILLS) && tries < 8 * KILLS + 8; tries++) {
      let timer: NodeJS.Timeout | undefined;
      // Most kills after the start of node, which takes a large part of so short a run.
      const delay = took * (0.3 + 0.9 * Math.random());
      const { code, stderr } = await new Promise<{ code: number | null; stderr: string }>((resolve) => {
        const child = spawn(
          process.execPath,
          [path.join(root, 'bin', 'lpq.js'), 'quantize', model, '-o', output, ...args, '--resume'],
          { cwd: root, stdio: ['ignore', 'ignore', 'pipe'] },
        );
        timer = setTimeout(() => child.kill('SIGKILL'), delay);
        let said = '';
        child.stderr.on('data', (chunk: Buffer) => {
          said += chunk.toString();
        });
        child.on('close', (ended) => resolve({ code: ended, stderr: said }));
      });
      clearTimeout(timer);
      if (/continues from [1-9]/.test(stderr)) resumed++;
      if (code === null) killed++;
      else assert.equal(code, 0, stderr);
      // Killed after the output had got its name, or before it had been told so.
      if (existsSync(output) && !existsSync(`${output}.partial`)) check();
    }
    const last = await quantize(output, ...args, '--resume');
    assert.equal(last.code, 0, last.stderr);
    if (/continues from [1-9]/.test(last.stderr)) resumed++;
    check();
    t.diagnostic(
      `${killed} kills in ${tries} runs; ${resumed} runs took up finished blocks; ${finished} outputs compared`,
    );
    assert.ok(killed > 0 && resumed > 0);
  });

test('a partial output is refused, resumed or discarded as asked; it is nobody else to touch', async (t) => {
  const dir = scratch(t);
  const output = path.join(dir, 'out');
  await stopped(output, GPTQ);
  assert.deepEqual(readdirSync(dir), ['out.partial']);
  assert.deepEqual(readdirSync(`${output}.partial`).sort(), PARTIAL);

  const refused = await quantize(output, ...GPTQ);
  assert.equal(refused.code, 2);
  assert.match(refused.stderr, /^LPQ_PARTIAL_EXISTS {2}a stopped run left .*out\.partial/);
  assert.match(refused.stderr, /--resume .*--restart/);
  const both = await quantize(output, ...GPTQ, '--resume', '--restart');
  assert.match(both.stderr, /^LPQ_USAGE {2}--resume and --restart/);

  // Every option that the bytes depend on; each message has its name and both values.
  for (const [change, says] of [
    [
      ['--bits', '3'],
      [/--bits/, /got +--bits 3/, /expected +--bits 4/],
    ],
    [
      ['--damp', '0.02'],
      [/--damp/, /got +--damp 0\.02/, /expected +--damp 0\.01/],
    ],
    [
      ['--samples', '3'],
      [/--samples/, /got +--samples 3/, /expected +--samples 2/],
    ],
    [
      ['--seed', '1', '--asym'],
      [/--seed/, /--sym/, /--seed 1/, /--seed 0/, /--sym false/, /--sym not given/],
    ],
    [
      ['--bos', 'always'],
      [/--bos/, /got +--bos always/, /expected +--bos not given/],
    ],
    [
      ['--method', 'rtn'],
      [/--method/, /got +--method rtn/, /expected +--method gptq/],
    ],
    [
      ['--calib', path.join(root, 'share', 'text', 'books-valid.txt')],
      [/--calib/, /books-valid.*sha256/],
    ],
  ] as const) {
    const options = change[1] === 'rtn' ? [...RTN, '--recipe', recipe] : [...GPTQ, ...change];
    const ran = await quantize(output, ...options, '--resume');
    assert.equal(ran.code, 2, ran.stderr);
    assert.match(ran.stderr, /^LPQ_RESUME {2}/m);
    for (const each of says) assert.match(ran.stderr, each);
  }
  const edited = path.join(dir, 'recipe.json');
  writeFileSync(edited, JSON.stringify({ rules: [{ match: 'layers\\.3\\.', skip: true }] }));
  assert.match((await quantize(output, ...GPTQ, '--recipe', edited, '--resume')).stderr, /^LPQ_RESUME.*rules/m);
  rmSync(edited);
  const other = path.join(dir, 'other');
  cpSync(model, other, { recursive: true });
  const renamed = await lpq(['quantize', other, '-o', output, ...GPTQ, '--resume']);
  assert.match(renamed.stderr, /^LPQ_RESUME .*name of the source/m);
  rmSync(other, { recursive: true });
  assert.deepEqual(readdirSync(`${output}.partial`).sort(), ['journal.ndjson', 'output']);

  const again = await quantize(output, ...GPTQ, '--restart', '--json');
  assert.equal(again.code, 0, again.stdout);
  assert.ok(!events(again).some(({ event }) => event === 'resume'));
  assert.deepEqual(readdirSync(dir).sort(), ['out', 'out.report.html', 'out.report.json']);
});

test('damage of the partial output: a flipped byte, a torn journal, lost shards; and what cannot be helped', async (t) => {
  const dir = scratch(t);
  const output = path.join(dir, 'out');
  const partial = `${output}.partial`;
  const kept = path.join(dir, 'kept');
  const whole = path.join(dir, 'whole');
  assert.equal((await quantize(whole, ...GPTQ)).code, 0);
  const expected = hashes(whole);
  await stopped(output, GPTQ, 2);
  renameSync(partial, kept);
  const shard = path.join(partial, 'output', 'model.safetensors');
  const journal = path.join(partial, 'journal.ndjson');
  const lines = readFileSync(path.join(kept, 'journal.ndjson'), 'utf8').split('\n').length - 2;

  const cases: [string, () => void, { blocks: number; damaged: unknown[] } | undefined][] = [
    [
      'a flipped bit in a tensor of block 0',
      () => {
        const header = readFileSync(shard);
        const length = Number(header.readBigUInt64LE());
        const entries = JSON.parse(header.toString('utf8', 8, 8 + length));
        const at = 8 + length + entries['model.layers.0.self_attn.q_proj.codes'].data_offsets[0] + 100;
        const file = openSync(shard, 'r+');
        writeSync(file, Buffer.of((header[at] as number) ^ 4), 0, 1, at);
      },
      { blocks: lines - 1, damaged: [0] },
    ],
    ['a torn last line', () => appendFileSync(journal, '{"block":3,"modu'), { blocks: lines, damaged: [] }],
    [
      'a line torn in its middle',
      () => truncateSync(journal, statSync(journal).size - 9),
      { blocks: lines - 1, damaged: [] },
    ],
    [
      'shards cut short',
      () => truncateSync(shard, 5000),
      { blocks: 0, damaged: Array.from({ length: lines }, (_, i) => i) },
    ],
    [
      'shards lost',
      () => rmSync(path.join(partial, 'output'), { recursive: true }),
      { blocks: 0, damaged: Array.from({ length: lines }, (_, i) => i) },
    ],
    [
      'a stray file',
      () => writeFileSync(path.join(partial, 'output', 'stray.txt'), 'x'),
      { blocks: lines, damaged: [] },
    ],
    ['a torn header', () => truncateSync(journal, 40), undefined],
    ['no journal', () => rmSync(journal), undefined],
  ];
  for (const [what, damage, resumed] of cases) {
    cpSync(kept, partial, { recursive: true });
    damage();
    const ran = await quantize(output, ...GPTQ, '--resume', '--json');
    assert.equal(ran.code, 0, `${what}: ${ran.stdout}`);
    const event = events(ran).find(({ event: name }) => name === 'resume');
    assert.deepEqual(event && { blocks: event.blocks, damaged: event.damaged }, resumed, what);
    assert.deepEqual(hashes(output), expected, what);
    assert.deepEqual(
      readdirSync(dir)
        .filter((name) => !name.includes('.report.'))
        .sort(),
      ['kept', 'out', 'whole'],
    );
    rmSync(output, { recursive: true });
  }

  cpSync(kept, partial, { recursive: true });
  copyFileSync(journal, path.join(dir, 'journal'));
  const text = readFileSync(journal, 'utf8').split('\n');
  writeFileSync(journal, [text[0], text[1]?.replace('"modules"', '"moduls"'), ...text.slice(2)].join('\n'));
  const malformed = await quantize(output, ...GPTQ, '--resume');
  assert.equal(malformed.code, 4);
  assert.match(malformed.stderr, /^LPQ_JOURNAL {2}line 2 of .*journal\.ndjson/m);
  assert.match(malformed.stderr, /hint +.*--restart/);
  assert.ok(existsSync(shard));

  // A directory of somebody else's is not discarded.
  rmSync(partial, { recursive: true });
  mkdirSync(partial);
  writeFileSync(path.join(partial, 'thesis.txt'), 'x');
  for (const flag of ['--restart', '--resume']) {
    const ran = await quantize(output, ...GPTQ, flag);
    assert.match(ran.stderr, /^LPQ_PARTIAL_EXISTS {2}.* is not a partial output/);
  }
  assert.deepEqual(readdirSync(partial), ['thesis.txt']);
});

test('Ctrl-C after a finished block keeps it and says how to go on; two runs do not write one output', async (t) => {
  const dir = scratch(t);
  const output = path.join(dir, 'out');
  const journal = path.join(`${output}.partial`, 'journal.ndjson');
  const args = ['--bits', '4', '--samples', '8', '--seq-len', '128', '--calib', text];
  let asked: Promise<{ stderr: string; code?: number | undefined }> | undefined;
  let timer: NodeJS.Timeout | undefined;
  const { code, stderr } = await start(output, args, (_, child) => {
    timer ??= setInterval(() => {
      if (asked || !existsSync(journal) || readFileSync(journal, 'utf8').split('\n').length < 3) return;
      asked = quantize(output, ...args, '--resume');
      asked.then(() => child.kill('SIGINT'));
    }, 5);
  });
  clearInterval(timer);
  const other = await asked;
  if (code === 0) return t.skip('the run was faster than the other that was to meet it');
  assert.match(other?.stderr ?? '', /^LPQ_PARTIAL_IN_USE {2}.*out\.partial/);
  assert.equal(code, 130, stderr);
  assert.match(stderr, /LPQ_ABORTED {2}the run was interrupted/);
  assert.match(stderr, /hint +.*out\.partial: repeat the command with --resume/);
  assert.deepEqual(readdirSync(`${output}.partial`).sort(), ['journal.ndjson', 'output']);
});

test('killed between the name and the cleaning up: --resume finds it finished', async (t) => {
  const dir = scratch(t);
  const output = path.join(dir, 'out');
  await stopped(output, RTN);
  rmSync(path.join(`${output}.partial`, 'output'), { recursive: true });
  cpSync(model, output, { recursive: true });
  const ran = await quantize(output, ...RTN, '--resume');
  assert.equal(ran.code, 0, ran.stderr);
  assert.match(ran.stdout, /finished already/);
  assert.deepEqual(readdirSync(dir), ['out']);
});

test('a full disk ends the run; with room it goes on and gives the same bytes', async (t) => {
  const dir = scratch(t);
  const whole = path.join(dir, 'whole');
  assert.equal((await quantize(whole, ...GPTQ)).code, 0);
  const bytes = Object.keys(hashes(whole)).reduce((sum, name) => sum + statSync(path.join(whole, name)).size, 0);
  const mount = path.join(dir, 'mount');
  mkdirSync(mount);
  // What goes through unchanged is written first; of the four blocks two or three fit, in a file system that this process alone sees.
  const size = bytes - 150_000;
  const command = `LPQ_PREFLIGHT=warn ${process.execPath} ${path.join(root, 'bin', 'lpq.js')} quantize ${model} -o ${mount}/out ${GPTQ.join(' ')}`;
  const script = `
    mount -t tmpfs -o size=${size} none ${mount} || exit 77
    ${command} 2>&1; echo "first $?"
    ls ${mount}
    mount -o remount,size=${2 * bytes + 2 ** 20} ${mount}
    ${command} --resume 2>&1; echo "second $?"
    cp -r ${mount}/out ${dir}/out`;
  const ran = spawnSync('unshare', ['--mount', '--map-root-user', 'bash', '-c', script], { encoding: 'utf8' });
  const alone =
    ran.status === 77 || ran.error
      ? spawnSync('unshare', ['--mount', 'bash', '-c', script], { encoding: 'utf8' })
      : ran;
  if (alone.status === 77 || alone.error || /unshare:/.test(alone.stderr))
    return t.skip(`SKIPPED: no file system can be mounted here: ${alone.stderr}`);
  assert.match(alone.stdout, /LPQ_DISK_FULL .*disk is full[\s\S]*--resume[\s\S]*first 3\nout\.partial\n/);
  assert.match(alone.stdout, /continues from [1-4] finished blocks[\s\S]*second 0/);
  assert.deepEqual(hashes(path.join(dir, 'out')), hashes(whole));
});
