import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { createRuntime } from '../../../native/binding.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { scratch } from '../../formats/scratch.js';
import { checkpointOf, type Made, made } from './checkpoint.js';

// The verifier shares no code with the packer: what it reads back must be what was packed, for every target.

const runtime = createRuntime(2);
const uint8 = { kind: 'int', dtype: 'u8' } as const;
const int16 = { kind: 'int', dtype: 'i16' } as const;

async function verified(target: string, modules: Record<string, Made>): Promise<void> {
  const dir = scratch();
  const input = await checkpointOf(dir, 'canonical', modules);
  const output = path.join(dir, 'packed');
  await packCheckpoint({ input, target, output, runtime });
  for (const against of [undefined, input.dir]) {
    const report = await verifyArtifact({ dir: output, against, runtime });
    assert.deepEqual(report.failures, [], `${target}${against ? ' --against' : ''}`);
    assert.ok(report.ok);
    // Without the checkpoint, only what was never quantized rests on the manifest's word.
    assert.deepEqual(
      report.unproved.filter((sentence) => !sentence.includes('carried tensors')),
      [],
    );
  }
  input.close();
}

test('the verifier accepts marlin artifacts: padded, per channel, one group, carried', async () => {
  await verified('marlin', {
    'l.0.fits': made({ type: 'i4', n: 256, k: 256, group: 128 }),
    'l.1.unsigned': made({ type: 'u4', n: 512, k: 128, zeros: { kind: 'const', value: 8 }, seed: 2 }),
    'l.2.short': made({ type: 'i4', n: 72, k: 200, seed: 3 }),
    'l.3.narrow': made({ type: 'i4', n: 100, k: 384, group: 128, seed: 4 }),
    'l.4.one_group': made({ type: 'i4', n: 256, k: 128, group: 128, seed: 5 }),
    'l.5.asym': made({ type: 'u4', n: 64, k: 128, zeros: uint8, seed: 6 }),
    'l.6.order': made({ type: 'i4', n: 64, k: 256, group: 128, extras: ['g_idx'], seed: 7 }),
    'l.7.permuted': made({ type: 'i4', n: 64, k: 128, extras: ['permutation'], seed: 8 }),
    'l.8.sparse': made({ type: 'i4', n: 64, k: 128, extras: ['mask'], seed: 9 }),
    'l.9.float': made({ type: 'f4e2m1', n: 64, k: 128, group: 32, scaleDtype: 'bf16', seed: 10 }),
  });
});

test('the verifier accepts gptq and gptq_v2 artifacts, dense fallbacks included', async () => {
  const symmetric = {
    'l.0.two': made({ type: 'i2', n: 64, k: 64, group: 32 }),
    'l.1.three': made({ type: 'i3', n: 96, k: 64, group: 32, seed: 2 }),
    'l.2.four': made({ type: 'u4', n: 64, k: 64, zeros: { kind: 'const', value: 8 }, seed: 3 }),
    'l.3.eight': made({ type: 'i8', n: 64, k: 64, group: 16, seed: 4 }),
    'l.4.order': made({ type: 'i4', n: 64, k: 64, group: 16, extras: ['g_idx'], seed: 5 }),
    'l.5.five': made({ type: 'i5', n: 64, k: 64, seed: 6 }),
    'l.6.permuted': made({ type: 'i4', n: 64, k: 64, extras: ['permutation'], seed: 7 }),
    'l.7.sparse': made({ type: 'i4', n: 64, k: 64, extras: ['mask'], seed: 8 }),
    'l.8.odd': made({ type: 'i3', n: 64, k: 40, seed: 9 }),
  };
  const asymmetric = {
    ...symmetric,
    'm.0.u4': made({ type: 'u4', n: 64, k: 64, group: 32, zeros: uint8, seed: 10 }),
    'm.1.i4': made({ type: 'i4', n: 64, k: 64, group: 32, zeros: int16, zeroRange: [-8, 7], seed: 11 }),
    'm.2.const': made({ type: 'u8', n: 64, k: 64, zeros: { kind: 'const', value: 3 }, seed: 12 }),
  };
  await verified('gptq', symmetric);
  await verified('gptq_v2', symmetric);
  await verified('gptq', asymmetric);
});

test('the verifier accepts compressed-tensors artifacts of every width', async () => {
  const modules: Record<string, Made> = { sparse: made({ type: 'i4', n: 8, k: 64, extras: ['mask'] }) };
  for (let bits = 1; bits <= 8; bits++) {
    const seed = 10 * bits;
    modules[`l.${bits}.asym`] = made({ type: `u${bits}`, n: 24, k: 64, group: 32, zeros: uint8, seed });
    modules[`l.${bits}.odd`] = made({ type: `u${bits}`, n: 7, k: 37, zeros: { kind: 'const', value: 0 }, seed });
    if (bits > 1)
      modules[`l.${bits}.sym`] = made({ type: `i${bits}`, n: 10, k: 96, group: 32, scaleDtype: 'bf16', seed });
  }
  modules['m.order'] = made({ type: 'i4', n: 8, k: 64, group: 32, extras: ['g_idx'] });
  modules['m.wide'] = made({ type: 'i6', n: 8, k: 64, group: 32, scaleDtype: 'f32' });
  await verified('compressed-tensors', modules);
});
