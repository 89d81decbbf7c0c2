import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { Artifact } from '../../../formats/artifact/read.js';
import { createRuntime, typed } from '../../../native/binding.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { planPack } from '../../../src/pack/plan.js';
import { designed, scratch } from '../../formats/scratch.js';
import { checkpointOf, type Made, made } from './checkpoint.js';

const runtime = createRuntime(2);
const div = (a: number, b: number): number => Math.floor(a / b);

/** B and s by the closed forms of the format, padding included. */
function expected(module: Made, bias: number): { b: Uint32Array; s: Uint16Array } {
  const [n, k] = module.declaration.shape;
  const [pn, pk] = [Math.ceil(n / 256) * 256, Math.ceil(k / 128) * 128];
  const b = new Uint32Array((pk / 16) * 2 * pn);
  for (let row = 0; row < pn; row++)
    for (let column = 0; column < pk; column++) {
      const code = row < n && column < k ? (module.codes[row * k + column]! + bias) % 16 : 8;
      const [kt, kr, nt, j, c] = [div(column, 16), column % 16, div(row, 64), div(row % 64, 16), row % 16];
      const word = kt * 2 * pn + nt * 128 + (4 * (c % 8) + div(kr % 8, 2)) * 4 + j;
      const nibble = 4 * (kr & 1) + 2 * div(c, 8) + div(kr, 8);
      b[word] = (b[word]! | (code << (4 * nibble))) >>> 0;
    }
  const { groups } = module;
  const s = new Uint16Array(groups * pn);
  for (let g = 0; g < groups; g++)
    for (let at = 0; at < pn; at++) {
      const p = groups === 1 ? at % 32 : at % 64;
      const column =
        groups === 1 ? at - p + 2 * div(p, 8) + 8 * div(p % 8, 2) + (p % 2) : at - p + div(p, 8) + 8 * (p % 8);
      if (column < n) s[g * pn + at] = module.scales[column * groups + g]!;
    }
  return { b, s };
}

test('marlin packs, pads and falls back', async () => {
  const dir = scratch();
  const modules = {
    'l.0.fits': made({ type: 'i4', n: 256, k: 256, group: 128 }),
    'l.1.unsigned': made({ type: 'u4', n: 512, k: 128, zeros: { kind: 'const', value: 8 }, seed: 2 }),
    'l.2.short': made({ type: 'i4', n: 72, k: 200, seed: 3 }),
    'l.3.narrow': made({ type: 'i4', n: 100, k: 384, group: 128, seed: 4 }),
    'l.4.one_group': made({ type: 'i4', n: 256, k: 128, group: 128, seed: 5 }),
    'l.5.float': made({ type: 'u4', n: 64, k: 128, zeros: { kind: 'float', dtype: 'f32' }, seed: 6 }),
    'l.6.three': made({ type: 'i3', n: 64, k: 128, seed: 7 }),
  };
  const input = await checkpointOf(dir, 'canonical', modules);
  const seen: string[] = [];
  const report = await packCheckpoint({
    input,
    target: 'marlin',
    output: path.join(dir, 'out'),
    runtime,
    onModule: (row, done, total) => seen.push(`${row.name} ${row.action} ${row.layout} ${done}/${total}`),
  });
  assert.deepEqual(seen, [
    'l.0.fits ok marlin 1/7',
    'l.1.unsigned ok marlin 2/7',
    'l.2.short pad marlin 3/7',
    'l.3.narrow pad marlin 4/7',
    'l.4.one_group ok marlin 5/7',
    'l.5.float fallback carried 6/7',
    'l.6.three fallback carried 7/7',
  ]);
  assert.equal(report.carriedTensors, 3);
  const artifact = Artifact.open(path.join(dir, 'out'));
  assert.deepEqual(await artifact.verifyTensors(), []);
  assert.deepEqual(await artifact.verifyFiles(), []);
  for (const name of ['l.0.fits', 'l.1.unsigned', 'l.2.short', 'l.3.narrow', 'l.4.one_group'] as const) {
    const { b, s } = expected(modules[name], name === 'l.1.unsigned' ? 0 : 8);
    assert.deepEqual(Buffer.from(artifact.tensor(`${name}.B`).bytes()), Buffer.from(b.buffer), name);
    assert.deepEqual(Buffer.from(artifact.tensor(`${name}.s`).bytes()), Buffer.from(s.buffer), name);
    const entry = artifact.module(name);
    assert.equal(entry.layout, 'marlin');
    assert.deepEqual(entry.canonical, input.module(name).sha256);
  }
  assert.deepEqual(artifact.tensor('l.2.short.B').shape, [256 / 16, 512]);
  assert.deepEqual(artifact.tensor('l.2.short.s').shape, [1, 256]);
  assert.deepEqual(artifact.module('l.2.short').padded, [256, 256]);
  assert.match(artifact.module('l.2.short').notes[0]!, /Padded from N = 72, K = 200/);
  assert.match(artifact.module('l.4.one_group').notes[0]!, /order of per-channel ones/);
  const left = artifact.module('l.5.float');
  assert.equal(left.layout, 'carried');
  assert.match(
    left.notes[0]!,
    /Left in canonical form, because its zero points are floats\. Quantize it with integer zero points\./,
  );
  assert.deepEqual(Object.keys(left.tensors), ['l.5.float.codes', 'l.5.float.scales', 'l.5.float.zeros']);
  assert.equal(left.tensors['l.5.float.codes'], left.canonical.codes);
  assert.deepEqual([...typed<Uint16Array>(artifact.tensor('model.embed_tokens.weight'))], [1, 2, 3, 4, 5, 6, 7, 8]);
  assert.equal(readFileSync(path.join(dir, 'out', 'tokenizer.json'), 'utf8'), '{"made": "up"}\n');
  assert.deepEqual((artifact.config as { quantization_config: unknown }).quantization_config, {
    quant_method: 'lpq',
    format: 'lpq-artifact',
    version: 1,
    target: 'marlin',
    manifest: 'lpq.json',
  });
  // The same bytes again, with another number of threads.
  await packCheckpoint({ input, target: 'marlin', output: path.join(dir, 'again'), runtime: createRuntime(1) });
  for (const file of ['lpq.json', 'model.safetensors', 'config.json'])
    assert.deepEqual(readFileSync(path.join(dir, 'again', file)), readFileSync(path.join(dir, 'out', file)), file);
  artifact.close();
  input.close();
});

