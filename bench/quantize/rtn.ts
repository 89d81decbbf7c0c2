/**
 * Round-to-nearest of a synthetic bf16 checkpoint of Llama-3-8B's layer shape, straight from the mapped shards.
 *
 *   node dist/bench/quantize/rtn.js [--gb 1] [--dir FOLDER] [--threads N] [--bits N | --dtype T] [--group-size G] [--keep]
 *   node dist/bench/quantize/rtn.js --make-only --gb 8 --dir FOLDER      (for timing the command line on it)
 *
 * Prints one JSON line: GB/s of bf16 input (quantizing alone, and with the wait for pages), and the peak of anonymous
 * memory. Results of a module are dropped before the next one, as the streaming writer does.
 */
import {
  closeSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
  statfsSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { addon, createRuntime, mapFile } from '../../native/binding.js';
import { disposeModule } from '../../src/quantize/result.js';
import { quantizeRtn } from '../../src/quantize/rtn.js';
import { printScheme, schemeFromOptions } from '../../src/quantize/scheme.js';

const HIDDEN = 4096;
const FEED_FORWARD = 14336;
const KEY_VALUE = 1024;
const VOCABULARY = 2048;
const LINEARS: readonly (readonly [string, number, number])[] = [
  ['self_attn.q_proj', HIDDEN, HIDDEN],
  ['self_attn.k_proj', KEY_VALUE, HIDDEN],
  ['self_attn.v_proj', KEY_VALUE, HIDDEN],
  ['self_attn.o_proj', HIDDEN, HIDDEN],
  ['mlp.gate_proj', FEED_FORWARD, HIDDEN],
  ['mlp.up_proj', FEED_FORWARD, HIDDEN],
  ['mlp.down_proj', HIDDEN, FEED_FORWARD],
];
const LAYER_BYTES = LINEARS.reduce((sum, [, n, k]) => sum + n * k * 2, 0);

interface Entry {
  dtype: 'BF16';
  shape: readonly number[];
  data_offsets: [number, number];
}

const bf16Bytes = (shape: readonly number[]) => shape.reduce((a, b) => a * b, 2);

/** One shard a layer; the weights are one 4 MiB block of noise of spread 0.02, rotated by a different amount each time. */
function make(dir: string, layers: number): void {
  mkdirSync(dir, { recursive: true });
  const noise = new Uint16Array(1 << 21);
  const float = new Float32Array(1);
  const bits = new Uint32Array(float.buffer);
  let state = 1;
  const next = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
  for (let i = 0; i < noise.length; i++) {
    float[0] = (next() + next() + next() + next() - 2) * 0.035;
    noise[i] = bits[0]! >>> 16;
  }
  const block = Buffer.from(noise.buffer);
  const ones = Buffer.from(Uint16Array.from({ length: HIDDEN }, () => 0x3f80).buffer);
  const index: Record<string, string> = {};
  const write = (file: string, tensors: readonly (readonly [string, readonly number[], Buffer | undefined])[]) => {
    const header: Record<string, Entry> = {};
    let end = 0;
    for (const [name, shape] of tensors) {
      const begin = end;
      end += bf16Bytes(shape);
      header[name] = { dtype: 'BF16', shape, data_offsets: [begin, end] };
      index[name] = file;
    }
    const json = JSON.stringify(header);
    const text = Buffer.from(json.padEnd(Math.ceil(json.length / 8) * 8));
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(text.length));
    const descriptor = openSync(path.join(dir, file), 'w');
    writeSync(descriptor, length);
    writeSync(descriptor, text);
    for (const [at, [, shape, data]] of tensors.entries()) {
      let left = bf16Bytes(shape);
      let from = data ? 0 : (at * 99991 * 64) % block.length;
      const source = data ?? block;
      while (left > 0) {
        const size = Math.min(left, source.length - from);
        writeSync(descriptor, source, from, size);
        left -= size;
        from = 0;
      }
    }
    closeSync(descriptor);
    return end;
  };
  const count = layers + 1;
  const shard = (i: number) =>
    `model-${String(i + 1).padStart(5, '0')}-of-${String(count).padStart(5, '0')}.safetensors`;
  let total = 0;
  for (let layer = 0; layer < layers; layer++) {
    const prefix = `model.layers.${layer}.`;
    total += write(shard(layer), [
      ...LINEARS.map(([name, n, k]) => [`${prefix}${name}.weight`, [n, k], undefined] as const),
      [`${prefix}input_layernorm.weight`, [HIDDEN], ones],
      [`${prefix}post_attention_layernorm.weight`, [HIDDEN], ones],
    ]);
  }
  total += write(shard(layers), [
    ['model.embed_tokens.weight', [VOCABULARY, HIDDEN], undefined],
    ['model.norm.weight', [HIDDEN], ones],
  ]);
  writeFileSync(
    path.join(dir, 'model.safetensors.index.json'),
    JSON.stringify({ metadata: { total_size: total }, weight_map: index }),
  );
  writeFileSync(
    path.join(dir, 'config.json'),
    JSON.stringify({
      architectures: ['LlamaForCausalLM'],
      model_type: 'llama',
      hidden_size: HIDDEN,
      intermediate_size: FEED_FORWARD,
      num_hidden_layers: layers,
      num_attention_heads: 32,
      num_key_value_heads: 8,
      vocab_size: VOCABULARY,
      max_position_embeddings: 8192,
      rms_norm_eps: 1e-5,
      rope_theta: 500000,
      hidden_act: 'silu',
      tie_word_embeddings: true,
      torch_dtype: 'bfloat16',
    }),
  );
}

