import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { events, lpq, model, root, scratch, spawned } from './lpq.js';

const COMMANDS = ['quantize', 'pack', 'verify', 'eval', 'inspect', 'logits', 'doctor'];

test('help goes to stdout with exit code 0 and names every command; no command is a usage error', async () => {
  const help = await spawned(['--help']);
  assert.equal(help.code, 0);
  for (const command of COMMANDS) assert.match(help.stdout, new RegExp(`^ {2}${command} `, 'm'));
  assert.equal(help.stderr, '');
  const nothing = await spawned([]);
  assert.equal(nothing.code, 2);
  assert.equal(nothing.stdout, '');
  assert.equal(nothing.stderr, help.stdout);
  const version = await spawned(['--version']);
  assert.deepEqual([version.code, version.stderr], [0, '']);
  assert.match(version.stdout, /^\d+\.\d+\.\d+$/);
});

// [arguments, exit code, error code, what the message must name]
const REFUSALS: readonly (readonly [string[], number, string, RegExp])[] = [
  [['frobnicate'], 2, 'LPQ_USAGE', /frobnicate/],
  [
    ['quantize', `${model}/model.safetensors`, '-o', 'x', '--bits', '4'],
    4,
    'LPQ_FILE',
    /is a file, but lpq needs the dir/,
  ],
  [
    ['bench', 'model', '--shape', 'llama-3-70b', '--blocks', '80', '--m', '4096', '--device', 'cpu'],
    3,
    'LPQ_MEMORY',
    /80 blocks/,
  ],
  [['quantise', model], 2, 'LPQ_USAGE', /quantise/],
  [['eval', model, '--text', 'x', '--txt', 'x'], 2, 'LPQ_USAGE', /--txt/],
  [['eval', model], 2, 'LPQ_USAGE', /--text/],
  [['eval', model, '--text', 'x', '--ctx', 'many'], 2, 'LPQ_USAGE', /--ctx.*many/],
  [['eval', '--text', 'x'], 2, 'LPQ_USAGE', /dir/],
  [['eval', model, 'extra', '--text', 'x'], 2, 'LPQ_USAGE', /argument/],
  [['quantize', model, '--bits', '4'], 2, 'LPQ_USAGE', /--output/],
  [['quantize', model, '-o', 'never'], 2, 'LPQ_USAGE', /type/],
  [['quantize', model, '-o', 'never', '--bits', '9'], 2, 'LPQ_USAGE', /--bits.*9/],
  [['quantize', model, '-o', 'never', '--bits', 'four'], 2, 'LPQ_USAGE', /--bits.*four/],
  [['quantize', model, '-o', 'never', '--bits', '4', '--dtype', 'u4'], 2, 'LPQ_USAGE', /--bits and --dtype/],
  [['quantize', model, '-o', 'never', '--bits', '4', '--sym', '--asym'], 2, 'LPQ_USAGE', /--sym and --asym/],
  [['quantize', model, '-o', 'never', '--bits', '4', '--group-size', '0'], 2, 'LPQ_USAGE', /--group-size.*0/],
  [['quantize', model, '-o', 'never', '--bits', '4', '--group-size', 'row'], 2, 'LPQ_USAGE', /--group-size.*row/],
  [['quantize', model, '-o', 'never', '--bits', '4', '--group-size', '96'], 2, 'LPQ_GROUP_SIZE', /96.*256/],
  [['quantize', model, '-o', 'never', '--bits', '4', '--method', 'awq'], 2, 'LPQ_USAGE', /--method.*awq/],
  [['quantize', model, '-o', 'never', '--bits', '4', '--order', 'random'], 2, 'LPQ_USAGE', /--order.*random/],
  [['quantize', model, '-o', 'never', '--bits', '4', '--damp', '0'], 2, 'LPQ_USAGE', /--damp.*0/],
  [['quantize', model, '-o', 'never', '--bits', '4', '--seed', '-1'], 2, 'LPQ_USAGE', /--seed.*-1/],
  [['quantize', model, '-o', 'never', '--bits', '4', '--seed', '1.5'], 2, 'LPQ_USAGE', /--seed.*1\.5/],
  [['quantize', model, '-o', 'never', '--bits', '4', '--gptaq', '2'], 2, 'LPQ_USAGE', /--gptaq.*2/],
  [['quantize', model, '-o', 'never', '--bits', '4', '--sparsity', '1:2'], 2, 'LPQ_USAGE', /--sparsity.*1:2/],
  [['quantize', model, '-o', 'never', '--bits', '1', '--sparsity', '2:4'], 2, 'LPQ_SPARSITY', /u1/],
  [['quantize', model, '-o', 'never', '--bits', '4', '--scale-dtype', 'f12'], 2, 'LPQ_USAGE', /--scale-dtype.*f12/],
  [
    ['quantize', model, '-o', 'never', '--bits', '4', '--method', 'rtn', '--damp', '0.1'],
    2,
    'LPQ_USAGE',
    /--damp.*rtn/,
  ],
  [
    ['quantize', model, '-o', 'never', '--bits', '4', '--method', 'rtn', '--calib', 'x'],
    2,
    'LPQ_USAGE',
    /--calib.*rtn/,
  ],
  [['quantize', model, '-o', 'never', '--bits', '4', '--lm-head'], 2, 'LPQ_USAGE', /lm_head/],
  [
    ['quantize', model, '-o', 'never', '--bits', '4', '--resume', '--restart'],
    2,
    'LPQ_USAGE',
    /--resume and --restart/,
  ],
  [['quantize', model, '-o', 'never', '--dtype', 'u9'], 2, 'LPQ_TYPE', /u9/],
  [['quantize', model, '-o', 'never', '--dtype', '__proto__'], 2, 'LPQ_TYPE', /__proto__/],
  [['quantize', model, '-o', '', '--bits', '4'], 2, 'LPQ_USAGE', /output/],
  [['quantize', model, '-o', 'never', '--bits', '4', '--threads', '99999999'], 2, 'LPQ_USAGE', /--threads.*99999999/],
  [['quantize', model, '-o', 'never', '--dtype', 'f4e2m1', '--asym'], 2, 'LPQ_USAGE', /--asym.*f4e2m1/],
  [['quantize', model, '-o', 'never', '--bits', '4', '--pack', 'exl2'], 2, 'LPQ_TARGET', /exl2/],
  [['quantize', model, '-o', 'never', '--bits', '4', '--recipe', 'none.json'], 4, 'LPQ_FILE', /none\.json/],
  [['quantize', model, '-o', 'never', '--bits', '4', '--calib', 'none.txt'], 4, 'LPQ_FILE', /none\.txt/],
  [
    ['quantize', model, '-o', 'never', '--bits', '4', '--calib', 'package.json', '--seq-len', '100000'],
    4,
    'LPQ_CALIBRATION_TEXT',
    /package\.json/,
  ],
  [['quantize', model, '-o', 'never', '--bits', '4', '--device', 'tpu'], 2, 'LPQ_USAGE', /--device.*tpu/],
  [['quantize', model, '-o', 'never', '--bits', '4', '--threads', '0'], 2, 'LPQ_USAGE', /--threads.*0/],
  [['quantize', 'nowhere', '-o', 'never', '--bits', '4'], 4, 'LPQ_FILE', /nowhere/],
  [['quantize', 'src', '-o', 'never', '--bits', '4'], 4, 'LPQ_FILE', /src/],
  [['pack', model, '--target', 'marlin', '-o', 'never'], 4, 'LPQ_CANONICAL', /tiny-llama/],
  [['verify', model], 4, 'LPQ_ARTIFACT', /tiny-llama/],
  [['inspect', 'nowhere'], 4, 'LPQ_FILE', /nowhere/],
  [['eval', model, '--text', 'nowhere.txt'], 4, 'LPQ_FILE', /nowhere\.txt/],
  [['eval', model, '--text', 'package.json', '--ctx', '4096'], 4, 'LPQ_CALIBRATION_TEXT', /package\.json/],
  [['logits', model, '--ids', 'nowhere.safetensors', '-o', 'never.safetensors'], 4, 'LPQ_FILE', /nowhere/],
  [
    ['logits', model, '--ids', path.join(model, 'model.safetensors'), '-o', 'never.safetensors'],
    4,
    'LPQ_TENSOR_MISSING',
    /input_ids/,
  ],
];

