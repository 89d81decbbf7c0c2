import assert from 'node:assert/strict';
import { cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { SourceCheckpoint } from '../../../formats/canonical/source.js';
import { loraDirectory } from '../../../formats/lora/directory.js';
import { typed } from '../../../native/binding.js';
import { openModel } from '../../../src/model/graph.js';
import { lpq, model, root as tree } from '../../src/cli/lpq.js';
import { designed, handmade, scratch } from '../scratch.js';

const root = scratch();
const LLAMA = path.join(tree, 'test', 'fixtures', 'architectures', 'llama');
const GPT2 = path.join(tree, 'test', 'fixtures', 'architectures', 'gpt2');
const PREFIX = 'base_model.model.';

/** Numbers that no other seed gives, of about this size. */
function numbers(length: number, seed: number, size = 0.05): Float32Array {
  let state = seed * 2654435761 + 12345;
  return Float32Array.from({ length }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return ((state / 2 ** 32) * 2 - 1) * size;
  });
}

type Tensors = Record<string, { readonly shape: readonly number[]; readonly data: Float32Array }>;

let count = 0;
/** An adapter as PEFT saves it, in F32. */
function adapter(config: Record<string, unknown>, tensors: Tensors): string {
  const dir = path.join(root, `adapter${count++}`);
  mkdirSync(dir);
  const defaults = { peft_type: 'LORA', r: 2, lora_alpha: 3, target_modules: ['q_proj'] };
  writeFileSync(path.join(dir, 'adapter_config.json'), JSON.stringify({ ...defaults, ...config }));
  let at = 0;
  const header = Object.fromEntries(
    Object.entries(tensors).map(([name, { shape, data }]) => {
      const begin = at;
      at += data.byteLength;
      return [PREFIX + name, { dtype: 'F32', shape, data_offsets: [begin, at] }];
    }),
  );
  const data = Buffer.concat(Object.values(tensors).map(({ data }) => Buffer.from(data.buffer)));
  handmade(path.join(dir, 'adapter_model.safetensors'), JSON.stringify(header), data);
  return dir;
}

function ab(module: string, [n, k]: readonly number[], rank = 2): Tensors {
  return {
    [`${module}.lora_A.weight`]: { shape: [rank, k as number], data: numbers(rank * (k as number), 1 + module.length) },
    [`${module}.lora_B.weight`]: { shape: [n as number, rank], data: numbers(rank * (n as number), 2 + module.length) },
  };
}

function open(base: string, dir?: string): SourceCheckpoint {
  const plain = SourceCheckpoint.open(base);
  const { transposed, head } = openModel(plain);
  const tied = head.tied ? `${head.name}.weight` : undefined;
  plain.close();
  return SourceCheckpoint.open(dir === undefined ? base : loraDirectory(base, { adapter: dir, transposed, tied }));
}

/** A tensor as fp64; the fixtures are in BF16, whose bits are the upper half of an f32's. */
async function values(source: SourceCheckpoint, name: string): Promise<Float64Array> {
  const tensor = await source.tensor(name);
  assert.equal(tensor.dtype, 'bf16');
  const wide = new Uint32Array(Uint32Array.from(typed<Uint16Array>(tensor), (bits) => bits * 65536));
  tensor.dispose();
  return Float64Array.from(new Float32Array(wide.buffer));
}

/** y = w + factor * B A, by the definition; element (row, column) of a weight that is stored turned is at [column, row]. */
function expected(w: Float64Array, t: Tensors, module: string, factor: number, turned = false): Float64Array {
  const [a, b] = ['A', 'B'].map((part) => t[`${module}.lora_${part}.weight`] as Tensors[string]) as [
    Tensors[string],
    Tensors[string],
  ];
  const [r, k] = a.shape as [number, number];
  const n = b.shape[0] as number;
  return w.map((weight, at) => {
    const [i, j] = turned ? [at % n, Math.floor(at / n)] : [Math.floor(at / k), at % k];
    let sum = 0;
    for (let p = 0; p < r; p++) sum += (b.data[i * r + p] as number) * (a.data[p * k + j] as number);
    return weight + factor * sum;
  });
}

