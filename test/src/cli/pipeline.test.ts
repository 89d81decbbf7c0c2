import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, openSync, readdirSync, readFileSync, readSync, writeFileSync, writeSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { CALIB, events, lpq, model, root, scratch } from './lpq.js';

const SMALL = ['--samples', '2', '--seq-len', '64', ...CALIB];

/** sha256 of every file of a directory. */
function hashes(dir: string): Record<string, string> {
  const names = readdirSync(dir, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
  return Object.fromEntries(
    names
      .map((entry) => path.join(entry.parentPath, entry.name))
      .sort()
      .map((file) => [path.relative(dir, file), createHash('sha256').update(readFileSync(file)).digest('hex')]),
  );
}

test('quantize to 2:4, pack for mma.sp, verify and eval', async (t) => {
  const dir = scratch(t);
  const quantized = path.join(dir, 'sparse');
  const packed = `${quantized}-sparse_marlin`;
  const args = ['--bits', '4', '--sparsity', '2:4', '--device', 'cpu', ...SMALL, '--pack', 'sparse_marlin'];
  const made = await lpq(['quantize', model, '-o', quantized, ...args]);
  assert.equal(made.code, 0, made.stderr);
  assert.match(made.stdout, /28 modules to 3\.125 bits per weight/);
  const verified = await lpq(['verify', packed, '--against', quantized, '--json']);
  assert.equal(verified.code, 0, verified.stderr);
  const [report] = events(verified) as [{ modules: { layout: string }[] }];
  assert.equal(report.modules.filter(({ layout }) => layout === 'sparse_marlin').length, 28);
  const text = path.join(dir, 'text.txt');
  writeFileSync(text, 'The whale came up beside the ship, and the men looked at it for a long while. '.repeat(8));
  const ppl = await Promise.all(
    [quantized, packed].map(async (place) => {
      const evaluated = await lpq(['eval', place, '--text', text, '--ctx', '64', '--device', 'cpu', '--json']);
      assert.equal(evaluated.code, 0, evaluated.stderr);
      return events(evaluated).find(({ event }) => event === 'result')?.ppl;
    }),
  );
  assert.ok(typeof ppl[0] === 'number');
  assert.equal(ppl[1], ppl[0]);
});

test('quantize, pack, verify, inspect and eval, as a user would', async (t) => {
  const dir = scratch(t);
  const quantized = path.join(dir, 'q4');
  const packed = path.join(dir, 'q4-marlin');
  const made = await lpq(['quantize', model, '-o', quantized, '--bits', '4', ...SMALL, '--pack', 'marlin', '--json']);
  assert.equal(made.code, 0, made.stderr + made.stdout);
  assert.equal(made.stderr, '');
  const lines = events(made);
  assert.deepEqual(
    lines.filter(({ event }) => event === 'result').map(({ command }) => command),
    ['quantize', 'pack'],
  );
  assert.equal(lines.filter(({ event }) => event === 'module').length, 28 * 2);
  const calibration = lines.find(({ event }) => event === 'calibration');
  assert.deepEqual([calibration?.sequences, calibration?.tokens, calibration?.seed], [2, 128, 0]);
  assert.deepEqual(readdirSync(dir).sort(), ['q4', 'q4-marlin', 'q4.report.html', 'q4.report.json']);

  const verified = await lpq(['verify', packed, '--against', quantized, '--json']);
  assert.equal(verified.code, 0, verified.stderr);
  assert.deepEqual([events(verified).length, events(verified)[0]?.ok], [1, true]);

  for (const [place, kind] of [
    [quantized, 'lpq-canonical'],
    [packed, 'lpq-artifact'],
  ] as const) {
    const [found] = events(await lpq(['inspect', place, '--json', '--check']));
    assert.equal(found?.kind, kind);
    assert.ok(found);
    assert.equal((found.modules as unknown[]).length, 28);
    // i4 codes and an f16 scale for 128 of them: 4.125 bits; MARLIN pads the k and v projections to twice their size,
    // which are 2 * 128*256 of the 786432 weights of a block.
    const padding = kind === 'lpq-artifact' ? 1 + (2 * 128 * 256) / 786432 : 1;
    assert.ok(Math.abs((found?.bitsPerWeight as number) - 4.125 * padding) < 1e-9, String(found?.bitsPerWeight));
  }

  const text = path.join(dir, 'text.txt');
  writeFileSync(text, readFileSync(path.join(root, 'share', 'text', 'books-valid.txt'), 'utf8').slice(0, 12_000));
  const ppl = async (place: string) => {
    const ran = await lpq(['eval', place, '--text', text, '--ctx', '128', '--json']);
    assert.equal(events(ran).length, 1, ran.stdout);
    return events(ran)[0]?.ppl as number;
  };
  const [source, canonical, artifact] = [await ppl(model), await ppl(quantized), await ppl(packed)];
  assert.ok(canonical > source * 0.98 && canonical < source * 1.25, `${source} -> ${canonical}`);
  // Packing changes no weight: two decoders, f32 arithmetic in the same order.
  assert.ok(Math.abs(artifact / canonical - 1) < 1e-6, `${canonical} and ${artifact}`);

  // One bit of a packed tensor: verify names the module and ends with 1.
  const shard = path.join(packed, 'model.safetensors');
  const file = openSync(shard, 'r+');
  const header = Buffer.alloc(8);
  readSync(file, header, 0, 8, 0);
  const json = Buffer.alloc(Number(header.readBigUInt64LE()));
  readSync(file, json, 0, json.length, 8);
  const [name, entry] = Object.entries(
    JSON.parse(json.toString()) as Record<string, { data_offsets: [number, number] }>,
  ).find(([key]) => key.startsWith('model.layers.2.mlp.up_proj.')) as [string, { data_offsets: [number, number] }];
  const at = 8 + json.length + entry.data_offsets[0] + 5;
  const byte = Buffer.alloc(1);
  readSync(file, byte, 0, 1, at);
  writeSync(file, Buffer.of((byte[0] as number) ^ 1), 0, 1, at);
  const wrong = await lpq(['verify', packed, '--json']);
  assert.equal(wrong.code, 1, name);
  assert.deepEqual(
    events(wrong).map(({ event }) => event),
    ['result', 'error'],
  );
  assert.equal(events(wrong)[1]?.code, 'LPQ_VERIFY');
  assert.match(JSON.stringify(events(wrong)[0]?.failures), /model\.layers\.2\.mlp\.up_proj/);
});

test('the same command gives the same bytes, with one thread and with two', async (t) => {
  const dir = scratch(t);
  const recipe = path.join(dir, 'recipe.json');
  writeFileSync(recipe, JSON.stringify({ rules: [{ match: 'layers\\.[12]\\.|(gate|up)_proj', skip: true }] }));
  const all: Record<string, string>[] = [];
  for (const [i, threads] of ['1', '2', '2'].entries()) {
    const output = path.join(dir, String(i));
    const ran = await lpq([
      'quantize',
      model,
      '-o',
      output,
      '--bits',
      '3',
      '--asym',
      ...SMALL,
      '--recipe',
      recipe,
      '--threads',
      threads,
      '--quiet',
    ]);
    assert.equal(ran.code, 0, ran.stderr);
    assert.equal(ran.stderr, '');
    all.push(hashes(output));
  }
  assert.ok(Object.keys(all[0] as object).length >= 4);
  assert.deepEqual(all[1], all[0]);
  assert.deepEqual(all[2], all[0]);
});

for (const [signals, what] of [
  [1, 'one Ctrl-C lets the run clean up'],
  [2, 'a second Ctrl-C leaves at once'],
] as const)
  test(`${what}: exit 130, and nothing half-written is left`, async (t) => {
    const dir = scratch(t);
    const output = path.join(dir, 'parent', 'out');
    const child = spawn(
      process.execPath,
      [path.join(root, 'bin', 'lpq.js'), 'quantize', model, '-o', output, '--bits', '2', '--verbose'],
      {
        stdio: ['ignore', 'pipe', 'pipe'],
      },
    );
    let stderr = '';
    let sent = false;
    child.stderr.on('data', (chunk: Buffer) => {
      stderr += chunk.toString();
      // A module is done, but no block: the partial output exists and the queue is at work.
      if (sent || !stderr.includes('q_proj')) return;
      sent = true;
      assert.ok(readdirSync(path.dirname(output)).includes('out.partial'));
      for (let i = 0; i < signals; i++) child.kill('SIGINT');
    });
    const started = performance.now();
    const code = await new Promise((resolve) => child.on('close', resolve));
    assert.ok(sent, stderr);
    assert.equal(code, 130, stderr);
    assert.ok(performance.now() - started < 60_000);
    if (signals === 1) assert.match(stderr, /LPQ_ABORTED {2}the run was interrupted/);
    assert.ok(!existsSync(output));
    assert.deepEqual(readdirSync(dir), []);
  });

test('logits refuses an existing output and writes a safetensors file', async (t) => {
  const dir = scratch(t);
  const ids = path.join(dir, 'ids.safetensors');
  const header = Buffer.from(JSON.stringify({ input_ids: { dtype: 'I32', shape: [2, 3], data_offsets: [0, 24] } }));
  const size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(header.length));
  writeFileSync(ids, Buffer.concat([size, header, Buffer.from(Int32Array.of(1, 2, 3, 4, 5, 6).buffer)]));
  const output = path.join(dir, 'logits.safetensors');
  const ran = await lpq(['logits', model, '--ids', ids, '-o', output, '--json']);
  assert.equal(ran.code, 0, ran.stderr);
  assert.deepEqual(events(ran)[0]?.shape, [2, 3, 2048]);
  assert.ok(readFileSync(output).length > 2 * 3 * 2048 * 4);
  const again = await lpq(['logits', model, '--ids', ids, '-o', output]);
  assert.equal(again.code, 2);
  assert.match(again.stderr, /^LPQ_OUTPUT_EXISTS/);
  assert.deepEqual(readdirSync(dir).sort(), ['ids.safetensors', 'logits.safetensors']);
});

