import assert from 'node:assert/strict';
import { appendFileSync, copyFileSync, cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
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
import { lpq, model } from '../cli/lpq.js';
import { ARCHITECTURES } from '../model/fixtures.js';
import { type Container, type Forgery, forged, type Stored, u32, u64 } from './gguf-forge.js';
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
  { name: 'q2_k', target: 'gguf-q2_k', quantized: 'sym', source: model },
  ...['q2_k', 'q3_k', 'q5_k', 'q6_k', 'q8_0'].map((type) => ({
    ...{ name: `own ${type}`, target: `gguf-${type}`, quantized: 'asym' },
  })),
];
const QUANTIZED: Readonly<Record<string, readonly string[]>> = {
  sym: ['--bits', '4', '--group-size', '64'],
  asym: ['--bits', '4', '--asym', '--group-size', '32'],
  wide: ['--bits', '8', '--group-size', 'channel'],
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
  for (const { name, quantized, source } of CASES) {
    assert.deepEqual(await failuresOf(place(name), quantized), [], name);
    await forged(place(name), {}, async (dir) => assert.deepEqual(await failuresOf(dir, quantized), [], name));
    const report = await verifyArtifact({ dir: place(name), source, against: place(quantized), runtime });
    assert.deepEqual(report.failures, [], name);
    assert.ok(!report.unproved.some((sentence) => /source/.test(sentence)), name);
  }
});

const tokens = 'tokenizer.ggml.tokens';
const merges = 'tokenizer.ggml.merges';
const setStrings = (key: string, change: (list: string[]) => string[]): Forgery => ({
  gguf: (file) => file.setStrings(key, change(file.strings(key))),
});
const runs = (data: Buffer, size: number): Buffer[] =>
  Array.from({ length: data.length / size }, (_, i) => data.subarray(i * size, (i + 1) * size));
const rows = (name: string, change: (rows: Buffer[]) => Buffer[]): Forgery => ({
  gguf: (file) => {
    const tensor = file.tensor(name);
    const size = file.row(tensor);
    tensor.data = Buffer.concat(change(runs(tensor.data, size)));
  },
});
const shifted = <T>(list: readonly T[]): T[] => [...list.slice(-1), ...list.slice(0, -1)];
const swapped = <T>(list: readonly T[], a: number, b: number): T[] =>
  list.map((each, i) => (i === a ? list[b]! : i === b ? list[a]! : each));
const zero = (list: readonly Buffer[], which: (i: number) => boolean): Buffer[] =>
  list.map((row, i) => (which(i) ? Buffer.alloc(row.length) : row));

const put = <T extends object>(to: T, facts: object): T => Object.assign(to, facts);
const flipped = (bytes: Buffer, bit: number): void => {
  bytes[bit >> 3]! ^= 1 << (bit & 7);
};

