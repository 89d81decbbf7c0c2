import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { gptqTensors, packedTensors } from '../../formats/foreign/encode.js';
import { gptqSettings, packedSettings, plain, quantized, writeModel } from '../../formats/foreign/mini.js';
import { scratch } from '../../formats/scratch.js';
import { BAIT, catastrophic } from '../calibrate/confined/hostile.js';
import { lpq, model } from './lpq.js';

const dir = scratch();
const LPQ = fileURLToPath(new URL('../../../../bin/lpq.js', import.meta.url));
const hostile = catastrophic(path.join(dir, 'hostile'));
const text = path.join(dir, 'text.txt');
writeFileSync(text, BAIT.repeat(2000));

/** Seconds of processor time of the processes that `pid` started. */
function used(pid: number): number {
  const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ').filter(Boolean);
  return children.reduce((sum, child) => {
    const stat = readFileSync(`/proc/${child}/stat`, 'latin1');
    return sum + Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[11]) / 100;
  }, 0);
}

for (const [signal, args] of [
  [
    'SIGINT',
    [
      'quantize',
      hostile,
      '-o',
      path.join(dir, 'out'),
      '--method',
      'gptq',
      '--calib',
      text,
      '--bits',
      '4',
      '--device',
      'cpu',
    ],
  ],
  ['SIGTERM', ['eval', hostile, '--text', text, '--ctx', '16', '--device', 'cpu']],
  ['SIGINT', ['generate', hostile, '--prompt', BAIT, '--device', 'cpu']],
] as const)
  test(`${signal} ends lpq ${args[0]} while a tokenizer runs for ever`, async () => {
    const child = spawn(process.execPath, [LPQ, ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
    let stderr = '';
    child.stderr.on('data', (data) => (stderr += data));
    const exit = new Promise<number | null>((resolve) => child.on('exit', resolve));
    let over = false;
    void exit.then(() => (over = true));
    // Opening this tokenizer takes a tenth of it.
    const pid = child.pid as number;
    while (!over && used(pid) < 1.5) await new Promise((resolve) => setTimeout(resolve, 50));
    const sent = performance.now();
    child.kill(signal);
    assert.equal(await exit, 130, stderr);
    // It would leave by force after five seconds.
    assert.ok(performance.now() - sent < 4500, `${performance.now() - sent} ms`);
    assert.match(stderr, /LPQ_ABORTED/);
    assert.ok(!existsSync(path.join(dir, 'out')));
  });

/** Takes for ever on every path of a module. */
const RULE = '(((([a-z_.0-9]+)+)+)+)+!';

test('a foreign expression that never ends is LPQ_BUDGET to whoever reads the directory', async () => {
  const codes = [...quantized({ bits: 4, group: 32, symmetric: true })];
  const gptq = await writeModel(path.join(dir, 'gptq'), {
    tensors: [...plain, ...codes.flatMap(([name, each]) => gptqTensors(name, each, 'v1'))],
    settings: gptqSettings(4, 32, { dynamic: { [`+:${RULE}`]: { bits: 8 } } }),
  });
  const compressed = await writeModel(path.join(dir, 'compressed'), {
    tensors: [...plain, ...codes.flatMap(([name, each]) => packedTensors(name, each, { symmetric: true }))],
    settings: { ...packedSettings(4, 32, true), ignore: ['lm_head', `re:${RULE}`] },
  });
  for (const args of [
    ['pack', compressed, '--target', 'gptq', '-o', path.join(dir, 'packed')],
    ['eval', gptq, '--text', text, '--device', 'cpu'],
  ]) {
    const ran = await lpq(args);
    assert.equal(ran.code, 4, `${args[0]}: ${ran.stdout}${ran.stderr}`);
    assert.match(ran.stderr, /LPQ_BUDGET .*'(dynamic|ignore)' holds a regular expression/, args[0]);
  }
  assert.match(
    (await lpq(['inspect', gptq])).stdout,
    /problem .*'dynamic' holds a regular expression that takes too long/,
  );
  const doctor = await lpq(['doctor', compressed]);
  assert.notEqual(doctor.code, 0);
  // Once, not once for each module.
  assert.equal(doctor.stdout.match(/takes too long/g)?.length, 1, doctor.stdout);
});

test('verify reports a rule of its artifact that never ends', async () => {
  const [quantizedDir, packed] = [path.join(dir, 'q'), path.join(dir, 'p')];
  for (const args of [
    ['quantize', model, '--bits', '4', '--group-size', '128', '-o', quantizedDir, '--method', 'rtn', '--device', 'cpu'],
    ['pack', quantizedDir, '--target', 'gptq', '-o', packed],
  ])
    assert.equal((await lpq(args)).code, 0);
  for (const [name, at] of [
    ['config.json', (json: Json) => json.quantization_config as Json],
    ['quantize_config.json', (json: Json) => json],
  ] as const) {
    const file = path.join(packed, name);
    const json = JSON.parse(readFileSync(file, 'utf8')) as Json;
    at(json).dynamic = { [`-:${RULE}`]: {} };
    writeFileSync(file, JSON.stringify(json));
  }
  const ran = await lpq(['verify', packed]);
  assert.equal(ran.code, 1, ran.stderr);
  assert.match(
    ran.stdout + ran.stderr,
    /quantization_config: 'dynamic' holds a regular expression that takes too long/,
  );
});

type Json = Record<string, unknown>;
