import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import type { TestContext } from 'node:test';
import { SourceCheckpoint } from '../../formats/canonical/source.js';
import { createRuntime, type NativeRuntime, readTyped, typed, uploadTyped } from '../../native/binding.js';
import { bundledCalibration } from '../../src/calibrate/bundled.js';
import { type Calibration, loadCalibration } from '../../src/calibrate/text.js';
import { openTokenizer } from '../../src/calibrate/tokenizer.js';
import { disposeFeeds, type ObservedFeed, observeFeeds } from '../../src/fmpq/observe.js';
import { FMPQ_DEFAULTS } from '../../src/fmpq/options.js';
import { decidePlan } from '../../src/fmpq/plan.js';
import { GPTQ_DEFAULTS } from '../../src/gptq/options.js';
import { FeedSolver } from '../../src/gptq/solver.js';
import { openModel } from '../../src/model/graph.js';
import { planQuantization } from '../../src/quantize/plan.js';
import { schemeFromOptions } from '../../src/quantize/scheme.js';
import { events, lpq, model as MODEL, root, scratch } from '../src/cli/lpq.js';
import { gpuTest } from './gpu.js';

const TEXT = path.join(root, 'share', 'text', 'books-valid.txt');
const scheme = schemeFromOptions({ bits: 4, groupSize: 128 });

const source = SourceCheckpoint.open(MODEL);
const graph = openModel(source);
const wanted = new Set(planQuantization(graph, { scheme, rules: [], lmHead: false }).keys());

async function calibration(): Promise<Calibration> {
  return loadCalibration(bundledCalibration(), await openTokenizer(MODEL), { samples: 32, length: 512, seed: 0 });
}

async function observed(t: TestContext, rt: NativeRuntime): Promise<readonly ObservedFeed[]> {
  const { sequences } = await calibration();
  const feeds = await observeFeeds(rt, source, graph, sequences, wanted, FMPQ_DEFAULTS.rows);
  t.after(() => disposeFeeds(feeds));
  return feeds;
}

gpuTest('from the same statistics the device decides what the CPU decides', async (t) => {
  const cpu = createRuntime();
  const feeds = await observed(t, cpu);
  for (const search of ['swap', 'error', 'absmax'] as const) {
    const decide = (rt: NativeRuntime) => decidePlan(rt, source, graph, feeds, { ...FMPQ_DEFAULTS, search });
    const [own, there] = [await decide(cpu), await decide(createRuntime({ device: 'cuda:0' }))];
    assert.deepEqual(there.sites, own.sites);
    assert.deepEqual(there.error, own.error);
    assert.equal(there.sha256, own.sha256);
  }
});

/** H of a feed's rows in double precision, [K,K]. */
function hessian({ rows, k }: ObservedFeed): Float64Array {
  const x = typed(rows) as Float32Array;
  const h = new Float64Array(k * k);
  for (let from = 0; from < x.length; from += k)
    for (let i = 0; i < k; i++) for (let j = 0; j < k; j++) h[i * k + j]! += x[from + i]! * x[from + j]!;
  return h;
}