/** One rounding to bf16 (8 significant bits): half a step, 2^-8 of the value at most, behind sums that are exact to fp32. */
function close(got: Float64Array, want: Float64Array, name: string): void {
  assert.equal(got.length, want.length);
  for (const [i, value] of got.entries()) {
    const other = want[i] as number;
    assert.ok(
      Math.abs(value - other) <= Math.abs(other) * (2 ** -8 + 2 ** -22) + 1e-38,
      `${name}[${i}]: ${value} ${other}`,
    );
  }
}

const Q = 'model.layers.0.self_attn.q_proj';
const DOWN = 'model.layers.1.mlp.down_proj';

test('W + s B A, by list and by pattern, alpha / r and alpha / sqrt(r), ranks of their own', async () => {
  const base = open(LLAMA);
  const [q, down] = [base.shape(`${Q}.weight`), base.shape(`${DOWN}.weight`)];
  for (const [config, factors, ranks] of [
    [{ target_modules: ['q_proj', 'down_proj'] }, [1.5, 1.5], [2, 2]],
    [{ target_modules: '.*\\.(q|down)_proj', use_rslora: true }, [3 / Math.SQRT2, 3 / Math.SQRT2], [2, 2]],
    [
      { target_modules: 'all-linear', rank_pattern: { 'layers.1.mlp.down_proj': 3 }, alpha_pattern: { q_proj: 8 } },
      [4, 1],
      [2, 3],
    ],
  ] as const) {
    const tensors = { ...ab(Q, q, ranks[0]), ...ab(DOWN, down, ranks[1]) };
    const merged = open(LLAMA, adapter(config, tensors));
    for (const [i, module] of [Q, DOWN].entries())
      close(
        await values(merged, `${module}.weight`),
        expected(await values(base, `${module}.weight`), tensors, module, factors[i] as number),
        module,
      );
    const other = 'model.layers.0.self_attn.k_proj.weight';
    assert.deepEqual(await values(merged, other), await values(base, other));
    assert.notEqual(merged.weights.fingerprint(), base.weights.fingerprint());
    merged.close();
  }
  base.close();
});

test('DoRA brings rows to their lengths', async () => {
  const base = open(LLAMA);
  const [n, k] = base.shape(`${Q}.weight`) as [number, number];
  const lengths = numbers(n, 9, 2).map(Math.abs);
  const tensors: Tensors = { ...ab(Q, [n, k]), [`${Q}.lora_magnitude_vector`]: { shape: [n], data: lengths } };
  const merged = open(LLAMA, adapter({ use_dora: true }, tensors));
  const sum = expected(await values(base, `${Q}.weight`), tensors, Q, 1.5);
  const norms = Array.from({ length: n }, (_, i) => Math.hypot(...sum.subarray(i * k, (i + 1) * k)));
  const want = sum.map((value, at) => {
    const row = Math.floor(at / k);
    return (value * (lengths[row] as number)) / (norms[row] as number);
  });
  close(await values(merged, `${Q}.weight`), want, Q);
});

test('weights that are stored as [K, N], and modules that were trained whole', async () => {
  const base = open(GPT2);
  const name = [...base.names()].find((each) => each.endsWith('0.attn.c_attn.weight')) as string;
  const module = name.slice(0, -'.weight'.length);
  const norm = [...base.names()].find((each) => each.endsWith('ln_f.weight')) as string;
  const [k, n] = base.shape(name) as [number, number];
  const tensors = { ...ab(module, [n, k]), [norm]: { shape: base.shape(norm), data: numbers(k, 5, 1) } };
  const merged = open(GPT2, adapter({ target_modules: ['c_attn'], modules_to_save: ['ln_f'] }, tensors));
  close(await values(merged, name), expected(await values(base, name), tensors, module, 1.5, true), name);
  close(await values(merged, norm), Float64Array.from(tensors[norm]?.data ?? []), norm);
});