test('W[n][k] = k gives the words of lane 0', async () => {
  const dir = scratch();
  const [n, k] = [256, 128];
  const base = made({ type: 'u4', n, k, zeros: { kind: 'const', value: 8 } });
  const rows = new Uint8Array((n * k) / 2);
  for (let i = 0; i < rows.length; i++) rows[i] = ((2 * i) % 16) | (((2 * i + 1) % 16) << 4);
  const input = await checkpointOf(dir, 'canonical', { m: { ...base, data: { ...base.data, codes: rows } } });
  await packCheckpoint({ input, target: 'marlin', output: path.join(dir, 'out'), runtime });
  const words = typed<Int32Array>(Artifact.open(path.join(dir, 'out')).tensor('m.B'));
  // Words 0-3 are lane 0, words 4-7 lane 1 (the published example).
  assert.deepEqual(
    [...words.subarray(0, 8)].map((word) => (word >>> 0).toString(16)),
    ['91918080', '91918080', '91918080', '91918080', 'b3b3a2a2', 'b3b3a2a2', 'b3b3a2a2', 'b3b3a2a2'],
  );
});

test('reasons and remedies', async () => {
  const dir = scratch();
  const modules = {
    ok: made({ type: 'i4', n: 64, k: 128 }),
    float: made({ type: 'f4e2m1', n: 64, k: 128 }),
    order: made({ type: 'i4', n: 64, k: 200, group: 40, extras: ['g_idx'] }),
    both: made({ type: 'i4', n: 64, k: 256, group: 128, extras: ['g_idx', 'permutation'] }),
    channel: made({ type: 'u4', n: 64, k: 100, zeros: { kind: 'int', dtype: 'u8' } }),
    sparse: made({ type: 'i4', n: 64, k: 128, extras: ['mask'] }),
    global: made({ type: 'i4', n: 64, k: 128, global: true }),
    bf16: made({ type: 'i4', n: 64, k: 128, scaleDtype: 'bf16' }),
    group: made({ type: 'i4', n: 64, k: 128, group: 16 }),
    blocks: made({ type: 'i4', n: 64, k: 128, block: 2 }),
    floats: made({ type: 'u4', n: 64, k: 128, zeros: { kind: 'float', dtype: 'f32' } }),
    fraction: made({ type: 'u4', n: 64, k: 128, zeros: { kind: 'const', value: 7.5 } }),
    outside: made({ type: 'u4', n: 64, k: 128, zeros: { kind: 'int', dtype: 'i16' }, zeroRange: [-2, 5] }),
  };
  const input = await checkpointOf(dir, 'canonical', modules);
  const { decisions, refusal } = planPack(input, 'marlin');
  assert.equal(refusal, undefined);
  const reason = (name: string): string => {
    const decision = decisions.get(name)!;
    return decision.action === 'fallback' ? `${decision.reason} ${decision.remedy}` : decision.action;
  };
  assert.equal(reason('ok'), 'pad');
  assert.match(reason('float'), /f4e2m1 codes, not integers/);
  assert.match(reason('order'), /different numbers of input features/);
  assert.match(reason('both'), /permuted, and it also has g_idx/);
  assert.match(reason('channel'), /K = 100 is not a multiple of 128/);
  assert.match(reason('sparse'), /2:4/);
  assert.match(reason('global'), /second level/);
  assert.match(reason('bf16'), /bf16, and MARLIN reads f16/);
  assert.match(reason('group'), /groups have 16 weights/);
  assert.match(reason('blocks'), /covers 2 output features/);
  assert.match(reason('floats'), /zero points are floats/);
  assert.match(reason('fraction'), /7.5 is not a 4-bit integer/);
  assert.match(reason('outside'), /-2 to 5, exceed the 4-bit range/);
  input.close();
});

test('a checkpoint that the target cannot take at all is refused and leaves nothing', async () => {
  const dir = scratch();
  const input = await checkpointOf(dir, 'canonical', { a: made({ type: 'i3', n: 64, k: 128 }) });
  const output = path.join(dir, 'out');
  const request = { input, output, runtime };
  await assert.rejects(
    packCheckpoint({ ...request, target: 'marlin' }),
    designed('LPQ_TARGET', /target marlin takes no module .* a: it has 3-bit codes.* Quantize it with --bits 4/s),
  );
  await assert.rejects(
    packCheckpoint({ ...request, target: 'exl2' }),
    designed('LPQ_TARGET', 'sm90, marlin, sparse_marlin, turbomind, turbomind_sm70, tilus, comet, w4a8, gptq, gptq_v2'),
  );
  const stop = new AbortController();
  stop.abort();
  await assert.rejects(
    packCheckpoint({ ...request, target: 'gptq', signal: stop.signal }),
    designed('LPQ_ABORTED', /interrupted/),
  );
  assert.equal(existsSync(output), false);
  await packCheckpoint({ ...request, target: 'gptq' });
  await assert.rejects(packCheckpoint({ ...request, target: 'gptq' }), designed('LPQ_OUTPUT_EXISTS', 'out'));
  input.close();
});
