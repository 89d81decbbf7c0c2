import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import {
  cpSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  truncateSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, type TestContext, test } from 'node:test';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { writeSafetensors } from '../../../formats/safetensors/write.js';
import { SavedStatistics } from '../../../formats/statistics/read.js';
import type { StatisticsManifest } from '../../../formats/statistics/schema.js';
import { createRuntime, fromTyped, readTyped, type Tensor, typed } from '../../../native/binding.js';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import type { Calibration } from '../../../src/calibrate/text.js';
import { GPTQ_DEFAULTS } from '../../../src/gptq/options.js';
import { gptqQuantizer } from '../../../src/gptq/quantizer.js';
import { batchSequences } from '../../../src/model/batch.js';
import { embedBatches, loadOuter } from '../../../src/model/forward.js';
import { openModel } from '../../../src/model/graph.js';
import type { BlockState, Feed } from '../../../src/model/program.js';
import { loadWeights } from '../../../src/model/weights.js';
import { collectStatistics } from '../../../src/quantize/collect.js';
import { type QuantizeRequest, quantizeCheckpoint, type Resumption } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { designed } from '../../formats/scratch.js';
import { PlainFile, plainSource, SHARED, skipWithout } from '../model/fixtures.js';

const rt = createRuntime(2);
const tiny = path.join(shareDirectory(), 'tiny-llama');
const quick = gptqQuantizer({ ...GPTQ_DEFAULTS, alpha: 0, clipSteps: 2, rounds: 1 });
const root = mkdtempSync(path.join(tmpdir(), 'lpq-statistics-'));
after(() => rmSync(root, { recursive: true, force: true }));

