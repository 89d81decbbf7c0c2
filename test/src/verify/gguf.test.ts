import assert from 'node:assert/strict';
import { cpSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import fc from 'fast-check';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { GgufFile } from '../../../formats/gguf/read.js';
import { createRuntime } from '../../../native/binding.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { PACK_TARGETS } from '../../../src/pack/targets/index.js';
import { checkContainer } from '../../../src/verify/gguf-container.js';
import { headerOf } from '../../../src/verify/gguf-header.js';
import { Recorder } from '../../../src/verify/report.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { sampled } from '../../sample.js';
import { lpq, model } from '../cli/lpq.js';
import { ARCHITECTURES } from '../model/fixtures.js';
import { type Container, forged, u32 } from './gguf-forge.js';
import { FORGERIES, put, rows, runs, shifted, swapped } from './gguf-forgeries.js';
import { MUTATIONS } from './gguf-mutations.js';
import { isCaught } from './tamper.js';

const runtime = createRuntime(2);
const root = mkdtempSync(path.join(tmpdir(), 'lpq-gguf-verify-'));
after(() => rmSync(root, { recursive: true, force: true }));

/** Every target of GGUF and every way to its blocks; the first two are what each class of forgery is tried on. */
const CASES: readonly { name: string; target: string; quantized: string; source?: string }[] = [
  { name: 'q4_0', target: 'gguf', quantized: 'sym' },
  { name: 'q4_k', target: 'gguf-q4_k', quantized: 'sym' },
  { name: 'q4_1', target: 'gguf', quantized: 'asym' },
  { name: 'q8_0', target: 'gguf', quantized: 'wide' },
  { name: 'mxfp4', target: 'gguf', quantized: 'fours' },
  { name: 'q2_k', target: 'gguf-q2_k', quantized: 'sym', source: model },
  ...['q2_k', 'q3_k', 'q5_k', 'q6_k', 'q8_0'].map((type) => ({
    ...{ name: `own ${type}`, target: `gguf-${type}`, quantized: 'asym' },
  })),
];
const QUANTIZED: Readonly<Record<string, readonly string[]>> = {
  sym: ['--bits', '4', '--group-size', '64'],
  asym: ['--bits', '4', '--asym', '--group-size', '32'],
  wide: ['--bits', '8', '--group-size', 'channel'],
  fours: ['--dtype', 'mxfp4'],
};
const place = (name: string) => path.join(root, name);

before(async () => {
  for (const [name, options] of Object.entries(QUANTIZED)) {
    const { code, stderr } = await lpq(['quantize', model, '-o', place(name), '--method', 'rtn', ...options]);
    assert.equal(code, 0, stderr);
  }
  for (const { name, target, quantized, source } of CASES) {
    const input = CanonicalCheckpoint.open(place(quantized));
    await packCheckpoint({ input, target, output: place(name), runtime, ...(source !== undefined && { source }) });
    input.close();
  }
});

async function failuresOf(dir: string, quantized: string): Promise<string[]> {
  const { failures } = await verifyArtifact({ dir, against: place(quantized), runtime });
  return failures.map(({ check, message }) => `${check}: ${message}`);
}

test('what was packed is verified, for every target of GGUF', async () => {
  const targets = PACK_TARGETS.map(({ name }) => name).filter((name) => /^gguf/.test(name));
  assert.deepEqual([...new Set(CASES.map(({ target }) => target))].sort(), targets.sort());
  for (const { name, quantized } of CASES) assert.deepEqual(await failuresOf(place(name), quantized), [], name);
  for (const { name, quantized, source } of sampled('targets of GGUF, rewritten', CASES, 6)) {
    await forged(place(name), {}, async (dir) => assert.deepEqual(await failuresOf(dir, quantized), [], name));
    const report = await verifyArtifact({ dir: place(name), source, against: place(quantized), runtime });
    assert.deepEqual(report.failures, [], name);
    assert.ok(!report.unproved.some((sentence) => /source/.test(sentence)), name);
  }
});

for (const [title, message, forgery] of sampled('forgeries of GGUF', FORGERIES, 5))
  test(`with every hash redone, it is found that ${title}`, async () => {
    for (const { name, quantized } of CASES.slice(0, 2))
      await forged(place(name), forgery, async (dir) => {
        const failures = await failuresOf(dir, quantized);
        assert.ok(
          failures.some((failure) => message.test(failure)),
          `${name}: ${failures.slice(0, 5).join('\n')}`,
        );
      });
  });

for (const [what, mutate] of sampled('mutations of GGUF', Object.entries(MUTATIONS), 5))
  test(`whatever is changed at random is found: ${what}`, async () => {
    await fc.assert(
      fc.asyncProperty(fc.nat(CASES.length - 1), fc.infiniteStream(fc.nat(2 ** 31 - 1)), async (which, stream) => {
        const { name, quantized, source } = CASES[which]!;
        const draw = (below: number): number => stream.next().value! % below;
        let changed = false;
        const gguf = (file: Container): void => {
          changed = mutate(file, draw) === true;
        };
        await forged(place(name), { gguf }, async (dir) => {
          if (!changed) return;
          const options = { dir, against: place(quantized), runtime, source };
          const found =
            source === undefined ? await isCaught(dir, place(quantized), runtime) : await caughtWith(options);
          assert.ok(found, name);
        });
      }),
      { numRuns: Number(process.env.LPQ_FORGERIES ?? 6), seed: 7 },
    );
  });

async function caughtWith(options: Parameters<typeof verifyArtifact>[0]): Promise<boolean> {
  try {
    return !(await verifyArtifact(options)).ok;
  } catch (error) {
    return (error as { exitCode?: number }).exitCode === 4;
  }
}

test('experts and biases: stacks and their slices are proved too', async () => {
  const [from, quantized] = [place('moe'), 'moe quantized'];
  cpSync(path.join(ARCHITECTURES, 'qwen2_moe'), from, { recursive: true });
  rmSync(path.join(from, 'golden.safetensors'));
  const { code, stderr } = await lpq([
    ...['quantize', from, '-o', place(quantized), '--method', 'rtn', '--bits', '8', '--group-size', '32'],
  ]);
  assert.equal(code, 0, stderr);
  const input = CanonicalCheckpoint.open(place(quantized));
  await packCheckpoint({ input, target: 'gguf', output: place('moe gguf'), runtime });
  input.close();
  const expectFound = (message: RegExp, gguf: (file: Container) => void) =>
    forged(place('moe gguf'), { gguf }, async (dir) => {
      const failures = await failuresOf(dir, quantized);
      assert.ok(
        failures.some((failure) => message.test(failure)),
        `${message}: ${failures.slice(0, 5).join('\n')}`,
      );
    });
  assert.deepEqual(await failuresOf(place('moe gguf'), quantized), []);
  await expectFound(/blk.1.attn_k.bias' differs/, (file) =>
    put(file.tensor('blk.1.attn_k.bias'), {
      data: Buffer.concat(shifted(runs(file.tensor('blk.1.attn_k.bias').data, 4))),
    }),
  );
  await expectFound(/mlp.experts.0.down_proj/, (file) => {
    const stack = file.tensor('blk.0.ffn_down_exps.weight');
    const size = stack.data.length / (stack.dims[2] as number);
    put(stack, { data: Buffer.concat(shifted(runs(stack.data, size))) });
  });
  await expectFound(/expert_used_count/, (file) => put(file.key('qwen2moe.expert_used_count'), { value: u32(1) }));
});

test('every byte between tensors is zero, and nothing lies behind the last', async () => {
  const tensors = [3, 5].map((size, i) => ({ name: `t${i}`, type: 'f32', dims: [size] }));
  const header = Buffer.from(headerOf([], tensors).bytes);
  const whole = Buffer.concat([header, Buffer.alloc(64)]);
  const file = place('padding.gguf');
  const found = (bytes: Buffer): string[] => {
    writeFileSync(file, bytes);
    const recorder = new Recorder();
    const gguf = GgufFile.open(file);
    const context = { recorder, file: gguf };
    checkContainer(context, file, [], tensors);
    gguf.close();
    return recorder.failures.map(({ message }) => message);
  };
  assert.deepEqual(found(whole), []);
  for (let at = 0; at < 64; at++) {
    const changed = Buffer.from(whole);
    changed[header.length + at] = 1;
    const [first] = found(changed);
    const padding = (at >= 12 && at < 32) || at >= 52;
    assert.equal(first, padding ? `the padding after 't${at < 32 ? 0 : 1}' is not zero` : undefined);
  }
  for (const bytes of [Buffer.concat([whole, Buffer.alloc(1)]), whole.subarray(0, whole.length - 1)])
    assert.match(`${found(bytes)}`, /does not end where its last tensor does/);
});

test('the forger leaves no other trace: of rows that are exchanged only the comparison tells', async () => {
  const { name, quantized } = CASES[1]!;
  for (const tensor of ['token_embd.weight', 'blk.2.ffn_down.weight', 'blk.1.attn_q.weight'])
    await forged(
      place(name),
      rows(tensor, (all) => swapped(all, 3, 90)),
      async (dir) => {
        const failures = await failuresOf(dir, quantized);
        assert.ok(failures.length > 0 && failures.every((each) => each.startsWith('against: ')), `${failures}`);
        assert.equal((await verifyArtifact({ dir, runtime })).ok, true);
      },
    );
});
