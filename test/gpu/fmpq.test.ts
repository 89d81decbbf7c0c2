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
    const count = { codes: 0, different: 0, rows: 0, touched: 0, scales: 0, underOwnScales: 0 };
    for (const feed of feeds) {
      const h = hessian(feed);
      const solvers = rts.map((rt) => {
        const moments = rt.momentDtype === 'f32' ? Float32Array.from(h) : h;
        const statistics = { h: uploadTyped(rt, rt.momentDtype, [feed.k, feed.k], moments), tokens: 1 };
        return new FeedSolver(rt, statistics, { ...GPTQ_DEFAULTS, rounds });
      });
      for (const { name } of feed.linears) {
        const weight = await source.tensor(`${name}.weight`);
        const solved = [];
        for (const [i, rt] of rts.entries()) {
          const { codes, scales } = await solvers[i]!.solve(name, rt.upload(weight), scheme);
          solved.push({
            codes: await readTyped<Uint8Array>(rt, codes),
            scales: await readTyped<Uint16Array>(rt, scales),
          });
        }
        const [own, there] = solved as [(typeof solved)[0], (typeof solved)[0]];
        const [n, bytes, groups] = [weight.shape[0]!, feed.k / 2, own.scales.length / weight.shape[0]!];
        for (let row = 0; row < n; row++) {
          let different = 0;
          for (let at = row * bytes; at < (row + 1) * bytes; at++) {
            const changed = own.codes[at]! ^ there.codes[at]!;
            different += Number((changed & 15) !== 0) + Number(changed >> 4 !== 0);
          }
          const scales = own.scales.slice(row * groups, (row + 1) * groups);
          const same = scales.every((scale, g) => scale === there.scales[row * groups + g]);
          count.different += different;
          count.touched += Number(different > 0);
          count.scales += Number(!same);
          count.underOwnScales += same ? 0 : different;
        }
        count.rows += n;
        count.codes += 2 * own.codes.length;
      }
      for (const solver of solvers) solver.dispose();
    }
    t.diagnostic(`${rounds} rounds: ${JSON.stringify(count)}`);
    // Of clips whose costs differ by less than the rounding of either search (native/cuda/gptq/clip.cu) each takes its own. Without
    // sweeps only ties go another way, and what follows them in their rows; a round of sweeps passes more of them.
    assert.ok(rounds > 0 || count.scales < 0.01 * count.rows, JSON.stringify(count));
    assert.ok(
      count.different - count.underOwnScales < (rounds === 0 ? 0.001 : 0.02) * count.codes,
      JSON.stringify(count),
    );
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
    // Without GPTAQ's correction: a device compares the quantized model with the unquantized one on other batches than the CPU.
    const flags = '--bits 4 --group-size 128 --method fmpq --gptaq 0 --samples 64 --seq-len 512'.split(' ');
    const ran = await lpq(['quantize', MODEL, '--output', output, ...flags, '--device', device, ...more]);
    assert.equal(ran.code, 0, ran.stderr);
    const read = await lpq(['eval', output, '--text', TEXT, '--ctx', '512', '--device', 'cpu', '--json']);
    const result = events(read).find(({ event }) => event === 'result') as { nll: number } | undefined;
    assert.ok(result, read.stderr);
    const manifest = readFileSync(path.join(output, 'lpq.json'), 'utf8');
    const { modules } = JSON.parse(manifest) as {
      modules: Record<string, { quality: { relativeError: number | null } }>;
    };
    const errors = Object.values(modules).map(({ quality }) => quality.relativeError);
    return { nll: result.nll, manifest, errors };
  };
  for (const [i, more] of [[], ['--act-kv', '4'], ['--tune', '20']].entries()) {
    const there = await run(`there${i}`, 'cuda', ...more);
    assert.equal((await run(`again${i}`, 'cuda', ...more)).manifest, there.manifest);
    const own = await run(`own${i}`, 'cpu', ...more);
    // Trained modules have no error of their own.
    if (!more.includes('--tune')) assert.ok(own.errors.every((error) => error !== null));
    const apart = own.errors.map((error, at) => (error === null ? 0 : Math.abs(there.errors[at]! / error - 1)));
    t.diagnostic(
      `${more.join(' ')}: ${there.nll} nats a token, on the CPU ${own.nll}; errors ${Math.max(...apart)} apart`,
    );
    // Both solve for statistics of their own, those of the device of 16 bits.
    assert.ok(Math.max(...apart) < 0.02, `errors of modules are up to ${Math.max(...apart)} apart`);
    // Seeds differ by some 0.01 nats (docs/internals/fmpq.md).
    assert.ok(Math.abs(there.nll - own.nll) < 0.02, `${there.nll}, on the CPU ${own.nll}`);
  }
});