for (const [args, exit, code, names] of REFUSALS) {
  const shown = args.map((arg) => arg.replace(`${root}/`, '')).join(' ');
  test(`lpq ${shown}: ${code}, exit ${exit}`, async () => {
    const ran = await lpq(args);
    assert.equal(ran.code, exit, ran.stderr);
    assert.equal(ran.stdout, '');
    const [first = ''] = ran.stderr.split('\n');
    assert.ok(first.startsWith(`${code}  `), ran.stderr);
    assert.match(first, names);
    assert.ok(!existsSync(path.join(root, 'never')) && !existsSync(path.join(root, 'never.safetensors')));
  });
}

test('a process ends with the code that the command line gives, and says the same', async () => {
  for (const code of [2, 3, 4]) {
    const [args = []] = REFUSALS.find(([, exit]) => exit === code) ?? [];
    // Memory that is free changes from one to the next.
    const [apart, here] = [await spawned(args), await lpq(args)].map((ran) => ({
      ...ran,
      stderr: ran.stderr.replace(/[\d.]+ GB free/, 'N GB free'),
    }));
    assert.deepEqual(apart, here);
  }
});

test('a name that means something elsewhere, and one that is misspelt, are pointed to what was meant', async () => {
  for (const [args, says] of [
    [
      ['quantize', model, '-o', 'never', '--bits', '4', '--target', 'awq'],
      /hint {6}.*lpq pack QUANTIZED --target NAME/,
    ],
    [['quantize', model, '-o', 'never', '--bits', '4', '--method', 'awq'], /hint {6}AWQ names a format, not a method/],
    [['quantize', model, '-o', 'never', '--bits', '4', '--method', 'gtpq'], /hint {6}Did you mean gptq\?/],
    [['quantize', model, '-o', 'never', '--dtype', 'nf4'], /hint {6}lpq has no NF4: take --bits 4/],
    [['explain', 'GROUPSIZE'], /hint {6}Did you mean LPQ_GROUP_SIZE\?/],
  ] as const) {
    const ran = await lpq(args);
    assert.equal(ran.code, 2, ran.stderr);
    assert.match(ran.stderr, says);
  }
});