/** What a packer's bug or a forger makes of the file, and what is said of it. */
const CLASSES: readonly (readonly [string, RegExp, Forgery])[] = [
  ['tokens are shifted by one', /config: key 'tokenizer.ggml.tokens\[0\]'/, setStrings(tokens, shifted)],
  ['two tokens change places', /tokens\[300\]/, setStrings(tokens, (list) => swapped(list, 300, 301))],
  ['the list of tokens ends early', /key 'tokenizer.ggml.tokens'/, setStrings(tokens, (list) => list.slice(0, -1))],
  ['merges are reversed', /config: key 'tokenizer.ggml.merges\[0\]'/, setStrings(merges, (list) => list.reverse())],
  ['a merge is lost', /key 'tokenizer.ggml.merges'/, setStrings(merges, (list) => list.slice(1))],
  [
    'a token type changes',
    /token_type\[7\]/,
    { gguf: (file) => void file.key('tokenizer.ggml.token_type').value.writeInt32LE(3, 12 + 4 * 7) },
  ],
  [
    'a special id is that of another token',
    /bos_token_id/,
    { gguf: (file) => void file.key('tokenizer.ggml.bos_token_id').value.writeUInt32LE(2) },
  ],
  ['bos is not added', /add_bos/, { gguf: (file) => flipped(file.key('tokenizer.ggml.add_bos_token').value, 0) }],
  [
    'text is split by other rules',
    /tokenizer.ggml.pre/,
    {
      gguf: (file) => put(file.key('tokenizer.ggml.pre'), { value: Buffer.concat([u64(5), Buffer.from('qwen2')]) }),
    },
  ],
  [
    'a key is added',
    /key 'llama.attention.sliding_window' .* none that lpq writes/,
    { gguf: (file) => void file.keys.push({ key: 'llama.attention.sliding_window', type: 4, value: u32(64) }) },
  ],
  [
    'a chat template is added',
    /tokenizer.chat_template/,
    {
      gguf: (file) =>
        void file.keys.push({
          key: 'tokenizer.chat_template',
          type: 8,
          value: Buffer.concat([u64(1), Buffer.from('x')]),
        }),
    },
  ],
  [
    'a key is removed',
    /key 'llama.rope.freq_base'/,
    { gguf: (file) => put(file, { keys: file.keys.filter(({ key }) => key !== 'llama.rope.freq_base') }) },
  ],
  [
    'a value has another type',
    /key 'llama.block_count' of model.gguf has type i32 and not u32/,
    { gguf: (file) => put(file.key('llama.block_count'), { type: 5 }) },
  ],
  [
    'a float is one unit off',
    /layer_norm_rms_epsilon/,
    { gguf: (file) => flipped(file.key('llama.attention.layer_norm_rms_epsilon').value, 0) },
  ],
  [
    'keys come in another order',
    /byte \d+ of model.gguf/,
    { gguf: (file) => put(file, { keys: swapped(file.keys, 5, 9) }) },
  ],
  [
    'tensors come in another order',
    /byte \d+ of model.gguf .*blk.1.attn_norm.weight/,
    {
      gguf: (file) =>
        put(file, {
          tensors: swapped(file.tensors, indexOf(file, 'blk.1.attn_norm'), indexOf(file, 'blk.2.attn_norm')),
        }),
    },
  ],
  [
    'norms of two blocks change places',
    /against: 'blk.1.attn_norm.weight' differs/,
    {
      gguf: (file) => {
        const [a, b] = [file.tensor('blk.1.attn_norm.weight'), file.tensor('blk.2.attn_norm.weight')];
        [a.data, b.data] = [b.data, a.data];
      },
    },
  ],
  [
    'a tensor has another type',
    /tensors: tensor 'blk.0.ffn_norm.weight' .*another type/,
    {
      gguf: (file) => {
        const norm = file.tensor('blk.0.ffn_norm.weight');
        [norm.type, norm.data] = [
          30,
          Buffer.concat(Array.from({ length: 256 }, (_, i) => norm.data.subarray(4 * i + 2, 4 * i + 4))),
        ];
      },
    },
  ],
  [
    'dimensions are turned',
    /tensors: tensor 'blk.0.ffn_up.weight' .*other dimensions/,
    { gguf: (file) => put(file.tensor('blk.0.ffn_up.weight'), { dims: [768, 256] }) },
  ],
  [
    'a tensor is added',
    /tensor 'output.weight' .* none of the model/,
    { gguf: (file) => void file.tensors.push({ ...file.tensor('token_embd.weight'), name: 'output.weight' }) },
  ],
  [
    'a tensor is removed, also from lpq.json',
    /'blk.3.ffn_norm.weight' is not in model.gguf/,
    {
      gguf: (file) => put(file, { tensors: file.tensors.filter(({ name }) => name !== 'blk.3.ffn_norm.weight') }),
      manifest: ({ carried }) => void delete carried['blk.3.ffn_norm.weight'],
    },
  ],
  ['the header’s padding is set', /the padding of the header/, { gguf: (file) => put(file.padding, { header: 1 }) }],
  [
    'bytes trail',
    /does not end where its last tensor does/,
    { gguf: (file) => put(file.padding, { end: Buffer.alloc(32) }) },
  ],
  [
    'rows of the embedding are displaced',
    /against: 'token_embd.weight' does not hold/,
    rows('token_embd.weight', shifted),
  ],
  [
    '15 of 2048 rows of the embedding are zero',
    /against: 'token_embd.weight' does not hold/,
    rows('token_embd.weight', (all) => zero(all, (i) => i % 140 === 77)),
  ],
  [
    'two rows of the embedding change places',
    /'token_embd.weight'/,
    rows('token_embd.weight', (all) => swapped(all, 500, 1500)),
  ],
  [
    'a row of a linear is zero',
    /blk.2.ffn_down|layers.2.mlp.down_proj/,
    rows('blk.2.ffn_down.weight', (all) => zero(all, (i) => i === 9)),
  ],
  [
    'rows of q are as in the checkpoint',
    /blk.1.attn_q|self_attn.q_proj/,
    rows('blk.1.attn_q.weight', (all) => plainOrder(all)),
  ],
  [
    'a quant_config.json is added',
    /quant_config.json/,
    { files: (dir) => writeFileSync(path.join(dir, 'quant_config.json'), '{}') },
  ],
  [
    'another .gguf is added',
    /mmproj.gguf/,
    { files: (dir) => copyFileSync(path.join(dir, 'model.gguf'), path.join(dir, 'mmproj.gguf')) },
  ],
  [
    'weights of another container are added',
    /model.safetensors/,
    { files: (dir) => writeFileSync(path.join(dir, 'model.safetensors'), '') },
  ],
  [
    'tokenizer.json changes',
    /tokenizer.json differs/,
    { files: (dir) => appendFileSync(path.join(dir, 'tokenizer.json'), '\n') },
  ],
  [
    'a file of the model is lost',
    /generation_config.json .* is missing/,
    { files: (dir) => rmSync(path.join(dir, 'generation_config.json')) },
  ],
  [
    'config.json says that it is quantized',
    /quantization_config/,
    {
      files: (dir) => {
        const config = JSON.parse(readFileSync(path.join(dir, 'config.json'), 'utf8'));
        writeFileSync(path.join(dir, 'config.json'), JSON.stringify({ ...config, quantization_config: { bits: 4 } }));
      },
    },
  ],
  [
    'lpq.json has a scheme for the cache',
    /cache/,
    { manifest: (manifest) => put(manifest, { kv: { bits: 4, group: 32 } }) },
  ],
  [
    'lpq.json says another target',
    /listed as another tensor or in another layout|lpq.blocks_from/,
    { manifest: (manifest) => put(manifest, { target: manifest.target === 'gguf' ? 'gguf-q4_k' : 'gguf' }) },
  ],
  [
    'lpq.json has other hashes of what was quantized',
    /against: /,
    { manifest: ({ modules }) => put(modules['model.layers.0.mlp.up_proj']!.canonical, { codes: '0'.repeat(64) }) },
  ],
  [
    'lpq.json gives a module ranks',
    /facts of it that GGUF does not/,
    { manifest: ({ modules }) => put(modules['model.layers.0.mlp.up_proj']!, { ranks: { count: 2, split: 'n' } }) },
  ],
];