test('what is true of many modules is said once, and a window beyond the reach of the model is warned of', async (t) => {
  const dir = scratch(t);
  const [quantized, packed] = [path.join(dir, 'q4'), path.join(dir, 'q4-marlin')];
  const made = await lpq([
    'quantize',
    model,
    '-o',
    quantized,
    '--bits',
    '4',
    '--method',
    'rtn',
    '--no-report',
    '--quiet',
  ]);
  assert.equal(made.code, 0, made.stderr);
  const told = await lpq(['pack', quantized, '--target', 'marlin', '-o', packed, '--verbose']);
  assert.equal(told.code, 0, told.stderr);
  assert.equal((told.stdout + told.stderr).match(/ padded to 256 x 256/g)?.length, 8);
  assert.equal((told.stdout + told.stderr).match(/Padded from N = 128/g)?.length, 1);
  const text = path.join(dir, 'text.txt');
  writeFileSync(text, readFileSync(path.join(root, 'share/text/books-valid.txt')).subarray(0, 6000));
  for (const [ctx, warned] of [
    [1024, false],
    [1025, true],
  ] as const) {
    const ran = await lpq(['eval', packed, '--text', text, '--ctx', String(ctx), '--device', 'cpu']);
    assert.equal(ran.code, 0, ran.stderr);
    assert.equal(/1025 tokens are longer than the 1024 .* --ctx 1024/.test(ran.stderr), warned, ran.stderr);
  }
});
