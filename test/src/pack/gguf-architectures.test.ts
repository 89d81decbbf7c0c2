import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { CanonicalSource } from '../../../formats/canonical/source.js';
import { GgufTensors } from '../../../formats/gguf/source/tensors.js';
import { createRuntime, type Tensor, typed } from '../../../native/binding.js';
import { artifactSource } from '../../../src/artifact/open.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { lpq, scratch } from '../cli/lpq.js';
import { writeWidened } from '../model/fixtures.js';
import { half } from './gguf-blocks.js';
import { BYTES } from './llama-cpp.js';

const runtime = createRuntime(2);

/** Floats of a tensor, whatever its dtype. */
function floats(tensor: Tensor): number[] {
  if (tensor.dtype === 'f32') return [...typed<Float32Array>(tensor)];
  const bits = typed<Uint16Array>(tensor);
  if (tensor.dtype === 'f16') return Array.from(bits, half);
  return [...new Float32Array(Uint32Array.from(bits, (b) => b << 16).buffer)];
}

/** From the block's number on: models that see have their language model below another path. */
const inBlock = (name: string): string | undefined => /layers\.(\d+\..+)$/.exec(name)?.[1];

/**
 * The same numbers. The file has f32 of -exp(A_log), within 2^-24 of it: its logarithm is within 2^-24, and as f32 below 1 within 2^-25 more.
 */
function same(got: readonly number[], expected: readonly number[], name: string): void {
  if (!name.endsWith('A_log')) assert.deepEqual(got, expected, name);
  else for (const [i, value] of expected.entries()) assert.ok(Math.abs((got[i] as number) - value) <= 2 ** -23, name);
}

const KINDS: readonly { kind: string; config: object; among: string; options?: readonly string[] }[] = [
  // Rows of q and k, and their biases, are moved.
  {
    kind: 'glm4v',
    config: { rope_parameters: { rope_theta: 10_000, partial_rotary_factor: 0.5, mrope_section: [4, 4, 8] } },
    among: 'self_attn.k_proj.bias',
  },
  // Numbers of the activation are keys of the file.
  { kind: 'apertus', config: {}, among: 'mlp.act_fn.alpha_n' },
  // Gate and up of one linear, in halves of their own.
  { kind: 'granitemoehybrid', config: {}, among: 'shared_mlp.input_linear.weight' },
  // Indexers; gate and up of one linear beside the experts, too.
  { kind: 'minimax_m3_vl_text', config: { swiglu_limit: 7, index_block_size: 4 }, among: 'indexer.k_norm.weight' },
];

for (const { kind, config, among } of KINDS)
  test(`${kind}: what GGUF holds is what was quantized, by both readers`, async (t) => {
    const dir = scratch(t);
    const [from, canonical, output] = ['m', 'q', 'g'].map((name) => path.join(dir, name)) as [string, string, string];
    await writeWidened(kind, from, { vocab_size: 320, text_config: { vocab_size: 320, ...config }, ...config });
    writeFileSync(path.join(from, 'tokenizer.json'), JSON.stringify(BYTES));
    for (const args of [
      ['quantize', from, '-o', canonical, '--method', 'rtn', '--bits', '8', '--group-size', '32'],
      ['pack', canonical, '--target', 'gguf', '-o', output],
    ]) {
      const { code, stderr } = await lpq(args);
      assert.equal(code, 0, stderr);
    }
    for (const against of [undefined, canonical]) {
      const { failures } = await verifyArtifact({ dir: output, against, runtime });
      assert.deepEqual(failures, []);
    }
    const source = CanonicalSource.open(canonical, runtime);
    const packed = artifactSource(output, runtime);
    const read = GgufTensors.open([path.join(output, 'model.gguf')]);
    const own = new Map([...read.names()].flatMap((name) => (inBlock(name) ? [[inBlock(name), name]] : [])));
    const names = [...source.names()].filter((name) => inBlock(name) && packed.has(name));
    assert.ok(names.some((name) => name.endsWith(among)));
    for (const name of names) {
      const expected = floats(await source.tensor(name));
      same(floats(await packed.tensor(name)), expected, name);
      assert.deepEqual(packed.shape(name), source.shape(name), name);
      const tensor = own.get(inBlock(name)) as string;
      same(floats(read.tensor(tensor)), expected, tensor);
      assert.deepEqual(read.shape(tensor), source.shape(name), tensor);
    }
    for (const each of [source, packed, read]) each.close();
  });
