import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { CanonicalSource, SourceCheckpoint } from '../../../formats/canonical/source.js';
import { createRuntime } from '../../../native/binding.js';
import { artifactSource } from '../../../src/artifact/open.js';
import { w4axSource } from '../../../src/artifact/w4ax-source.js';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import { openTokenizer } from '../../../src/calibrate/tokenizer.js';
import { perplexity } from '../../../src/eval/perplexity.js';
import { openModel } from '../../../src/model/graph.js';
import type { ActivationForm, WeightSource } from '../../../src/model/source.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { quantizeCheckpoint } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { rtnQuantizer } from '../../../src/rtn/quantizer.js';
import { scratch } from '../../formats/scratch.js';

const MODEL = path.join(shareDirectory(), 'tiny-llama');
const TEXT = path.join(shareDirectory(), 'text', 'books-valid.txt');
const rt = createRuntime(2);

/** Precisions for every linear but down projections, in turn; a gather for some. */
function forms(source: WeightSource): Map<string, ActivationForm> {
  const found = new Map<string, ActivationForm>();
  for (const { stages } of openModel(source).blocks)
    for (const { feeds } of stages)
      for (const { linears } of feeds)
        for (const { name, k } of linears) {
          if (name.endsWith('down_proj')) continue;
          const bits = Uint8Array.from({ length: k / 128 }, (_, b) => ((b + name.length) % 2 ? 4 : 8));
          const clip = Float32Array.from(bits, (each) => (each === 4 ? 0.8 : 1));
          const order = Int32Array.from({ length: k }, (_, j) => (j * 5 + 3) % k);
          found.set(name, { ...(name.endsWith('o_proj') && { order }), blocks: { bits, clip } });
        }
  return found;
}

test('W4Ax is computed alike from a checkpoint and an artifact, decoded and through its kernel', async () => {
  const dir = scratch();
  const quantized = path.join(dir, 'quantized');
  const source = SourceCheckpoint.open(MODEL);
  await quantizeCheckpoint([rt], {
    source: MODEL,
    output: quantized,
    scheme: schemeFromOptions({ bits: 4, groupSize: 128 }),
    rules: [{ match: /layers\.[23]\./, scheme: 'skip' }],
    quantizer: rtnQuantizer(),
    calibration: undefined,
    activations: forms(source),
    kv: { bits: 4, group: 64 },
    lmHead: false,
    options: {},
    version: 'test',
  });
  source.close();
  const input = CanonicalCheckpoint.open(quantized);
  const output = path.join(dir, 'packed');
  await packCheckpoint({ input, target: 'comet', output, runtime: rt });
  input.close();
  const ids = await (await openTokenizer(MODEL))(readFileSync(TEXT, 'utf8').slice(0, 20_000));
  const windows = [0, 1].map((i) => ids.slice(24 * i, 24 * i + 24));
  const nats = async (from: WeightSource & { close(): void }): Promise<number> => {
    const { nll } = await perplexity(rt, from, openModel(from), windows, { ctx: 24 });
    from.close();
    return nll;
  };
  const want = await nats(CanonicalSource.open(quantized, rt));
  const decoded = artifactSource(output, rt);
  assert.ok('packed' in decoded);
  assert.deepEqual(decoded.kv, { bits: 4, group: 64 });
  assert.equal(decoded.packed('model.layers.0.mlp.up_proj.weight'), undefined);
  // down projections were not to read codes: they are weights for 16 bits, carried.
  assert.equal(decoded.manifest.modules['model.layers.0.mlp.down_proj']?.layout, 'carried');
  assert.equal(await nats(decoded), want);
  const packed = artifactSource(output, rt, true, true);
  assert.ok('packed' in packed);
  assert.equal(packed.packed('model.layers.0.mlp.up_proj.weight')?.kernel.name, 'comet');
  assert.equal(await nats(packed), want);
  const laidOut = w4axSource(CanonicalSource.open(quantized, rt), rt);
  assert.equal((await laidOut.packed?.('model.layers.0.self_attn.o_proj.weight'))?.kernel.name, 'comet');
  assert.equal(laidOut.packed?.('model.norm.weight'), undefined);
  assert.equal(await nats(laidOut), want);
});
