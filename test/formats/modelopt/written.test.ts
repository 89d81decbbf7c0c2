import assert from 'node:assert/strict';
import { readFileSync, rmSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { PARTS } from '../../../formats/canonical/tensors.js';
import { openForeign } from '../../../formats/foreign/open.js';
import { createRuntime, typed } from '../../../native/binding.js';
import { CASES } from '../../mutation/cases.js';
import { packedCase } from '../../mutation/packed.js';
import { Shelf } from '../../mutation/quantized.js';
import { scratch } from '../scratch.js';

// vLLM's own classes read the same directories in test/engines/rules.test.ts.

const runtime = createRuntime(1);
const shelf = new Shelf(scratch(), runtime);

for (const each of CASES.filter(({ target }) => target === 'modelopt'))
  test(`what is packed for modelopt (${each.variant}) is read back as what was quantized`, async () => {
    const { packed, quantized } = await packedCase(shelf, each, runtime);
    const { quantization } = JSON.parse(readFileSync(path.join(packed, 'hf_quant_config.json'), 'utf8'));
    assert.equal(quantization.quant_algo, each.variant === 'eights' ? 'MIXED_PRECISION' : 'NVFP4');
    rmSync(path.join(packed, 'lpq.json')); // from here on another tool's
    const [read, expected] = [openForeign(packed).canonical, CanonicalCheckpoint.open(quantized)];
    assert.deepEqual(read.moduleNames().sort(), expected.moduleNames().sort());
    for (const name of expected.moduleNames()) {
      const { type, shape, granularity } = expected.module(name);
      const got = read.module(name);
      assert.deepEqual([got.type, got.shape, got.granularity], [type, shape, granularity], name);
      for (const part of PARTS) {
        const [mine, theirs] = [read.part(name, part), expected.part(name, part)];
        assert.equal(mine === undefined, theirs === undefined, `${name} ${part}`);
        if (!mine || !theirs) continue;
        // FP8 has F32 scales there: the same numbers as f16.
        if (mine.dtype === 'f32' && theirs.dtype === 'f16')
          assert.deepEqual(
            [...typed<Float32Array>(mine)],
            [...typed<Uint16Array>(theirs)].map(half),
            `${name} ${part}`,
          );
        else assert.deepEqual(mine.bytes(), theirs.bytes(), `${name} ${part}`);
        for (const tensor of [mine, theirs]) tensor.dispose();
      }
    }
    for (const checkpoint of [read, expected]) checkpoint.close();
  });

/** A positive f16 that is no subnormal, by its definition. */
function half(bits: number): number {
  assert.ok(bits >> 10 > 0 && bits < 0x7c00);
  return 2 ** ((bits >> 10) - 15) * (1 + (bits & 1023) / 1024);
}