const indexOf = (file: Container, name: string): number =>
  file.tensors.findIndex((each) => each.name === `${name}.weight`);

/** Rows of heads of 64 as a checkpoint has them: the two halves of a head one after the other. */
function plainOrder(list: readonly Buffer[]): Buffer[] {
  return list.map((_, row) => {
    const within = row % 64;
    return list[row - within + (within % 32) * 2 + Math.floor(within / 32)]!;
  });
}

for (const [title, message, forgery] of CLASSES)
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

/** Where the codes of a block lie. */
const CODES: Readonly<Record<number, readonly [from: number, to: number, size: number]>> = {
  8: [2, 34, 34],
  10: [16, 80, 84],
  11: [32, 96, 110],
  12: [16, 144, 144],
  13: [48, 176, 176],
  14: [0, 128, 210],
};

/** A random change; `draw` gives a number below its argument. False: nothing was changed. */
type Mutation = (file: Container, draw: (below: number) => number) => boolean | undefined;

/** Blocks of the tensor's type that differ change places. */
function swapBlocks({ data }: Stored, size: number, draw: (below: number) => number): boolean {
  const [a, b] = [draw(data.length / size), draw(data.length / size)].map((i) => i * size) as [number, number];
  const [left, right] = [Buffer.from(data.subarray(a, a + size)), Buffer.from(data.subarray(b, b + size))];
  if (left.equals(right)) return false;
  right.copy(data, a);
  left.copy(data, b);
  return true;
}