gpuTest('from the same statistics the device chooses the codes of the CPU, but for ties', async (t) => {
  const rts = [createRuntime(), createRuntime({ device: 'cuda:0' })] as const;
  const feeds = (await observed(t, rts[0])).slice(0, 4);
  for (const rounds of [0, GPTQ_DEFAULTS.rounds]) {
    let [different, all] = [0, 0];
    for (const feed of feeds) {
      const h = hessian(feed);
      const solvers = rts.map((rt) => {
        const moments = rt.momentDtype === 'f32' ? Float32Array.from(h) : h;
        const statistics = { h: uploadTyped(rt, rt.momentDtype, [feed.k, feed.k], moments), tokens: 1 };
        return new FeedSolver(rt, statistics, { ...GPTQ_DEFAULTS, rounds });
      });
      for (const { name } of feed.linears) {
        const weight = await source.tensor(`${name}.weight`);
        const codes = [];
        for (const [i, rt] of rts.entries()) {
          const solved = await solvers[i]!.solve(name, rt.upload(weight), scheme);
          codes.push(await readTyped<Uint8Array>(rt, solved.codes));
        }
        for (const [i, byte] of codes[0]!.entries()) {
          const other = codes[1]![i]!;
          different += Number((byte & 15) !== (other & 15)) + Number(byte >> 4 !== other >> 4);
        }
        all += 2 * codes[0]!.length;
      }
      for (const solver of solvers) solver.dispose();
    }
    t.diagnostic(`${rounds} rounds: ${different} of ${all} codes differ`);
    // Without sweeps only ties go another way, and what follows them in their rows. A round of sweeps passes more of them.
    assert.ok(different < (rounds === 0 ? 0.001 : 0.02) * all, `${different} of ${all}`);
  }
});

gpuTest('what the device observes is what the CPU observes, but for its 16 bits', async (t) => {
  const [own, there] = [await observed(t, createRuntime()), await observed(t, createRuntime({ device: 'cuda:0' }))];
  assert.deepEqual(
    there.map(({ linears, k, tokens, rows }) => [linears.map(({ name }) => name), k, tokens, rows.shape]),
    own.map(({ linears, k, tokens, rows }) => [linears.map(({ name }) => name), k, tokens, rows.shape]),
  );
  for (const [i, feed] of there.entries()) {
    const wish = own[i]!;
    // Of f16 or bf16 numbers, behind up to four blocks of products of such: each adds a few roundings of 2^-9 of an output, which in
    // sums of squares over 16384 rows leave a hundredth, and in the largest of them a tenth.
    for (let c = 0; c < feed.k; c++) {
      assert.ok(Math.abs(feed.moments[c]! / wish.moments[c]! - 1) < 0.02, `moments of ${i}, channel ${c}`);
      assert.ok(Math.abs(feed.most[c]! / wish.most[c]! - 1) < 0.1, `most of ${i}, channel ${c}`);
      assert.ok(Math.abs(feed.importance[c]! / wish.importance[c]! - 1) < 0.02, `importance of ${i}, channel ${c}`);
    }
    assert.ok(typed(feed.rows).every(Number.isFinite));
  }
});

gpuTest('fmpq quantizes on the device: the same bytes twice, and the perplexity of the CPU', async (t) => {
  const dir = scratch(t);
  const run = async (name: string, device: string, ...more: string[]) => {
    const output = path.join(dir, name);
    const flags = ['--bits', '4', '--group-size', '128', '--method', 'fmpq', '--samples', '64', '--seq-len', '512'];
    const ran = await lpq(['quantize', MODEL, '--output', output, ...flags, '--device', device, ...more]);
    assert.equal(ran.code, 0, ran.stderr);
    const read = await lpq(['eval', output, '--text', TEXT, '--ctx', '512', '--device', 'cpu', '--json']);
    const result = events(read).find(({ event }) => event === 'result') as { nll: number } | undefined;
    assert.ok(result, read.stderr);
    return { nll: result.nll, manifest: readFileSync(path.join(output, 'lpq.json'), 'utf8') };
  };
  for (const [i, more] of [[], ['--act-kv', '4'], ['--tune', '20']].entries()) {
    const there = await run(`there${i}`, 'cuda', ...more);
    assert.equal((await run(`again${i}`, 'cuda', ...more)).manifest, there.manifest);
    const own = await run(`own${i}`, 'cpu', ...more);
    t.diagnostic(`${more.join(' ')}: ${there.nll} nats a token, on the CPU ${own.nll}`);
    // Seeds differ by some 0.01 nats (docs/internals/fmpq.md).
    assert.ok(Math.abs(there.nll - own.nll) < 0.02, `${there.nll}, on the CPU ${own.nll}`);
  }
});
