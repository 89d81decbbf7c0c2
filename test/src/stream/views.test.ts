import assert from 'node:assert/strict';
import { copyFileSync, cpSync, mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { SourceCheckpoint } from '../../../formats/canonical/source.js';
import { endStream, setStream } from '../../../formats/safetensors/stream.js';
import { createRuntime } from '../../../native/binding.js';
import type { HubFile } from '../../../src/hub/listing.js';
import { buildGraph, planSource } from '../../../src/model/graph.js';
import { quantizeCheckpoint } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { rtnQuantizer } from '../../../src/rtn/quantizer.js';
import { readHeads } from '../../../src/stream/heads.js';
import { Place } from '../../../src/stream/places.js';
import { Supply } from '../../../src/stream/supply.js';
import { deepseek, gptOss, kimi, qwenVlFp8 } from '../../formats/foreign/published.js';
import { handmade } from '../../formats/scratch.js';
import { lpq, scratch } from '../cli/lpq.js';
import { ID } from '../hub/server.js';
import { bench, cut, differing, RTN } from './setup.js';

const rt = createRuntime(2);

/** Shards of `from` that are copied into `folder` when they are needed; `into` has the rest of the model. */
async function supplied(
  from: string,
  into: string,
  folder: string,
  shards: readonly string[],
  planned: boolean,
): Promise<Supply> {
  cpSync(from, into, { recursive: true });
  for (const name of shards) rmSync(path.join(into, name));
  mkdirSync(folder);
  const heads = await readHeads(
    shards.map((name) => {
      const at = path.join(from, name);
      const file: HubFile = { path: name, size: statSync(at).size, etag: name, digest: 'sha256', oid: '' };
      const readPart = async (first: number, length: number) => readFileSync(at).subarray(first, first + length);
      return { file, headPath: path.join(folder, `${name}.head`), readPart };
    }),
  );
  const places = heads.map((shard) => {
    const file = { path: shard.name, size: shard.bytes, etag: shard.name, digest: 'sha256', oid: '' } as const;
    return new Place(shard, file, path.join(folder, shard.name), true);
  });
  const supply = new Supply(places, async ({ shard, path: at }) => copyFileSync(path.join(from, shard.name), at));
  setStream(into, supply);
  const source = SourceCheckpoint.open(into);
  const { blocks } = buildGraph(planSource(source));
  supply.begin(planned ? blocks.map(({ tensors }) => [...tensors.keys()]) : []);
  source.close();
  return supply;
}

const request = (source: string, output: string) => ({
  ...{ source, output, scheme: schemeFromOptions({ bits: 8, groupSize: 32 }), quantizer: rtnQuantizer() },
  rules: [{ match: /experts\.1\.|layers\.0\..*o_proj/, scheme: 'skip' as const }],
  ...{ calibration: undefined, lmHead: false, options: {}, version: 'test' },
});

for (const [name, publish] of Object.entries({ gptOss, deepseek, kimi, qwenVlFp8 }))
  test(`${name}, published in low bits, comes shard by shard, codes and scales in different ones`, async (t) => {
    const home = scratch(t);
    const { low } = await publish(home);
    const [whole, here] = [path.join(home, 'whole', 'model'), path.join(home, 'streamed', 'model')];
    // Every third tensor begins a shard.
    const shards = await cut(low, whole, 99, (_, i) => 1 + Math.floor(i / 3));
    const folder = path.join(home, 'shards');
    await quantizeCheckpoint([rt], request(whole, path.join(home, 'a')));
    // Of blocks, which are two; and as if nothing were known of them: room for two shards, and modules that wait for each other's.
    for (const planned of name === 'gptOss' ? [true, false] : [false]) {
      const supply = await supplied(whole, here, folder, shards, planned);
      await quantizeCheckpoint([rt], request(here, path.join(home, `b${planned}`)));
      endStream(supply);
      await supply.close();
      assert.deepEqual(differing(path.join(home, 'a'), path.join(home, `b${planned}`)), []);
      const { peak, files } = supply.moved;
      assert.ok(peak <= supply.mostBytes && files >= shards.length / 2, `${peak} ${files}`);
      for (const place of [here, folder]) rmSync(place, { recursive: true });
    }
  });

test('an adapter is merged into shards as they come', async (t) => {
  const { home, dir } = await bench(t);
  const adapter = path.join(home, 'adapter');
  mkdirSync(adapter);
  writeFileSync(
    path.join(adapter, 'adapter_config.json'),
    JSON.stringify({ peft_type: 'LORA', r: 1, lora_alpha: 1, target_modules: ['q_proj'] }),
  );
  const module = 'base_model.model.model.layers.2.self_attn.q_proj';
  const header = {
    [`${module}.lora_A.weight`]: { dtype: 'F32', shape: [1, 256], data_offsets: [0, 1024] },
    [`${module}.lora_B.weight`]: { dtype: 'F32', shape: [256, 1], data_offsets: [1024, 2048] },
  };
  const data = Buffer.from(Float32Array.from({ length: 512 }, (_, i) => Math.sin(i) / 8).buffer);
  handmade(path.join(adapter, 'adapter_model.safetensors'), JSON.stringify(header), data);
  const args = [...RTN, '--lora', adapter];
  const whole = await lpq(['quantize', dir, '-o', path.join(home, 'a'), ...args]);
  assert.equal(whole.code, 0, whole.stderr);
  const ran = await lpq(['quantize', ID, '-o', path.join(home, 'b'), '--stream', ...args]);
  assert.equal(ran.code, 0, ran.stderr);
  assert.deepEqual(differing(path.join(home, 'a'), path.join(home, 'b')), []);
});
