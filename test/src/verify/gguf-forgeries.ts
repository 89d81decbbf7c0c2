import { appendFileSync, copyFileSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { type Container, type Forgery, u32, u64 } from './gguf-forge.js';

const tokens = 'tokenizer.ggml.tokens';
const merges = 'tokenizer.ggml.merges';
const setStrings = (key: string, change: (list: string[]) => string[]): Forgery => ({
  gguf: (file) => file.setStrings(key, change(file.strings(key))),
});
export const runs = (data: Buffer, size: number): Buffer[] =>
  Array.from({ length: data.length / size }, (_, i) => data.subarray(i * size, (i + 1) * size));
export const rows = (name: string, change: (rows: Buffer[]) => Buffer[]): Forgery => ({
  gguf: (file) => {
    const tensor = file.tensor(name);
    const size = file.row(tensor);
    tensor.data = Buffer.concat(change(runs(tensor.data, size)));
  },
});
export const shifted = <T>(list: readonly T[]): T[] => [...list.slice(-1), ...list.slice(0, -1)];
export const swapped = <T>(list: readonly T[], a: number, b: number): T[] =>
  list.map((each, i) => (i === a ? list[b]! : i === b ? list[a]! : each));
const zero = (list: readonly Buffer[], which: (i: number) => boolean): Buffer[] =>
  list.map((row, i) => (which(i) ? Buffer.alloc(row.length) : row));

export const put = <T extends object>(to: T, facts: object): T => Object.assign(to, facts);
export const flipped = (bytes: Buffer, bit: number): void => {
  bytes[bit >> 3]! ^= 1 << (bit & 7);
};

/** What a packer's bug or a forger makes of the file, and what is said of it. */
export const FORGERIES: readonly (readonly [string, RegExp, Forgery])[] = [
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
    /key 'llama.attention.sliding_window' .* not one that lpq writes/,
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
    /tensors: tensor 'blk.0.ffn_norm.weight' .*does not have the type/,
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
    /tensors: tensor 'blk.0.ffn_up.weight' .*type and dimensions/,
    { gguf: (file) => put(file.tensor('blk.0.ffn_up.weight'), { dims: [768, 256] }) },
  ],
  [
    'a tensor is added',
    /tensor 'output.weight' .* not a tensor of the model/,
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
    /listed with a tensor or layout|lpq.blocks_from/,
    { manifest: (manifest) => put(manifest, { target: manifest.target === 'gguf' ? 'gguf-q4_k' : 'gguf' }) },
  ],
  [
    'lpq.json has other hashes of what was quantized',
    /against: /,
    { manifest: ({ modules }) => put(modules['model.layers.0.mlp.up_proj']!.canonical, { codes: '0'.repeat(64) }) },
  ],
  [
    'lpq.json gives a module ranks',
    /more about it than GGUF holds/,
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