test('an LPQ_THREADS that is no number of threads is refused', async () => {
  for (const wrong of ['99999999', 'many', '-1', '1.5']) {
    const ran = await spawned(['eval', model, '--text', 'package.json'], { LPQ_THREADS: wrong });
    assert.equal(ran.code, 2, ran.stderr);
    assert.match(ran.stderr, /^LPQ_USAGE {2}LPQ_THREADS /);
  }
});

test('the example of docs/errors.md is what the command prints', async () => {
  const [, command = '', printed] =
    /^\$ lpq (.+)\n([\s\S]+?)^```/m.exec(readFileSync(path.join(root, 'docs', 'errors.md'), 'utf8')) ?? [];
  const ran = await spawned(command.split(' '));
  assert.equal(ran.code, 2);
  assert.equal(`${ran.stderr.trimEnd()}\n`, printed);
});

test('a device that is not there is an environment error', async () => {
  for (const device of ['cuda:98', 'cuda:99']) {
    const ran = await lpq(['eval', model, '--text', 'x', '--device', device]);
    assert.equal(ran.code, 3);
    assert.match(ran.stderr, new RegExp(`^LPQ_DEVICE {2}--device ${device} `));
    assert.match(ran.stderr, / hint {6}Use --device cpu/);
  }
});

test('an existing output is refused before any work, whatever it is', async (t) => {
  const dir = scratch(t);
  mkdirSync(path.join(dir, 'full'));
  writeFileSync(path.join(dir, 'full', 'mine'), 'x');
  mkdirSync(path.join(dir, 'empty'));
  writeFileSync(path.join(dir, 'file'), '');
  mkdirSync(path.join(dir, 'fresh-marlin'));
  for (const [name, ...more] of [['full'], ['empty'], ['file'], ['full', '--dry-run'], ['fresh', '--pack', 'marlin']]) {
    const output = path.join(dir, name as string);
    const ran = await lpq(['quantize', model, '-o', output, '--bits', '4', ...more]);
    assert.equal(ran.code, 2);
    assert.match(ran.stderr, /^LPQ_OUTPUT_EXISTS {2}/);
  }
  assert.deepEqual(readdirSync(dir).sort(), ['empty', 'file', 'fresh-marlin', 'full']);
  assert.deepEqual(readdirSync(path.join(dir, 'full')), ['mine']);
});

test('with --json an error is one event on stdout and stderr stays empty', async () => {
  const ran = await spawned(['quantize', model, '-o', 'never', '--bits', '4', '--group-size', '96', '--json']);
  assert.equal(ran.code, 2);
  assert.equal(ran.stderr, '');
  const last = events(ran).at(-1);
  assert.equal(last?.event, 'error');
  assert.equal(last?.code, 'LPQ_GROUP_SIZE');
  assert.equal(last?.exit, 2);
  assert.match(String(last?.got), /^96; q_proj, .*\(K = 256\): 24 modules$/);
  assert.match(String(last?.message), /model\.layers\.0\.self_attn\.q_proj/);
  const parsing = await spawned(['frobnicate', '--json']);
  assert.deepEqual([parsing.stderr, events(parsing).length, events(parsing)[0]?.code], ['', 1, 'LPQ_USAGE']);
});

test('doctor finds node, the addon and the processor, and says what each lack costs', async () => {
  const ran = await spawned(['doctor', '--json']);
  assert.equal(ran.code, 0);
  assert.equal(ran.stderr, '');
  const [result] = events(ran);
  assert.equal(events(ran).length, 1);
  assert.equal(result?.ok, true);
  assert.ok(result?.findings);
  const findings = result.findings as { name: string; status: string; found: string; cost?: string }[];
  assert.deepEqual(
    findings.map(({ name }) => name),
    [
      'node',
      'native addon',
      'processor',
      'memory',
      'C++ compiler',
      'cmake',
      'ninja',
      'OpenBLAS',
      'CUDA driver',
      'GPUs',
      'nvcc',
    ],
  );
  for (const { status, found, cost } of findings) {
    assert.ok(found.length > 0);
    if (status === 'missing') assert.ok(cost);
  }
  assert.equal(findings[0]?.found, process.versions.node);
});

test('doctor without tools and without the addon says so and ends with 3', async (t) => {
  const bin = scratch(t);
  const ran = await spawned(['doctor', '--json'], { PATH: bin, LPQ_ADDON: '/dev/null', CXX: '' });
  assert.equal(ran.code, 3);
  const [result] = events(ran);
  assert.ok(result);
  const status = new Map((result.findings as { name: string; status: string }[]).map((f) => [f.name, f.status]));
  assert.equal(status.get('native addon'), 'broken');
  for (const name of ['C++ compiler', 'cmake', 'ninja', 'GPUs']) assert.equal(status.get(name), 'missing');
});

test('inspect describes a source checkpoint', async () => {
  const [found] = events(await spawned(['inspect', model, '--json']));
  // From share/tiny-llama/config.json by hand: 2048*256 embedding (tied), 4 blocks of 2*256*256 + 2*128*256 (attention),
  // 3*768*256 (MLP) and 2*256 (norms), a final norm of 256.
  const linears = 4 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 768 * 256);
  assert.equal(found?.parameters, 2048 * 256 + linears + 4 * 2 * 256 + 256);
  assert.equal(found?.kind, 'source');
  assert.ok(found?.model);
  const {
    architecture,
    blocks,
    linears: count,
    linearWeights,
    tiedHead,
    inputSizes,
  } = found.model as Record<string, unknown>;
  assert.deepEqual([architecture, blocks, count, linearWeights, tiedHead], ['llama', 4, 28, linears, true]);
  assert.deepEqual(inputSizes, { 256: 24, 768: 4 });
  assert.deepEqual(Object.keys(found?.dtypes as object), ['BF16']);
  const text = await spawned(['inspect', model]);
  assert.match(text.stdout, /^architecture {2}llama, 4 blocks/m);
  assert.equal(text.stderr, '');
});

test('dry-run lists every module with its rule, writes nothing, and a refusal decides the exit code', async (t) => {
  const dir = scratch(t);
  const recipe = path.join(dir, 'recipe.json');
  writeFileSync(
    recipe,
    JSON.stringify({
      groupSize: 64,
      rules: [
        { match: 'layers\\.0\\..*v_proj$', skip: true },
        { match: 'down_proj', bits: 8, groupSize: 'channel' },
        { match: 'layers\\.3\\.mlp\\.up_proj', groupSize: 100 },
        { match: 'no_such_module', skip: true },
      ],
    }),
  );
  const ran = await spawned([
    'quantize',
    model,
    '-o',
    path.join(dir, 'out'),
    '--bits',
    '3',
    '--recipe',
    recipe,
    '--dry-run',
    '--json',
  ]);
  assert.equal(ran.code, 2);
  const [first, result, warning, error] = events(ran);
  assert.match(String(first?.message), /groups of .* do not divide/);
  const modules = result?.modules as { name: string; action: string; type?: string; groupSize?: string }[];
  const of = (name: string) => modules.find((module) => module.name.endsWith(name));
  assert.equal(modules.length, 28);
  assert.equal(of('layers.0.self_attn.v_proj')?.action, 'skip');
  assert.equal(of('layers.1.self_attn.v_proj')?.type, 'i3');
  assert.equal(of('layers.1.self_attn.v_proj')?.groupSize, '64');
  assert.equal(of('layers.2.mlp.down_proj')?.type, 'i8');
  assert.equal(of('layers.2.mlp.down_proj')?.groupSize, 'channel');
  assert.equal(of('layers.3.mlp.up_proj')?.action, 'refuse');
  assert.deepEqual(result?.idleRules, ['no_such_module']);
  assert.match(String(warning?.message), /no_such_module/);
  assert.equal(error?.code, 'LPQ_GROUP_SIZE');
  assert.deepEqual(readdirSync(dir), ['recipe.json']);
});
