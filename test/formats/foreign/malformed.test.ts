// Tensors and settings that contradict each other: each ends in a designed error or is read all the same, and in a diagnosis.
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { diagnoseDirectory } from '../../../src/cli/doctor/diagnosis/diagnose.js';
import { type Encoded, gptqTensors } from './encode.js';
import {
  AWQ,
  asym4,
  awq,
  type Case,
  gptq,
  header,
  packed,
  Q,
  replace,
  root,
  sym4,
  testMalformed,
} from './malformed.js';
import { CONFIG, gptqSettings, packedSettings, plain, quantized, writeModel } from './mini.js';

const CASES: readonly Case[] = [
  {
    what: 'a tensor of a wrong shape',
    write: (dir) =>
      writeModel(dir, {
        tensors: replace(gptq(), `${Q}.scales`, (t) => ({ ...t, shape: [2, 32], data: new Uint16Array(64) })),
        settings: gptqSettings(4, 32),
      }),
    code: 'LPQ_FOREIGN',
    sentence: /q_proj\.scales.*got \[2,32\].*expected \[2,64\]/,
    check: 'modules',
    diagnosis: /q_proj\.scales.*does not have the shape/,
  },
  {
    what: 'v1 stated, v2 stored (symmetric)',
    write: (dir) => writeModel(dir, { tensors: gptq('v2'), settings: gptqSettings(4, 32) }),
    code: undefined,
    check: 'zeros',
    diagnosis: /14 modules.*states gptq \(zero points minus one\).*stored as in gptq_v2/,
  },
  {
    what: 'v2 stated, v1 stored (symmetric)',
    write: (dir) =>
      writeModel(dir, { tensors: gptq('v1'), settings: gptqSettings(4, 32, { checkpoint_format: 'gptq_v2' }) }),
    code: undefined,
    check: 'zeros',
    diagnosis: /states gptq_v2.*stored as in gptq \(zero points minus one\)/,
  },
  {
    what: 'v1 stated, v2 stored (asymmetric: the means of the weights tell)',
    write: (dir) => writeModel(dir, { tensors: gptq('v2', asym4), settings: gptqSettings(4, 32, { sym: false }) }),
    code: undefined,
    check: 'zeros',
    diagnosis: /states gptq \(zero points minus one\), but the means of the weights show gptq_v2/,
  },
  {
    what: 'zero points of 0 stored as -1 and run into their neighbours',
    write: (dir) =>
      writeModel(dir, {
        tensors: replace(gptq('v1', asym4), `${Q}.qzeros`, (t) => {
          const data = (t.data as Int32Array).slice();
          data[0] = (data[0] as number) | -65536; // fields 4 and up
          return { ...t, data };
        }),
        settings: gptqSettings(4, 32, { sym: false }),
      }),
    code: undefined,
    check: 'zeros',
    diagnosis: /1 of \d+ words of qzeros end in ones \(first in 'model\.layers\.0\.self_attn\.q_proj'\)/,
  },
  {
    what: 'a zero point of 0 stored as -1, masked',
    write: (dir) =>
      writeModel(dir, {
        tensors: replace(gptq('v1', asym4), `${Q}.qzeros`, (t) => {
          const data = (t.data as Int32Array).slice();
          data[0] = (data[0] as number) | 15;
          return { ...t, data };
        }),
        settings: gptqSettings(4, 32, { sym: false }),
      }),
    code: undefined,
    check: 'zeros',
    diagnosis: /zero points of 0 are stored as -1/,
    severity: 'warning',
  },
  {
    what: 'a dtype that lies with the right size',
    write: (dir) =>
      header(dir, (text) => text.replace(/("[^"]*0\.self_attn\.q_proj\.qweight":\{"dtype":)"I32"/, '$1"F32"')),
    code: 'LPQ_FOREIGN',
    sentence: /q_proj\.qweight.*wrong dtype.*got F32/,
    check: 'modules',
    diagnosis: /q_proj\.qweight.*wrong dtype/,
  },
  {
    what: 'a g_idx out of range',
    write: (dir) =>
      writeModel(dir, {
        tensors: replace(gptq(), `${Q}.g_idx`, (t) => {
          const data = (t.data as Int32Array).slice();
          data[7] = 2;
          return { ...t, data };
        }),
        settings: gptqSettings(4, 32, { desc_act: true }),
      }),
    code: 'LPQ_FOREIGN',
    sentence: /q_proj\.g_idx.*names a group that does not exist.*got 2 at \[7\]/,
    check: 'modules',
    diagnosis: /names a group that does not exist/,
  },
  {
    what: 'a negative g_idx',
    write: (dir) =>
      writeModel(dir, {
        tensors: replace(gptq(), `${Q}.g_idx`, (t) => ({ ...t, data: new Int32Array(64).fill(-1) })),
        settings: gptqSettings(4, 32),
      }),
    code: 'LPQ_FOREIGN',
    sentence: /got -1 at \[0\]/,
    check: 'modules',
    diagnosis: /names a group that does not exist/,
  },
  {
    what: 'a group size that does not divide K',
    write: (dir) => writeModel(dir, { tensors: gptq(), settings: gptqSettings(4, 48) }),
    code: 'LPQ_FOREIGN',
    sentence: /group_size 48 .* does not divide the (64|128) input features/,
    check: 'modules',
    diagnosis: /group_size 48/,
  },
  {
    what: 'another group size than stored',
    write: (dir) => writeModel(dir, { tensors: gptq(), settings: gptqSettings(4, 64) }),
    code: 'LPQ_FOREIGN',
    sentence: /not have the number of groups.*got [24] rows.*If its groups are of 32/,
    check: 'modules',
    diagnosis: /not have the number of groups/,
  },
  {
    what: 'no quantization_config',
    write: (dir) => writeModel(dir, { tensors: gptq(), settings: undefined }),
    code: 'LPQ_FOREIGN',
    sentence: /quantized weights, but neither config\.json/,
    check: 'settings',
    diagnosis: /has no quantization_config/,
  },
  {
    what: 'other bits than stored',
    write: (dir) => writeModel(dir, { tensors: gptq(), settings: gptqSettings(8, 32) }),
    code: 'LPQ_FOREIGN',
    sentence: /does not have the number of bits.*got 4-bit tensors.*expected 8 bits/,
    check: 'modules',
    diagnosis: /does not have the number of bits/,
  },
  {
    what: 'AWQ called GPTQ',
    write: (dir) => writeModel(dir, { tensors: awq(), settings: gptqSettings(4, 32) }),
    code: 'LPQ_FOREIGN',
    sentence: /not stored in GPTQ.*correct quant_method/,
    check: 'modules',
    diagnosis: /not stored in GPTQ's form/,
  },
  {
    what: 'GPTQ called AWQ',
    write: (dir) => writeModel(dir, { tensors: gptq(), settings: AWQ }),
    code: 'LPQ_FOREIGN',
    sentence: /not stored in AWQ.*correct quant_method/,
    check: 'modules',
    diagnosis: /not stored in AWQ's form/,
  },
  {
    what: 'a module without its scales',
    write: (dir) =>
      writeModel(dir, {
        tensors: replace(gptq(), `${Q}.scales`, () => undefined),
        settings: gptqSettings(4, 32),
      }),
    code: 'LPQ_FOREIGN',
    sentence: /lacks the tensor '.*q_proj\.scales'/,
    check: 'modules',
    diagnosis: /lacks the tensor/,
  },
  {
    what: 'a missing norm',
    write: (dir) =>
      writeModel(dir, {
        tensors: replace(gptq(), 'model.norm.weight', () => undefined),
        settings: gptqSettings(4, 32),
      }),
    code: 'LPQ_TENSOR_MISSING',
    sentence: /model\.norm\.weight/,
    check: 'model',
    diagnosis: /1 of \d+ tensors that llama needs are missing/,
  },
  {
    what: 'siblings of different bits',
    write: (dir) => {
      const eight = quantized({ bits: 8, group: 32, symmetric: true });
      const tensors = [
        ...plain,
        ...[...sym4].flatMap(([name, c]) => gptqTensors(name, name === Q ? (eight.get(Q) ?? c) : c, 'v1')),
      ];
      const dynamic = { '+:model\\.layers\\.0\\.self_attn\\.q_proj': { bits: 8 } };
      return writeModel(dir, { tensors, settings: gptqSettings(4, 32, { dynamic }) });
    },
    code: undefined,
    check: 'siblings',
    diagnosis: /\{q_proj, k_proj, v_proj\}, which loaders fuse, are quantized differently/,
  },
  {
    what: 'scales that are NaN and infinite',
    write: (dir) =>
      writeModel(dir, {
        tensors: replace(gptq(), `${Q}.scales`, (t) => {
          const data = (t.data as Uint16Array).slice();
          data[0] = 0x7c00;
          data[1] = 0x7e00;
          return { ...t, data };
        }),
        settings: gptqSettings(4, 32),
      }),
    code: undefined,
    check: 'scales',
    diagnosis: /q_proj': 2 of 128 scales are NaN or infinite/,
  },
  {
    what: 'scales out of the range of fp16',
    write: (dir) =>
      writeModel(dir, {
        tensors: replace(packed(), `${Q}.weight_scale`, (t) => {
          const data = Float32Array.from({ length: 128 }, (_, i) => (i === 3 ? 1e6 : i === 4 ? 1e-9 : 0.01));
          return { ...t, dtype: 'F32', data };
        }),
        settings: packedSettings(4, 32, true),
      }),
    code: undefined,
    check: 'scales',
    diagnosis: /2 of 128 scales are out of fp16's range/,
  },
  {
    what: 'scales of 0',
    write: (dir) =>
      writeModel(dir, {
        tensors: replace(gptq(), `${Q}.scales`, (t) => ({ ...t, data: new Uint16Array(128) })),
        settings: gptqSettings(4, 32),
      }),
    code: undefined,
    check: 'scales',
    diagnosis: /128 of 128 scales are 0/,
    severity: 'warning',
  },
  {
    what: 'a weight_shape that lies',
    write: (dir) =>
      writeModel(dir, {
        tensors: replace(packed(), `${Q}.weight_shape`, (t) => ({ ...t, data: BigInt64Array.of(64n, 2n ** 62n) })),
        settings: packedSettings(4, 32, true),
      }),
    code: 'LPQ_FOREIGN',
    sentence: /weight_shape.*holds no shape/,
    check: 'modules',
    diagnosis: /weight_shape.*holds no shape/,
  },
  {
    what: 'a module that the settings ignore',
    write: (dir) =>
      writeModel(dir, { tensors: packed(), settings: { ...packedSettings(4, 32, true), ignore: [`re:.*q_proj`] } }),
    code: 'LPQ_FOREIGN',
    sentence: /q_proj.*is quantized, but the settings leave it out/,
    check: 'modules',
    diagnosis: /the settings leave it out/,
  },
  {
    what: 'settings that are no object',
    write: async (dir) => {
      await writeModel(dir, { tensors: gptq() });
      writeFileSync(path.join(dir, 'config.json'), JSON.stringify({ ...CONFIG, quantization_config: 'gptq' }));
    },
    code: 'LPQ_CONFIG',
    sentence: /quantization_config is no object/,
    check: 'settings',
    diagnosis: /is no object/,
  },
  {
    what: 'a method that lpq does not read',
    write: (dir) => writeModel(dir, { tensors: gptq(), settings: { quant_method: 'bitsandbytes' } }),
    code: 'LPQ_CONFIG',
    sentence: /got bitsandbytes/,
    check: 'settings',
    diagnosis: /a method that lpq does not read/,
  },
  {
    what: 'config.json cut short',
    write: async (dir) => {
      await writeModel(dir, { tensors: gptq(), settings: gptqSettings(4, 32) });
      writeFileSync(path.join(dir, 'config.json'), '{"model_type": "lla');
    },
    code: 'LPQ_CONFIG',
    sentence: /config\.json/,
    check: 'settings',
    diagnosis: /config\.json/,
  },
];

testMalformed(CASES);

test('nothing is wrong with whole checkpoints', async () => {
  const whole: [string, Encoded[], object][] = [
    ['gptq', gptq(), gptqSettings(4, 32)],
    ['gptq-asym', gptq('v1', asym4), gptqSettings(4, 32, { sym: false })],
    ['gptq_v2', gptq('v2', asym4), gptqSettings(4, 32, { sym: false, checkpoint_format: 'gptq_v2' })],
    ['awq', awq(), AWQ],
    ['packed', packed(), packedSettings(4, 32, true)],
  ];
  for (const [name, tensors, settings] of whole) {
    const { findings, kind } = await diagnoseDirectory(await writeModel(path.join(root, name), { tensors, settings }));
    assert.match(kind, /^foreign:/);
    const odd = findings.list.filter(({ message }) => !/stored as -1/.test(message));
    assert.deepEqual(odd, [], name);
    assert.deepEqual(
      findings.checks().map((each) => each.name),
      name === 'packed'
        ? ['files', 'settings', 'modules', 'scales', 'siblings', 'model']
        : ['files', 'settings', 'modules', 'zeros', 'scales', 'siblings', 'model'],
    );
  }
});
