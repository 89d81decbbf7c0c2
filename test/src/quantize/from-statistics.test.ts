import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { cpSync, existsSync, readdirSync, readFileSync, truncateSync, unlinkSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { writeSafetensors } from '../../../formats/safetensors/write.js';
import type { StatisticsManifest } from '../../../formats/statistics/schema.js';
import { createRuntime, fromTyped } from '../../../native/binding.js';
import { collectStatistics } from '../../../src/quantize/collect.js';
import { type QuantizeRequest, quantizeCheckpoint, type Resumption } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { designed } from '../../formats/scratch.js';
import { PlainFile } from '../model/fixtures.js';
import {
  calibration,
  hashes,
  quick,
  request,
  rt,
  saved,
  saving,
  scratch,
  tiny,
  tokens,
  triangleOf,
  withSaved,
} from './saved-statistics.js';

test('every width is solved from what was saved, module by module, as the solver does alone', async (t) => {
  await saving;
  const dir = scratch(t);
  const linears = ['model.layers.0.self_attn.k_proj', 'model.layers.2.mlp.up_proj', 'model.layers.3.mlp.down_proj'];
  const feedOf = (name: string) => `${name.replace('k_proj', 'q_proj').replace('up_proj', 'gate_proj')}.moments`;
  for (const scheme of [schemeFromOptions({ bits: 4, groupSize: 64 }), schemeFromOptions({ bits: 3, asym: true })]) {
    const output = path.join(dir, scheme.type.name);
    const summary = await withSaved(saved, (statistics) =>
      quantizeCheckpoint([rt], request(output, { statistics, scheme })),
    );
    assert.equal(summary.modules.length, 28);
    for (const { tokens: rows, relativeError } of summary.modules)
      assert.ok(rows === 210 && relativeError !== null && relativeError > 0 && relativeError < 0.2);
    const checkpoint = CanonicalCheckpoint.open(output);
    const { calibration: recorded, options } = checkpoint.manifest.provenance;
    assert.deepEqual(recorded, { name: 'made', sha256: '0'.repeat(64), sequences: 3, tokens: 210, seed: 0 });
    assert.equal(
      options.stats,
      createHash('sha256')
        .update(readFileSync(path.join(saved, 'lpq.json')))
        .digest('hex'),
    );
    for (const name of linears) {
      const weight = new PlainFile(path.join(tiny, 'model.safetensors')).tensor(`${name}.weight`);
      const k = weight.shape[1] as number;
      const triangle = triangleOf(saved, feedOf(name));
      const full = Float64Array.from({ length: k * k }, (_, at) => {
        const [i, j] = [Math.floor(at / k), at % k];
        return triangle[(Math.max(i, j) * (Math.max(i, j) + 1)) / 2 + Math.min(i, j)] as number;
      });
      const solver = quick.feed(rt, { h: fromTyped('f64', [k, k], full), tokens: 210 });
      const { codes, scales } = await solver.solve(name, weight, scheme);
      await rt.sync();
      const stored = (part: string) => checkpoint.weights.tensor(`${name}.${part}`);
      assert.deepEqual(Buffer.from(stored('codes').bytes()), Buffer.from(codes.bytes()));
      assert.deepEqual(Buffer.from(stored('scales').bytes()), Buffer.from(scales.bytes()));
      solver.dispose();
    }
    checkpoint.close();
  }
});

test('a stopped run goes on with the same statistics only', async (t) => {
  await saving;
  const dir = scratch(t);
  const output = path.join(dir, 'out');
  await withSaved(saved, async (statistics) => {
    await quantizeCheckpoint([rt], request(path.join(dir, 'whole'), { statistics }));
    let blocks = 0;
    await assert.rejects(
      quantizeCheckpoint([rt], request(output, { statistics }), {
        onStage: () => {
          if (blocks++ === 2) throw new Error('stopped here');
        },
      }),
      /stopped here/,
    );
    assert.ok(existsSync(`${output}.partial`));
    const other = path.join(dir, 'other');
    await collectStatistics([rt], { source: tiny, output: other, calibration: tokens(2, 50, 2048), version: 'test' });
    await withSaved(other, (strange) =>
      assert.rejects(
        quantizeCheckpoint([rt], request(output, { statistics: strange, partial: 'resume' })),
        designed('LPQ_RESUME', /another --stats/),
      ),
    );
    await assert.rejects(
      quantizeCheckpoint([rt], request(output, { calibration, partial: 'resume' })),
      designed('LPQ_RESUME', /--stats/),
    );
    let found: Resumption | undefined;
    await quantizeCheckpoint([rt], request(output, { statistics, partial: 'resume' }), {
      onResume: (resumption) => {
        found = resumption;
      },
    });
    assert.equal(found?.blocks, 2);
  });
  assert.deepEqual(hashes(output), hashes(path.join(dir, 'whole')));
});

test('statistics are taken anew only where there are none, and leave nothing when they fail', async (t) => {
  await saving;
  const dir = scratch(t);
  const job = { source: tiny, calibration, version: 'test' };
  await assert.rejects(collectStatistics([rt], { ...job, output: saved }), designed('LPQ_OUTPUT_EXISTS', /saved/));
  await assert.rejects(
    collectStatistics(
      [rt],
      { ...job, output: path.join(dir, 'out') },
      {
        onFeed: () => {
          throw new Error('stopped here');
        },
      },
    ),
    /stopped here/,
  );
  assert.deepEqual(readdirSync(dir), []);
  const again = path.join(dir, 'again');
  await collectStatistics([createRuntime(1)], { ...job, output: again });
  assert.deepEqual(hashes(again), hashes(saved)); // on any number of threads
});

test('damaged, incomplete and foreign statistics are refused', async (t) => {
  await saving;
  const dir = scratch(t);
  let copies = 0;
  const broken = (
    damage: (copy: string, edit: (change: (manifest: StatisticsManifest) => unknown) => void) => void,
  ) => {
    const copy = path.join(dir, `copy-${copies++}`);
    cpSync(saved, copy, { recursive: true });
    const place = path.join(copy, 'lpq.json');
    damage(copy, (change) => {
      const manifest = JSON.parse(readFileSync(place, 'utf8')) as StatisticsManifest;
      writeFileSync(place, JSON.stringify(change(manifest) ?? manifest));
    });
    return copy;
  };
  const refuses = async (copy: string, code: string, words: RegExp, more: Partial<QuantizeRequest> = {}) => {
    const output = path.join(dir, `out-${copies++}`);
    await assert.rejects(
      async () => withSaved(copy, (statistics) => quantizeCheckpoint([rt], request(output, { statistics, ...more }))),
      designed(code, words),
    );
    assert.ok(!existsSync(output));
  };
  const tensors = 'statistics.safetensors';
  const q1 = 'model.layers.1.self_attn.q_proj.moments';
  await refuses(path.join(dir, 'nowhere'), 'LPQ_STATISTICS', /holds no saved statistics.*no such directory/);
  await refuses(tiny, 'LPQ_STATISTICS', /no lpq.json in it/);
  await refuses(
    broken((copy) => unlinkSync(path.join(copy, tensors))),
    'LPQ_STATISTICS',
    /lack statistics.safetensors/,
  );
  await refuses(
    broken((copy) => truncateSync(path.join(copy, tensors), 5000)),
    'LPQ_SAFETENSORS',
    /truncated/,
  );
  await refuses(
    broken((copy) => writeFileSync(path.join(copy, 'lpq.json'), '{')),
    'LPQ_STATISTICS',
    /not valid JSON/,
  );
  const edited = (change: (manifest: StatisticsManifest) => unknown) => broken((_, edit) => edit(change));
  await refuses(
    edited((m) => ({ ...m, format: 'lpq-canonical' })),
    'LPQ_STATISTICS',
    /no saved statistics.*canonical/,
  );
  await refuses(
    edited((m) => ({ ...m, more: 1 })),
    'LPQ_STATISTICS',
    /malformed at \//,
  );
  await refuses(
    edited((m) => ({ ...m, version: 2 })),
    'LPQ_STATISTICS',
    /malformed at \/version/,
  );
  await refuses(
    edited((m) => ({ ...m, files: ['../x.safetensors'] })),
    'LPQ_STATISTICS',
    /malformed at \/files\/0/,
  );
  const withFeed = (change: (feed: StatisticsManifest['feeds'][string]) => object) =>
    edited((m) => ({ ...m, feeds: { ...m.feeds, [q1]: change(m.feeds[q1] as never) } }));
  await refuses(
    withFeed((feed) => ({ ...feed, k: 255 })),
    'LPQ_STATISTICS',
    /not a triangle of a 255 x 255 matrix/,
  );
  await refuses(
    withFeed((feed) => ({ ...feed, linears: ['model.layers.1.self_attn.q_proj'] })),
    'LPQ_STATISTICS',
    /no statistics of model.layers.1.self_attn.k_proj/,
  );
  const { [q1]: _, ...rest } = (JSON.parse(readFileSync(path.join(saved, 'lpq.json'), 'utf8')) as StatisticsManifest)
    .feeds;
  const incomplete = edited((m) => ({ ...m, feeds: rest }));
  await refuses(incomplete, 'LPQ_STATISTICS', /no statistics of model.layers.1.self_attn.q_proj/);
  // Modules that nobody quantizes need none.
  await withSaved(incomplete, (statistics) =>
    quantizeCheckpoint(
      [rt],
      request(path.join(dir, 'fine'), { statistics, rules: [{ match: /layers\.1\./, scheme: 'skip' }] }),
    ),
  );
  // A byte in the last tensor of the last file: found when its turn comes.
  const flipped = broken((copy) => {
    const bytes = readFileSync(path.join(copy, tensors));
    bytes[bytes.length - 2] = (bytes[bytes.length - 2] as number) ^ 1;
    writeFileSync(path.join(copy, tensors), bytes);
  });
  await refuses(flipped, 'LPQ_STATISTICS', /moments' in .* are damaged/);
  // The diagonal alone, as an importance matrix has it.
  const diagonals = broken((copy) => unlinkSync(path.join(copy, tensors)));
  const { feeds } = JSON.parse(readFileSync(path.join(saved, 'lpq.json'), 'utf8')) as StatisticsManifest;
  await writeSafetensors(
    path.join(diagonals, tensors),
    Object.entries(feeds).map(([name, { k }]) => ({ name, dtype: 'F32', shape: [k], data: new Float32Array(k) })),
  );
  await refuses(diagonals, 'LPQ_STATISTICS', /not a triangle of a \d+ x \d+ matrix.*F32 \[256\]/);
  // Another model with the same config and headers: a fine-tuned one.
  const tuned = path.join(dir, 'tuned');
  cpSync(tiny, tuned, { recursive: true });
  const bytes = readFileSync(path.join(tuned, 'model.safetensors'));
  const begin = 8 + Number(bytes.readBigUInt64LE(0));
  bytes[begin] = (bytes[begin] as number) ^ 1;
  writeFileSync(path.join(tuned, 'model.safetensors'), bytes);
  await refuses(saved, 'LPQ_STATISTICS', /belong to another model than/, { source: tuned });
});
