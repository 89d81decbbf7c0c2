import assert from 'node:assert/strict';
import { renameSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { SourceCheckpoint } from '../../../formats/canonical/source.js';
import { GgufFile } from '../../../formats/gguf/read.js';
import { meanSquares } from '../../../formats/imatrix/importance.js';
import { readImportance } from '../../../formats/imatrix/read.js';
import { createRuntime, typed } from '../../../native/binding.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { CALIB, lpq, model, scratch } from '../cli/lpq.js';
import { forged } from '../verify/gguf-forge.js';
import { decodeMatrix } from './gguf-blocks.js';

const run = async (...args: string[]) => {
  const ran = await lpq([...args, '--quiet']);
  assert.equal(ran.code, 0, ran.stderr);
};

test('an importance matrix weighs the search: less weighted error, proved with the file, refused with another', async (t) => {
  const dir = scratch(t);
  const at = (name: string) => path.join(dir, name);
  const few = [...CALIB, '--samples', '8', '--seq-len', '64'];
  await run('quantize', model, '--save-stats', at('stats'), '--save-imatrix', at('im.gguf'), ...few);
  await run('quantize', model, '-o', at('q'), '--bits', '8', '--group-size', '32', '--method', 'rtn', '--no-report');
  const pack = ['pack', at('q'), '--target', 'gguf-q2_k', '--source', model];
  await run(...pack, '-o', at('plain'));
  await run(...pack, '-o', at('weighed'), '--imatrix', at('im.gguf'));
  await run('verify', at('weighed'), '--against', at('q'), '--source', model, '--imatrix', at('im.gguf'));

  const importance = await readImportance(at('im.gguf'));
  const source = SourceCheckpoint.open(model);
  const original = typed<Uint16Array>(await source.tensor('model.layers.1.mlp.up_proj.weight'));
  const weights = new Float32Array(Uint32Array.from(original, (bits) => bits << 16).buffer);
  const means = meanSquares(importance.entries.get('blk.1.ffn_up.weight')!, 256) as Float64Array;
  const error = (name: string): number => {
    const gguf = GgufFile.open(path.join(at(name), 'model.gguf'));
    const { rows, columns } = gguf.matrix('blk.1.ffn_up.weight');
    const values = decodeMatrix('q2_k', gguf.tensor('blk.1.ffn_up.weight').bytes(), rows, columns);
    gguf.close();
    return weights.reduce((sum, weight, i) => sum + means[i % columns]! * (weight - values[i]!) ** 2, 0);
  };
  assert.ok(error('weighed') < error('plain'), `${error('weighed')} and ${error('plain')}`);
  source.close();

  const runtime = createRuntime(1);
  const failures = async (importance: string | undefined) =>
    (await verifyArtifact({ dir: at('weighed'), against: at('q'), source: model, importance, runtime })).failures;
  assert.deepEqual(await failures(undefined), []);
  // A file of another text says other numbers of chunks.
  await run(
    'quantize',
    model,
    '--save-stats',
    at('stats2'),
    '--save-imatrix',
    at('other'),
    ...CALIB,
    '--samples',
    '2',
    '--seq-len',
    '64',
  );
  renameSync(at('im.gguf'), at('kept'));
  renameSync(at('other'), at('im.gguf'));
  assert.match(JSON.stringify(await failures(at('im.gguf'))), /quantize\.imatrix\.chunks_count/);
  renameSync(at('kept'), at('im.gguf'));
  // Blocks of half the scale: their codes are no longer the nearest.
  const halved = {
    gguf: ({ tensors }: { tensors: { name: string; data: Buffer }[] }) => {
      const { data } = tensors.find(({ name }) => name === 'blk.0.attn_k.weight')!;
      for (let block = 0; block < data.length; block += 84)
        data.writeUInt16LE(Math.max(0, data.readUInt16LE(block + 80) - 0x400), block + 80);
    },
  };
  await forged(at('weighed'), halved as Parameters<typeof forged>[1], async (other) => {
    const { failures: found } = await verifyArtifact({
      ...{ dir: other, against: at('q'), source: model, importance: at('im.gguf'), runtime },
    });
    assert.match(JSON.stringify(found), /blk\.0\.attn_k\.weight/);
  });
});

test('--imatrix is refused where nothing is searched for; --save-imatrix without statistics', async (t) => {
  const dir = scratch(t);
  await run('quantize', model, '-o', path.join(dir, 'q'), '--bits', '4', '--method', 'rtn', '--no-report');
  const packed = await lpq([
    'pack',
    path.join(dir, 'q'),
    '--target',
    'gguf',
    '-o',
    path.join(dir, 'o'),
    '--imatrix',
    'x',
  ]);
  assert.deepEqual([packed.code, /--imatrix has no effect with target gguf/.test(packed.stderr)], [2, true]);
  const absent = await lpq([
    'pack',
    path.join(dir, 'q'),
    '--target',
    'gguf-q4_k',
    '-o',
    path.join(dir, 'o'),
    '--imatrix',
    'x',
  ]);
  assert.deepEqual([absent.code, /LPQ_IMATRIX/.test(absent.stderr)], [4, true]);
  const saved = await lpq(['quantize', model, '-o', path.join(dir, 'n'), '--bits', '4', '--save-imatrix', 'x.gguf']);
  assert.deepEqual([saved.code, /--save-imatrix has no effect without --save-stats/.test(saved.stderr)], [2, true]);
});