const shape = [64, 64];
const REFUSED: readonly (readonly [string, RegExp, Record<string, unknown>, Tensors])[] = [
  ['another kind', /not a LoRA.*LOHA/, { peft_type: 'LOHA' }, {}],
  ['no rank', /malformed at \/r/, { r: 0 }, {}],
  ['PiSSA', /initialisation changes the weights/, { init_lora_weights: 'pissa_niter_4' }, {}],
  ['shared parameters', /parameters that are not separate linears/, { target_parameters: ['experts.up'] }, {}],
  ['biases', /it adapts biases/, { lora_bias: true }, {}],
  ['nothing', /it holds nothing/, {}, {}],
  ['an unknown name', /the model has no 'model\.layers\.9\.q_proj\.weight'/, {}, ab('model.layers.9.q_proj', shape)],
  ['a wrong shape', /A of '.*q_proj\.weight' does not fit the model/, {}, ab(Q, [64, 3])],
  ['another rank', /not have the rank of its settings/, {}, ab(Q, shape, 3)],
  ['a module that is not named', /its target_modules do not name/, { target_modules: ['v_proj'] }, ab(Q, shape)],
  ['half of a pair', /A without B/, {}, { [`${Q}.lora_A.weight`]: { shape: [2, 64], data: numbers(128, 1) } }],
  ['no magnitude', /has no magnitude/, { use_dora: true }, ab(Q, shape)],
  ['a pattern that is none', /regular expression that lpq cannot read/, { target_modules: '(' }, ab(Q, shape)],
];
for (const [name, says, config, tensors] of REFUSED)
  test(`refused: ${name}`, () => {
    const code = name === 'a pattern that is none' ? 'LPQ_CONFIG' : 'LPQ_LORA';
    assert.throws(() => open(LLAMA, adapter(config, tensors)), designed(code, says));
  });

test('refused: no files, and pickles', () => {
  assert.throws(() => open(LLAMA, root), designed('LPQ_LORA', /no adapter_config\.json/));
  const dir = adapter({}, {});
  rmSync(path.join(dir, 'adapter_model.safetensors'));
  writeFileSync(path.join(dir, 'adapter_model.bin'), '');
  assert.throws(() => open(LLAMA, dir), designed('LPQ_LORA', /lpq opens no pickles/));
});

test('lpq quantize --lora makes the codes of the merged model, and says which adapter', async () => {
  const dir = path.join(root, 'command');
  mkdirSync(dir);
  const source = SourceCheckpoint.open(model);
  const tensors = ab(Q, source.shape(`${Q}.weight`));
  const lora = adapter({}, tensors);
  const merged = path.join(dir, 'merged');
  cpSync(model, merged, { recursive: true });
  // The same model with the sum in its file: bf16 of the definition, rounded by the typed array of a DataView.
  const file = path.join(merged, 'model.safetensors');
  const image = readFileSync(file);
  const want = expected(await values(source, `${Q}.weight`), tensors, Q, 1.5);
  const { begin } = source.weights.spec(`${Q}.weight`);
  const start = 8 + Number(image.readBigUInt64LE(0)) + begin;
  for (const [i, value] of want.entries()) {
    const bits = new Uint32Array(Float32Array.of(value).buffer)[0] as number;
    const low = bits & 0xffff;
    const up = low > 0x8000 || (low === 0x8000 && (bits >>> 16) % 2 === 1) ? 1 : 0;
    image.writeUInt16LE(((bits >>> 16) + up) & 0xffff, start + 2 * i);
  }
  writeFileSync(file, image);
  const args = ['--bits', '4', '--method', 'rtn', '--quiet', '-o'];
  for (const [from, out, more] of [
    [model, 'a', ['--lora', lora]],
    [merged, 'b', []],
  ] as const) {
    const ran = await lpq(['quantize', from, ...args, path.join(dir, out), ...more]);
    assert.equal(ran.code, 0, ran.stderr);
  }
  const weights = (name: string) => readFileSync(path.join(dir, name, 'model.safetensors'));
  assert.ok(weights('a').equals(weights('b')));
  const { provenance } = JSON.parse(readFileSync(path.join(dir, 'a', 'lpq.json'), 'utf8'));
  assert.equal(provenance.options.lora.name, path.basename(lora));
  assert.equal(provenance.source.name, 'tiny-llama');
  const wrong = await lpq(['quantize', model, ...args, path.join(dir, 'c'), '--lora', path.join(tree, 'docs')]);
  assert.equal(wrong.code, 4);
  assert.match(wrong.stderr, /LPQ_LORA/);
});
