import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { Artifact } from '../../../formats/artifact/read.js';
import type { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { createRuntime, typed } from '../../../native/binding.js';
import { artifactSource } from '../../../src/artifact/open.js';
import { quantType } from '../../../src/core/quant-type.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { planPack } from '../../../src/pack/plan.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { stream } from '../../formats/canonical/fixture.js';
import { designed, scratch } from '../../formats/scratch.js';
import { random } from '../verify/numbers.js';
import { isCaught, Tampered } from '../verify/tamper.js';
import { checkpointOf, type Made, made, sparse } from './checkpoint.js';

const runtime = createRuntime(2);
const half = { kind: 'const', value: 8 } as const;

async function packed(modules: Record<string, Made>, ranks = 1): Promise<[Artifact, CanonicalCheckpoint]> {
  const dir = scratch();
  const input = await checkpointOf(dir, 'canonical', modules);
  const output = path.join(dir, 'packed');
  await packCheckpoint({ input, target: 'sparse_marlin', ranks, output, runtime });
  for (const against of [undefined, input.dir]) {
    const report = await verifyArtifact({ dir: output, against, runtime, kernel: runtime });
    assert.deepEqual(report.failures, []);
    for (const { name, layout, emulatorRatio, kernelRatio } of report.modules) {
      if (layout === 'carried') continue;
      assert.ok(emulatorRatio !== undefined && emulatorRatio <= 1, `${name}: ${emulatorRatio}`);
      // Parts of ranks have no kernel.
      if (ranks === 1) assert.ok(kernelRatio! > 0 && kernelRatio! <= 1, `${name}: ${kernelRatio}`);
    }
  }
  return [Artifact.open(output), input];
}

/** Element (n, compressed k) and word (n, k / 16) by the closed forms of the shared spec "packed layouts", section 2. */
function closedForm(n: number, np: number, bits: 4 | 8) {
  const [nt, col, blk, j] = [Math.floor(n / 64), Math.floor((n % 64) / 8), Math.floor((n % 8) / 4), n % 4];
  return {
    code(kc: number): { word: number; shift: number } {
      const [kt, kr] = [Math.floor(kc / 16), kc % 16];
      const lane = 4 * col + Math.floor((kr % 8) / 2);
      if (bits === 4)
        return {
          word: kt * 2 * np + nt * 128 + lane * 4 + j,
          shift: 4 * (4 * (kr & 1) + 2 * blk + Math.floor(kr / 8)),
        };
      return {
        word: kt * 4 * np + nt * 256 + lane * 8 + 2 * j + blk,
        shift: 8 * (2 * (kr & 1) + Math.floor(kr / 8)),
      };
    },
    metadata(c: number): number {
      const bit = (i: number) => (n >> i) & 1;
      return Math.floor(c / 2) * 2 * np + nt * 128 + 64 * bit(1) + 8 * col + 4 * bit(0) + 2 * (c % 2) + bit(2);
    },
  };
}

for (const [what, options, padded] of [
  ['4 bits, groups', { type: 'i4', n: 256, k: 256, group: 128 }, [256, 256]],
  ['4 bits, unsigned, padded N', { type: 'u4', n: 66, k: 256, group: 128, zeros: half, seed: 3 }, [256, 256]],
  ['4 bits, whole rows, padded N and K', { type: 'i4', n: 70, k: 140, seed: 5 }, [256, 256]],
  ['8 bits, groups', { type: 'i8', n: 130, k: 384, group: 128, seed: 6 }, [256, 384]],
  ['8 bits, one group', { type: 'i8', n: 20, k: 128, group: 128, seed: 7 }, [256, 128]],
] as const)
  test(`every code, place and scale lies where the closed form says: ${what}`, async () => {
    const module = sparse(options);
    const [artifact] = await packed({ m: module });
    const { n, k } = options;
    const { bits, signed } = quantType(options.type) as { bits: 4 | 8; signed: boolean };
    const [np, kp] = padded;
    assert.deepEqual(artifact.module('m').padded, padded);
    const [words, meta, scales] = ['m.B', 'm.meta', 'm.s'].map((name) => artifact.tensor(name));
    assert.deepEqual(words!.shape, [kp / 32, (16 * np) / (32 / bits)]);
    assert.deepEqual(meta!.shape, [kp / 32, 2 * np]);
    const expected = new Uint32Array(words!.byteLength / 4);
    const places = new Uint16Array(meta!.byteLength / 2);
    const middle = 2 ** (bits - 1);
    for (let row = 0; row < np; row++) {
      const at = closedForm(row, np, bits);
      for (let q = 0; q < kp / 4; q++) {
        const inside = row < n && 4 * q < k;
        const pair = inside ? [0, 1, 2, 3].filter((c) => module.kept[row * k + 4 * q + c]) : [2, 3];
        places[at.metadata(Math.floor(q / 4))]! |= (pair[0]! | (pair[1]! << 2)) << (4 * (q % 4));
        for (const [i, c] of pair.entries()) {
          const code = inside ? module.codes[row * k + 4 * q + c]! ^ (signed ? middle : 0) : middle;
          const { word, shift } = at.code(2 * q + i);
          expected[word] = (expected[word]! | (code << shift)) >>> 0;
        }
      }
    }
    assert.deepEqual(new Uint32Array(words!.bytes().slice().buffer), expected);
    assert.deepEqual(new Uint16Array(meta!.bytes().slice().buffer), places);
    const order = [0, 4, 1, 5, 2, 6, 3, 7];
    const groups = scales!.shape[0]!;
    const stored = typed<Uint16Array>(scales!);
    for (let g = 0; g < groups; g++)
      for (let p = 0; p < np; p++) {
        const row = groups === 1 ? p : p - (p % 8) + order[p % 8]!;
        assert.equal(stored[g * np + p], row < n ? module.scales[row * module.groups + g] : 0, `group ${g} place ${p}`);
      }
  });

test('ranks share modules by rows and by columns', async () => {
  const [artifact] = await packed(
    {
      'l.q_proj': sparse({ type: 'i4', n: 128, k: 256, group: 128 }),
      'l.o_proj': sparse({ type: 'i8', n: 64, k: 256, group: 128, seed: 2 }),
      'l.down_proj': sparse({ type: 'u4', n: 64, k: 144, zeros: half, seed: 3 }),
    },
    2,
  );
  assert.deepEqual(artifact.module('l.o_proj').ranks, { count: 2, split: 'k' });
  assert.deepEqual(artifact.module('l.down_proj').padded, [256, 128]);
  assert.deepEqual(Object.keys(artifact.module('l.q_proj').tensors), [
    'l.q_proj.rank0.B',
    'l.q_proj.rank0.meta',
    'l.q_proj.rank0.s',
    'l.q_proj.rank1.B',
    'l.q_proj.rank1.meta',
    'l.q_proj.rank1.s',
  ]);
});

test('an evaluation reads the weights back', async () => {
  const module = sparse({ type: 'i4', n: 12, k: 128, group: 128 });
  const [artifact] = await packed({ m: module });
  const source = artifactSource(artifact.dir, runtime);
  const weight = typed<Float32Array>(await source.tensor('m.weight'));
  for (let i = 0; i < weight.length; i++) {
    const bits = module.scales[Math.floor(i / 128)]!;
    const scale = (1 + (bits & 1023) / 1024) * 2 ** ((bits >> 10) - 15);
    const q = module.codes[i]! >= 8 ? module.codes[i]! - 16 : module.codes[i]!;
    assert.equal(weight[i], module.kept[i] ? q * scale : 0);
  }
  source.close();
});

test('flipped bits of values, metadata and scales are found, with hashes made to fit', async () => {
  for (const [type, k, group] of [
    ['i4', 128, undefined],
    ['i4', 256, 128],
    ['i8', 128, 128],
  ] as const) {
    const [artifact, input] = await packed({ m: sparse({ type, n: 70, k, ...(group && { group }) }) });
    artifact.close();
    assert.equal(await isCaught(artifact.dir, input.dir, runtime), false);
    const shard = new Tampered(artifact.dir, 'model.safetensors');
    const next = random(17);
    const escaped: string[] = [];
    for (const { name, begin, end } of shard.tensors().filter((each) => each.name.startsWith('m.')))
      for (let i = 0; i < 24; i++) {
        const bit = begin + (next() % (end - begin));
        await shard.flipped(bit, i % 2 ? 'artifact' : 'all', async () => {
          if (!(await isCaught(artifact.dir, i % 2 ? undefined : input.dir, runtime)))
            escaped.push(`${name}:${bit - begin}`);
        });
      }
    assert.deepEqual(escaped, []);
  }
});

test('metadata that names a place twice, or in falling order, is refused by name', async () => {
  const [artifact, input] = await packed({ m: sparse({ type: 'i4', n: 64, k: 128, group: 128 }) });
  const [meta] = [typed<Uint16Array>(artifact.tensor('m.meta')).slice()];
  artifact.close();
  const shard = new Tampered(artifact.dir, 'model.safetensors');
  const { begin } = shard.tensors().find(({ name }) => name === 'm.meta')!;
  let tried = 0;
  for (let word = 0; word < meta.length && tried < 6; word += 7)
    for (let bit = 0; bit < 16; bit++) {
      const pair = ((meta[word]! ^ (1 << bit)) >> (bit - (bit % 4))) & 15;
      if ((pair & 3) < pair >> 2) continue;
      tried++;
      await shard.flipped(begin + 16 * word + bit, 'all', async () => {
        const report = await verifyArtifact({ dir: artifact.dir, runtime });
        assert.ok(
          report.failures.some(
            ({ tensor, message }) => tensor === 'm.meta' && /two places in ascending order/.test(message),
          ),
          JSON.stringify(report.failures),
        );
        const source = artifactSource(artifact.dir, runtime);
        await assert.rejects(async () => source.tensor('m.weight'), designed('LPQ_VERIFY', /m\.meta/));
        source.close();
      });
      break;
    }
  assert.equal(tried, 6);
  input.close();
});

test('modules that it does not take are told why', async () => {
  const bf16 = sparse({ type: 'i4', n: 8, k: 128, group: 128, scaleDtype: 'bf16' });
  const input = await checkpointOf(scratch(), 'refused', {
    dense: made({ type: 'i4', n: 64, k: 128, group: 128 }),
    three: sparse({ type: 'i3', n: 8, k: 128, group: 128 }),
    float: sparse({ type: 'f4e2m1', n: 8, k: 128, group: 128 }),
    asym: sparse({ type: 'u4', n: 8, k: 128, group: 128, zeros: { kind: 'int', dtype: 'u8' } }),
    small: sparse({ type: 'i4', n: 8, k: 128, group: 64 }),
    bf16,
    fits: sparse({ type: 'i4', n: 8, k: 128, group: 128 }),
  });
  const { decisions } = planPack(input, 'sparse_marlin');
  const reason = (name: string): string => {
    const decision = decisions.get(name)!;
    return decision.action === 'fallback' ? decision.reason : decision.action;
  };
  assert.match(reason('dense'), /not 2:4 sparse/);
  assert.match(reason('three'), /3-bit codes/);
  assert.match(reason('float'), /not integers/);
  assert.match(reason('asym'), /zero points, and Sparse-MARLIN has none/);
  assert.match(reason('small'), /groups have 64 weights/);
  assert.match(reason('bf16'), /scales are bf16/);
  assert.equal(reason('fits'), 'pad');
  input.close();
});

test('a weight that is not stored as 2:4 weights are is refused, naming where', async () => {
  const module = sparse({ type: 'i4', n: 8, k: 128, group: 128 });
  const refused = async (data: Partial<Made['data']>, got: RegExp): Promise<void> => {
    const dir = scratch();
    const input = await checkpointOf(dir, 'canonical', { m: { ...module, data: { ...module.data, ...data } } });
    const packing = packCheckpoint({ input, target: 'sparse_marlin', output: path.join(dir, 'out'), runtime });
    await assert.rejects(packing, designed('LPQ_PACK', got));
    input.close();
  };
  const codes = [...module.codes];
  const at = module.kept.indexOf(0, 3 * 128 + 8);
  codes[at] = 5;
  const four = (at % 128) - (at % 4);
  await refused(
    { codes: stream(codes, 8, 128, 4) },
    new RegExp(`row 3, input features ${four} to ${four + 3}: a pruned weight has code 5 \\(1 such fours\\)`),
  );
  const kept = [...module.kept];
  kept[kept.indexOf(1, 2 * 128 + 60)] = 0;
  await refused({ mask: stream(kept, 8, 128, 1) }, /row 2, input features 6\d to 6\d: 1 weights stay/);
});