function scratch(t: TestContext): string {
  const dir = mkdtempSync(path.join(root, 'test-'));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

function tokens(sequences: number, length: number, vocab: number): Calibration {
  let state = 5;
  const next = () => {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0;
    return (state >>> 8) % vocab;
  };
  const list = Array.from({ length: sequences }, () => Int32Array.from({ length }, next));
  const facts = { name: 'made', sha256: '0'.repeat(64), seed: 0, kind: 'windows', available: sequences } as const;
  return { ...facts, length, sequences: list, tokens: sequences * length };
}

const calibration = tokens(3, 70, 2048);
const saved = path.join(root, 'saved');
const saving = collectStatistics([rt], { source: tiny, output: saved, calibration, version: 'test' });

function request(output: string, more: Partial<QuantizeRequest> = {}): QuantizeRequest {
  return {
    source: tiny,
    output,
    scheme: schemeFromOptions({ bits: 4, groupSize: 64 }),
    rules: [],
    quantizer: quick,
    calibration: undefined,
    lmHead: false,
    options: {},
    version: 'test',
    ...more,
  };
}

async function withSaved<T>(dir: string, body: (statistics: SavedStatistics) => Promise<T>): Promise<T> {
  const statistics = SavedStatistics.open(dir);
  try {
    return await body(statistics);
  } finally {
    statistics.close();
  }
}

function hashes(dir: string): Record<string, string> {
  const names = readdirSync(dir, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
  const files = names.map((entry) => path.join(entry.parentPath, entry.name)).sort();
  return Object.fromEntries(
    files.map((file) => [path.relative(dir, file), createHash('sha256').update(readFileSync(file)).digest('hex')]),
  );
}

/** The lower triangle of a saved tensor, read without lpq's readers. */
function triangleOf(dir: string, name: string): Float32Array {
  return typed(new PlainFile(path.join(dir, 'statistics.safetensors')).tensor(name));
}

/** What every feed of a model sees, by plain forward passes: one state after another, no sweeps and no streams. */
async function inputs(dir: string, sequences: readonly Int32Array[]): Promise<Map<Feed, Float32Array[]>> {
  const source = plainSource(dir);
  const graph = openModel(source);
  const outer = await loadOuter(rt, source, graph);
  let states: BlockState[] = embedBatches(rt, graph, outer, batchSequences(rt, sequences, 1));
  const found = new Map<Feed, Float32Array[]>();
  for (const block of graph.blocks) {
    const weights = await loadWeights(rt, source, block.tensors.keys(), graph.transposed);
    for (const stage of block.stages) {
      const next: BlockState[] = [];
      for (const state of states) {
        const captured = await stage.capture(rt, weights, state);
        for (const feed of stage.feeds)
          found.set(feed, [...(found.get(feed) ?? []), await readTyped(rt, captured.get(feed.id) as Tensor)]);
        next.push(await stage.advance(rt, weights, state));
      }
      states = next;
    }
  }
  if (!graph.head.tied) {
    const feed = { id: 'lm_head', linears: [graph.head] };
    const heads = states.map(({ h }) => readTyped(rt, graph.headInput(rt, outer, h)));
    found.set(feed, await Promise.all(heads));
  }
  return found;
}

/** Compares saved statistics with sums in f64 over those inputs; returns how many rows were compared, feed by feed. */
async function compare(dir: string, source: string, sequences: readonly Int32Array[]): Promise<number[]> {
  const { feeds } = JSON.parse(readFileSync(path.join(dir, 'lpq.json'), 'utf8')) as StatisticsManifest;
  const expected = await inputs(source, sequences);
  assert.equal(Object.keys(feeds).length, expected.size);
  const rows: number[] = [];
  for (const [{ linears }, parts] of expected) {
    const name = `${linears[0]?.name}.moments`;
    const { k } = linears[0] as Feed['linears'][number];
    const x = parts.flatMap((part) =>
      Array.from({ length: part.length / k }, (_, r) => part.subarray(r * k, (r + 1) * k)),
    );
    assert.deepEqual(
      feeds[name]?.linears,
      linears.map((linear) => linear.name),
    );
    assert.deepEqual([feeds[name]?.k, feeds[name]?.rows], [k, x.length]);
    rows.push(x.length);
    const h = triangleOf(dir, name);
    for (let i = 0; i < k; i += 1 + (i % 7))
      for (let j = 0; j <= i; j += 1 + (j % 5)) {
        let [want, size] = [0, 0];
        for (const row of x) {
          const product = (row[i] as number) * (row[j] as number);
          want += product;
          size += Math.abs(product);
        }
        // Each of at most 512 products is added in f32 (2^-24 of the partial sum), and the result is rounded to f32 once more.
        const tolerance = (Math.min(x.length, 512) + 2) * 2 ** -24 * size;
        const got = h[(i * (i + 1)) / 2 + j] as number;
        assert.ok(Math.abs(got - want) <= tolerance, `${name} [${i}][${j}]: ${got}, not ${want} ± ${tolerance}`);
      }
  }
  return rows;
}

test('what is saved are the second moments of the unquantized model', async () => {
  await saving;
  assert.deepEqual(new Set(await compare(saved, tiny, calibration.sequences)), new Set([210]));
});

test('an untied head, linears stored as [K, N], and experts, one of which no token may reach', {
  skip: skipWithout('archs', 'gpt_oss'),
}, async (t) => {
  const dir = scratch(t);
  for (const [arch, count, lmHead] of [
    ['qwen3_moe', 2, false],
    ['gpt_oss', 2, false],
    ['deepseek_v3', 2, false],
    ['gpt2', 2, false],
    ['llama-yarn-bias', 2, true],
  ] as const) {
    const source = path.join(SHARED, 'archs', arch);
    const output = path.join(dir, arch);
    const few = tokens(1, count, 320);
    await collectStatistics([rt], { source, output, calibration: few, version: 'test' });
    const rows = await compare(output, source, few.sequences);
    if (arch === 'qwen3_moe') assert.ok(rows.includes(0) && rows.includes(count));
    await withSaved(output, async (statistics) => {
      const scheme = schemeFromOptions({ bits: 4, groupSize: 16 });
      const { modules } = await quantizeCheckpoint(
        [rt],
        request(`${output}-w4`, { source, statistics, scheme, lmHead }),
      );
      const methods = new Set(modules.map(({ method }) => method));
      // Two rows are too few for most: those are rounded, and say so.
      assert.ok(methods.has('rtn'));
      if (lmHead) assert.ok(modules.some(({ name }) => name === 'lm_head'));
    });
  }
});

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

test('two devices: the sums differ by rounding only, and the same statistics give the same bytes', async (t) => {
  await saving;
  const dir = scratch(t);
  const rts = [createRuntime(1), createRuntime(1)];
  const both = path.join(dir, 'both');
  const manifest = await collectStatistics(rts, { source: tiny, output: both, calibration, version: 'test' });
  assert.equal(manifest.backend, 'cpu x2');
  await compare(both, tiny, calibration.sequences);
  const weights = async (name: string, runtimes: typeof rts) => {
    const output = path.join(dir, name);
    await withSaved(saved, (statistics) => quantizeCheckpoint(runtimes, request(output, { statistics })));
    return hashes(output)['model.safetensors'];
  };
  assert.equal(await weights('one', [rt]), await weights('two', rts));
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
    /no triangle of a 255 x 255 matrix/,
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
  await refuses(diagonals, 'LPQ_STATISTICS', /no triangle of a \d+ x \d+ matrix.*F32 \[256\]/);
  // Another model with the same config and headers: a fine-tuned one.
  const tuned = path.join(dir, 'tuned');
  cpSync(tiny, tuned, { recursive: true });
  const bytes = readFileSync(path.join(tuned, 'model.safetensors'));
  const begin = 8 + Number(bytes.readBigUInt64LE(0));
  bytes[begin] = (bytes[begin] as number) ^ 1;
  writeFileSync(path.join(tuned, 'model.safetensors'), bytes);
  await refuses(saved, 'LPQ_STATISTICS', /are of another model than/, { source: tuned });
});
