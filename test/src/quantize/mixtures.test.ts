import assert from 'node:assert/strict';
import { cpSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { CanonicalSource } from '../../../formats/canonical/source.js';
import { writeSafetensors } from '../../../formats/safetensors/write.js';
import { putBeside, withBeside } from '../../../native/beside.js';
import { createRuntime, fromTyped, type Tensor, typed } from '../../../native/binding.js';
import type { Calibration } from '../../../src/calibrate/text.js';
import { GPTQ_DEFAULTS } from '../../../src/gptq/options.js';
import { gptqQuantizer } from '../../../src/gptq/quantizer.js';
import { makeBatch } from '../../../src/model/batch.js';
import { loadOuter, runForward } from '../../../src/model/forward.js';
import { openModel } from '../../../src/model/graph.js';
import { type QuantizeRequest, type QuantizeSummary, quantizeCheckpoint } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { rtnQuantizer } from '../../../src/rtn/quantizer.js';
import { sampled } from '../../sample.js';
import { ARCHITECTURES, PlainFile } from '../model/fixtures.js';
import { values } from '../model/reference-runtime.js';
import { MIXTURES } from './linears.js';

const rt = createRuntime(2);
const METHODS = { rtn: rtnQuantizer(), gptq: gptqQuantizer(GPTQ_DEFAULTS) };
const [SEQUENCES, LENGTH] = [40, 12];

function scratch(t: TestContext): string {
  const dir = mkdtempSync(path.join(tmpdir(), 'lpq-mixtures-'));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

/** The golden's own tokens, over and over with a shift. */
function calibration(golden: PlainFile): Calibration {
  const ids = typed<Int32Array>(golden.tensor('input_ids'));
  const sequences = Array.from({ length: SEQUENCES }, (_, s) =>
    Int32Array.from({ length: LENGTH }, (_, i) => (ids[(s % 2) * LENGTH + i]! + 29 * s) % 64),
  );
  const tokens = SEQUENCES * LENGTH;
  return {
    name: 'made',
    sha256: '0'.repeat(64),
    seed: 0,
    length: LENGTH,
    kind: 'windows',
    sequences,
    tokens,
    available: SEQUENCES,
  };
}

function request(source: string, output: string, more: Partial<QuantizeRequest> = {}): QuantizeRequest {
  return {
    source,
    output,
    scheme: schemeFromOptions({ bits: 8, groupSize: 32 }),
    rules: [],
    quantizer: METHODS.rtn,
    calibration: undefined,
    lmHead: false,
    options: {},
    version: 'test',
    ...more,
  };
}

/**
 * Norm of the difference to the golden's logits of a token, over that of its logits: the median of the tokens, for a few are
 * sent to another expert, by routers that were never trained to tell tokens apart.
 */
async function logitError(dir: string, golden: PlainFile): Promise<number> {
  const source = CanonicalSource.open(dir, rt);
  const graph = openModel(source);
  const outer = await loadOuter(rt, source, graph);
  const ids = typed<Int32Array>(golden.tensor('input_ids'));
  const batch = makeBatch(rt, [ids.slice(0, LENGTH), ids.slice(LENGTH)]);
  const [state] = await runForward(rt, source, graph, outer, [batch]);
  const logits = graph.logits(rt, outer, state!.h);
  await rt.sync();
  const [got, want] = [typed(logits), typed(golden.tensor('logits'))];
  source.close();
  const width = graph.vocab;
  const norm = (list: Float32Array) => Math.sqrt(list.reduce((sum, value) => sum + value ** 2, 0));
  const errors = Array.from({ length: want.length / width }, (_, t) => {
    const row = want.slice(t * width, (t + 1) * width);
    return norm(row.map((value, i) => got[t * width + i]! - value)) / norm(row);
  });
  return errors.sort((a, b) => a - b)[errors.length >> 1]!;
}

for (const [name, linears] of sampled('mixtures', Object.entries(MIXTURES), 4))
  for (const [method, quantizer] of Object.entries(METHODS))
    test(`${name}: ${method} quantizes every linear, and the model stays what it was`, async (t) => {
      const source = path.join(ARCHITECTURES, name);
      const golden = new PlainFile(path.join(source, 'golden.safetensors'));
      const output = path.join(scratch(t), 'out');
      const summary = await quantizeCheckpoint(
        [rt],
        request(source, output, { quantizer, ...(quantizer.statistics && { calibration: calibration(golden) }) }),
      );
      assert.equal(summary.modules.length, linears);
      const error = await logitError(output, golden);
      t.diagnostic(`relative error of the logits ${error.toExponential(2)}`);
      // 8 bits in groups of 32: a step is 2/255 of the group's largest weight, some 2.1 standard deviations, so rounding adds
      // 2 * 2.1 / 255 / sqrt(12) = 0.005 of a linear's output; some ten of them in sequence, sqrt(10) times that.
      assert.ok(error < 0.03, `${error}`);
      const checkpoint = CanonicalCheckpoint.open(output);
      assert.deepEqual(await checkpoint.verifyHashes(), []);
      checkpoint.close();
      if (method === 'gptq') checkRows(summary, name);
    });

test('experts solved on several streams have the bytes of one', async (t) => {
  const source = path.join(ARCHITECTURES, 'qwen3_moe');
  const dir = scratch(t);
  const made = calibration(new PlainFile(path.join(source, 'golden.safetensors')));
  const run = async (name: string, streams: number) => {
    const rt = createRuntime(1);
    putBeside(
      rt,
      Array.from({ length: streams - 1 }, () => createRuntime(1)),
    );
    const output = path.join(dir, name);
    await quantizeCheckpoint([rt], request(source, output, { quantizer: METHODS.gptq, calibration: made }));
    const [own, ...others] = withBeside([rt]).map((each) => each.profile().gptq_solve?.calls ?? 0);
    const checkpoint = CanonicalCheckpoint.open(output);
    const modules = Object.entries(checkpoint.manifest.modules).map(([name, { sha256 }]) => [name, sha256]);
    checkpoint.close();
    return { solved: [own, ...others], modules };
  };
  const [one, three] = [await run('one', 1), await run('three', 3)];
  assert.deepEqual(three.modules, one.modules);
  assert.ok(
    three.solved.every((calls) => calls! > 0),
    `${three.solved}`,
  );
  assert.equal(
    three.solved.reduce((a, b) => a! + b!),
    one.solved[0],
  );
});

/** Linears of shared experts, in all blocks. */
const SHARED: Readonly<Record<string, number>> = {
  deepseek_v3: 3,
  deepseek_v32: 3,
  deepseek_v4: 6,
  dots1: 3,
  ernie4_5_moe: 3,
  exaone_moe: 3,
  glm4_moe: 3,
  glm4_moe_lite: 3,
  glm_moe_dsa: 3,
  granitemoehybrid: 4,
  hunyuan_v1_moe: 6,
  hy_v3: 3,
  kimi_k25: 3,
  kimi_linear: 3,
  llama4: 3,
  llama4_text: 3,
  minimax_m3_vl_text: 2,
  nemotron_h: 2,
  'nemotron_h-latent': 2,
  qwen2_moe: 6,
  qwen3_5_moe: 6,
  qwen3_next: 6,
};

/** Of these some experts have no weights: they hand on what they read. */
const IDLE = new Set(['longcat_flash']);
/** Experts without gates. */
const PLAIN = new Set(['nemotron_h', 'nemotron_h-latent']);
/** The layer with experts that is looked at, if it is not the second. */
const LAYER: Readonly<Record<string, number>> = { longcat_flash: 0, 'nemotron_h-latent': 0 };

/** Experts see their routed rows, shared experts every token. */
function checkRows(summary: QuantizeSummary, name: string): void {
  const rows = (match: RegExp) => summary.modules.filter((line) => match.test(line.name)).map(({ tokens }) => tokens!);
  const all = SEQUENCES * LENGTH;
  const sum = (list: number[]) => list.reduce((a, b) => a + b, 0);
  const [into, out] = [PLAIN.has(name) ? 'up_proj' : 'gate_proj|w1', 'down_proj|w2'].map((kind) =>
    sum(rows(new RegExp(`layers\\.${LAYER[name] ?? 1}\\..*experts\\.\\d+\\.(${kind})$`))),
  ) as [number, number];
  if (IDLE.has(name)) assert.ok(into > 0 && into < 2 * all, `${into} rows of ${2 * all} go to experts with weights`);
  else assert.equal(into, 2 * all, 'two experts a token');
  assert.equal(out, into);
  const shared = rows(/shared_(experts?|mlp)\./);
  assert.ok(shared.every((count) => count === all));
  assert.equal(shared.length, SHARED[name] ?? 0);
}

test('fused experts become linears of their own, turned over; what is skipped is carried so too', async (t) => {
  const source = path.join(ARCHITECTURES, 'gpt_oss');
  const output = path.join(scratch(t), 'out');
  const rules = [{ match: /experts\.3\./, scheme: 'skip' as const }];
  await quantizeCheckpoint([rt], request(source, output, { rules }));
  const file = new PlainFile(path.join(source, 'model.safetensors'));
  const block = 'model.layers.1.mlp.experts';
  const [gateUp, down] = [file.tensor(`${block}.gate_up_proj`), file.tensor(`${block}.down_proj`)];
  const biases = typed<Uint16Array>(file.tensor(`${block}.gate_up_proj_bias`));
  const [hidden, inner] = [32, 32];
  const at = (tensor: Tensor, e: number, k: number, n: number, columns: number, rows: number) =>
    typed<Uint16Array>(tensor)[(e * rows + k) * columns + n]!;
  const expert = (e: number, part: string) => {
    const [n, k] = part === 'down_proj' ? [hidden, inner] : [inner, hidden];
    return Uint16Array.from({ length: n * k }, (_, i) => {
      const [row, column] = [Math.floor(i / k), i % k];
      if (part === 'down_proj') return at(down, e, column, row, hidden, inner);
      return at(gateUp, e, column, 2 * row + (part === 'up_proj' ? 1 : 0), 2 * inner, hidden);
    });
  };
  const quantized = CanonicalSource.open(output, rt);
  const carried = quantized.checkpoint.manifest.carried;
  assert.deepEqual(
    Object.keys(carried).filter((name) => /experts\.(gate_up|down)_proj/.test(name)),
    [],
  );
  for (const part of ['gate_proj', 'up_proj', 'down_proj']) {
    const skipped = await quantized.tensor(`${block}.3.${part}.weight`);
    assert.deepEqual(typed<Uint16Array>(skipped), expert(3, part), `${part} of expert 3`);
    const exact = values(fromTyped('bf16', [expert(1, part).length], expert(1, part)));
    const rounded = typed(await quantized.tensor(`${block}.1.${part}.weight`));
    // Half a step of i8 in a group of 32, whose largest weight is 127.5 steps, and as many roundings of the scale to f16.
    exact.forEach((value, i) => {
      const group = exact.subarray(32 * Math.floor(i / 32), 32 * Math.floor(i / 32) + 32);
      const largest = group.reduce((most, each) => Math.max(most, Math.abs(each)), 0);
      assert.ok(
        Math.abs(rounded[i]! - value) <= ((0.5 + 128 * 2 ** -11) * largest) / 127.5,
        `${part} of expert 1, element ${i}`,
      );
    });
  }
  const bias = typed<Uint16Array>(await quantized.tensor(`${block}.2.up_proj.bias`));
  assert.deepEqual(
    bias,
    Uint16Array.from({ length: inner }, (_, n) => biases[2 * 2 * inner + 2 * n + 1]!),
  );
  quantized.close();
});

test('blocks of multi-token prediction are carried through and reported', async (t) => {
  const dir = scratch(t);
  const [source, output] = [path.join(dir, 'source'), path.join(dir, 'out')];
  cpSync(path.join(ARCHITECTURES, 'deepseek_v3'), source, { recursive: true });
  const file = new PlainFile(path.join(source, 'model.safetensors'));
  const extra: Record<string, Tensor> = {
    'model.layers.2.eh_proj.weight': fromTyped('bf16', [32, 64], new Uint16Array(32 * 64).fill(0x3c00)),
    'model.layers.2.mlp.gate.e_score_correction_bias': fromTyped('f32', [4], Float32Array.of(1, 2, 3, 4)),
    'model.layers.2.self_attn.q_a_proj.weight': fromTyped('bf16', [32, 32], new Uint16Array(32 * 32).fill(0x3d00)),
  };
  const all = Object.keys(file.header).map((name) => [name, file.tensor(name)] as const);
  rmSync(path.join(source, 'model.safetensors'));
  await writeSafetensors(
    path.join(source, 'model.safetensors'),
    [...all, ...Object.entries(extra)].map(([name, data]) => ({
      name,
      dtype: data.dtype === 'f32' ? ('F32' as const) : ('BF16' as const),
      shape: data.shape,
      data,
    })),
  );
  let left: readonly string[] = [];
  const summary = await quantizeCheckpoint([rt], request(source, output), {
    onPlan: (plan) => {
      left = plan.left;
    },
  });
  assert.deepEqual(left, Object.keys(extra).sort());
  assert.equal(summary.modules.length, MIXTURES.deepseek_v3);
  const checkpoint = CanonicalCheckpoint.open(output);
  for (const [name, tensor] of Object.entries(extra))
    assert.deepEqual(checkpoint.weights.tensor(name).bytes(), tensor.bytes(), name);
  checkpoint.close();
});