/** Anonymous resident memory, bytes. */
function anonymous(): number {
  return Number(/^RssAnon:\s+(\d+) kB/m.exec(readFileSync('/proc/self/status', 'utf8'))?.[1] ?? 0) * 1024;
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      gb: { type: 'string', default: '1' },
      dir: { type: 'string' },
      threads: { type: 'string' },
      bits: { type: 'string' },
      dtype: { type: 'string' },
      'group-size': { type: 'string' },
      keep: { type: 'boolean', default: false },
      'make-only': { type: 'boolean', default: false },
    },
  });
  const layers = Math.max(1, Math.round((Number(values.gb) * 1e9) / LAYER_BYTES));
  const dir = values.dir ?? mkdtempSync(path.join(tmpdir(), 'lpq-bench-rtn-'));
  if (!existsSync(path.join(dir, 'config.json'))) {
    mkdirSync(dir, { recursive: true });
    const { bavail, bsize } = statfsSync(dir);
    if (bavail * bsize < layers * LAYER_BYTES * 1.02) throw new Error(`${dir} has no room for ${layers} layers`);
    make(dir, layers);
  }
  if (values['make-only']) return;
  const scheme = schemeFromOptions({
    bits: values.dtype ? undefined : (values.bits ?? 4),
    dtype: values.dtype,
    groupSize: values['group-size'],
  });
  const rt = createRuntime(values.threads ? Number(values.threads) : undefined);
  const weightMap = JSON.parse(readFileSync(path.join(dir, 'model.safetensors.index.json'), 'utf8'))
    .weight_map as Record<string, string>;
  let peak = anonymous();
  const timer = setInterval(() => (peak = Math.max(peak, anonymous())), 5);
  let bytes = 0;
  let norm = 0;
  let error = 0;
  rt.profile();
  const start = performance.now();
  for (const file of [...new Set(Object.values(weightMap))].sort()) {
    const mapped = mapFile(path.join(dir, file));
    const length = Number(Buffer.from(mapped.read(0, 8)).readBigUInt64LE());
    const header = JSON.parse(Buffer.from(mapped.read(8, length)).toString()) as Record<string, Entry>;
    for (const [name, entry] of Object.entries(header)) {
      if (!name.endsWith('_proj.weight')) continue;
      const [begin, end] = entry.data_offsets;
      const weight = mapped.tensor('bf16', entry.shape, 8 + length + begin);
      const result = await quantizeRtn(rt, weight, scheme, name);
      peak = Math.max(peak, anonymous());
      disposeModule(result);
      weight.dispose();
      mapped.advise('dontneed', 8 + length + begin, end - begin);
      bytes += end - begin;
      norm += result.stats.squaredNorm;
      error += result.stats.squaredError;
    }
    mapped.close();
  }
  const wall = (performance.now() - start) / 1000;
  clearInterval(timer);
  const native = rt.profile().rtn?.seconds ?? wall;
  if (!values.keep && !values.dir) rmSync(dir, { recursive: true });
  const figure = (x: number) => Number(x.toPrecision(3));
  console.log(
    JSON.stringify({
      bench: 'quantize/rtn',
      scheme: printScheme(scheme),
      isa: addon().isa(),
      threads: rt.threads,
      gigabytes: figure(bytes / 1e9),
      gigabytesPerSecond: figure(bytes / native / 1e9),
      withReading: figure(bytes / wall / 1e9),
      anonymousMegabytes: figure(peak / 1e6),
      relativeError: figure(error / norm),
    }),
  );
}

await main();