const MUTATIONS: Readonly<Record<string, Mutation>> = {
  'a bit of a value': ({ keys }, draw) => {
    const { value, type } = keys[draw(keys.length)]!;
    // Behind the type and the number of an array: lengths inside would only make the file unreadable.
    const from = type === 9 ? 12 : 0;
    if (value.length === from) return false;
    flipped(value, 8 * from + draw(8 * (value.length - from)));
    return true;
  },
  'a key’s name': ({ keys }, draw) => {
    const each = keys[draw(keys.length)]!;
    each.key = each.key.replace(/.$/, '_');
    return true;
  },
  'a key less': (file, draw) => file.keys.splice(draw(file.keys.length), 1).length === 1,
  'a key twice as long': ({ keys }, draw) => {
    keys.splice(draw(keys.length), 0, { key: `x.${draw(1000)}`, type: 4, value: u32(draw(1000)) });
    return true;
  },
  'two keys exchanged': (file, draw) => {
    const [a, b] = [draw(file.keys.length), draw(file.keys.length)];
    file.keys = swapped(file.keys, a, b);
    return a !== b;
  },
  'two tensors exchanged in the header': (file, draw) => {
    const [a, b] = [draw(file.tensors.length), draw(file.tensors.length)];
    file.tensors = swapped(file.tensors, a, b);
    return a !== b;
  },
  'a tensor less': (file, draw) => file.tensors.splice(draw(file.tensors.length), 1).length === 1,
  'a row of zeros': (file, draw) => {
    const tensor = file.tensors[draw(file.tensors.length)]!;
    const size = file.row(tensor);
    const at = draw(tensor.data.length / size) * size;
    const row = tensor.data.subarray(at, at + size);
    if (row.every((byte) => byte === 0)) return false;
    row.fill(0);
    return true;
  },
  'two blocks exchanged': (file, draw) => {
    const tensor = file.tensors[draw(file.tensors.length)]!;
    const size = { 2: 18, 3: 20, 8: 34, 10: 84, 11: 110, 12: 144, 13: 176, 14: 210 }[tensor.type] ?? 4;
    return swapBlocks(tensor, size, draw);
  },
  'a bit where codes are exact, eight codes where they were searched for': (file, draw) => {
    const tensor = file.tensors[draw(file.tensors.length)]!;
    const codes = CODES[tensor.type];
    const exact = codes === undefined || file.key('lpq.blocks_from').value.includes('codes');
    if (codes === undefined || (exact && tensor.name.startsWith('blk.'))) {
      flipped(tensor.data, draw(8 * tensor.data.length));
      return true;
    }
    const [from, to, size] = codes;
    const at = draw(tensor.data.length / size) * size + from + draw((to - from) / 8) * 8;
    for (let i = 0; i < 8; i++) tensor.data[at + i]! ^= 0xff;
    return true;
  },
};

for (const [what, mutate] of Object.entries(MUTATIONS))
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
    const context = { rt: runtime, recorder, file: gguf, config: {}, canonical: undefined };
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
