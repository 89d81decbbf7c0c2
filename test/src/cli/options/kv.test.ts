import assert from 'node:assert/strict';
import { copyFileSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { ARCHITECTURES } from '../../model/fixtures.js';
import { events, lpq, model, root, scratch } from '../lpq.js';

const base = ['quantize', model, '-o', 'never', '--bits', '4', '--method', 'rtn'];

for (const [args, names] of [
  [[...base, '--kv-group', '32'], /--kv-group has no effect without --kv/],
  [[...base, '--kv-fit'], /--kv-fit has no effect without --kv/],
  [[...base, '--kv', '3'], /--kv does not take '3'/],
  [[...base, '--kv', '4', '--kv-residual', '100'], /--kv-residual 100/],
  [[...base, '--kv', '4', '--kv-group', '48'], /--kv-group.*48/],
  [[...base, '--kv', '4', '--kv-granularity', 'head'], /--kv-granularity.*head/],
  [[...base.slice(0, -1), 'fmpq', '--kv', '4', '--act-kv', '4'], /--kv and --act-kv/],
  [['eval', model, '--text', 'x.txt', '--kv-residual', '0'], /--kv-residual has no effect without --kv/],
  [[...base, '--kv-layers', '0=8'], /--kv-layers has no effect without --kv/],
  [[...base, '--kv', '4', '--kv-layers', '0=16'], /--kv-layers does not take '0=16'/],
  [[...base, '--kv', '4', '--kv-layers', '1'], /--kv-layers does not take '1'/],
  [[...base, '--kv', '4', '--kv-layers', '2-1=8'], /--kv-layers does not take the layers 2-1/],
  [[...base, '--kv', '4', '--kv-layers', '0-2=8,1=k8v4'], /--kv-layers names layer 1 twice/],
  [
    [...base, '--kv', '4', '--kv-layers', '0=8,4=8'],
    /--kv-layers names layer 4, which has no keys and values of its own/,
  ],
  [[...base, '--kv', '8', '--kv-layers', '0=4', '--kv-residual', '64'], /--kv-residual 64 holds no whole blocks/],
  [
    [...base, '--kv', '8', '--kv-granularity', 'token', '--kv-layers', '0=2'],
    /--kv-layers 0=2 does not go with one scale for each token and head/,
  ],
] as const)
  test(`refused: ${args.slice(2).join(' ')}`, async () => {
    const ran = await lpq([...args]);
    assert.equal(ran.code, 2, ran.stderr);
    assert.match(ran.stderr, /LPQ_USAGE/);
    assert.match(ran.stderr, names);
    assert.equal(existsSync(path.join(root, 'never')), false);
  });

test('--kv is refused where blocks keep neither keys and values nor latents alone', async () => {
  for (const [name, names] of [
    ['deepseek_v32', /--kv.*an indexer chooses keys in block 0/],
    ['deepseek_v4', /--kv.*block 0 caches neither alone/],
  ] as const) {
    const source = path.join(ARCHITECTURES, name);
    const ran = await lpq(['quantize', source, ...base.slice(2), '--group-size', 'channel', '--kv', '4']);
    assert.equal(ran.code, 2, ran.stderr);
    assert.match(ran.stderr, names);
  }
});

test('latents in few bits: what cannot be asked of them', async (t) => {
  const dir = scratch(t);
  for (const file of ['config.json', 'model.safetensors'])
    copyFileSync(path.join(ARCHITECTURES, 'deepseek_v3', file), path.join(dir, file));
  copyFileSync(path.join(model, 'tokenizer.json'), path.join(dir, 'tokenizer.json'));
  const evaluated = ['eval', dir, '--text', path.join(root, 'share', 'text', 'books-valid.txt')];
  for (const [args, code, names] of [
    [[...evaluated, '--kv', 'k8v4'], 2, /--kv k8v4.*both key and value/],
    [[...evaluated, '--kv', '4', '--kv-granularity', 'channel'], 2, /--kv-granularity channel/],
    [[...evaluated, '--kv', '4', '--kv-residual', '64'], 2, /--kv-residual/],
    [[...evaluated, '--kv', '4', '--kv-layers', '0=8'], 2, /--kv-layers is for keys and values/],
    [[...evaluated, '--kv', '4', '--kv-fit'], 2, /--kv-fit is for keys and values/],
    [[...evaluated, '--kv', '4', '--kv-group', '64'], 2, /--kv-group.*latents of 32 dims/],
    [['generate', dir, '--prompt', '!', '--kv', 'k8v4'], 2, /--kv k8v4.*both key and value/],
    [['generate', dir, '--prompt', '!', '--kv', '4', '--kv-group', '64'], 2, /--kv-group.*latents of 32 dims/],
  ] as const) {
    const refused = await lpq([...args]);
    assert.equal(refused.code, code, refused.stderr);
    assert.match(refused.stderr, names);
  }
});

test('a model writes over its latents in few bits: in floats, as codes and by packed kernels', async (t) => {
  const dir = scratch(t);
  const [source, quantized, packed] = ['model', 'quantized', 'packed'].map((name) => path.join(dir, name)) as [
    string,
    string,
    string,
  ];
  mkdirSync(source);
  for (const file of ['config.json', 'model.safetensors'])
    copyFileSync(path.join(ARCHITECTURES, 'deepseek_v3', file), path.join(source, file));
  copyFileSync(path.join(model, 'tokenizer.json'), path.join(source, 'tokenizer.json'));
  const written = async (from: string, ...options: string[]) => {
    const ran = await lpq(['generate', from, '--prompt', '"!#', '--max-tokens', '8', '--json', ...options]);
    assert.equal(ran.code, 0, ran.stderr);
    const { cache, sequences } = events(ran).at(-1) as unknown as {
      cache: { form: string; bytes: number };
      sequences: { ids: number[] }[];
    };
    return { ...cache, ids: sequences[0]?.ids };
  };
  const made = await lpq(['quantize', source, '-o', quantized, ...base.slice(4), '--group-size', '32', '--kv', '8']);
  assert.equal(made.code, 0, made.stderr);
  assert.equal((await lpq(['pack', quantized, '-o', packed, '--target', 'tilus'])).code, 0);
  for (const dir of [quantized, packed]) {
    const { kv } = JSON.parse(readFileSync(path.join(dir, 'lpq.json'), 'utf8'));
    assert.deepEqual(kv, { form: 'latent', bits: 8, group: 32 });
    // Without --kv the cache is that of lpq.json.
    assert.equal((await written(dir)).form, 'latents of 8 bits in groups of 32');
  }
  const verified = await lpq(['verify', packed, '--against', quantized, '--json']);
  assert.equal(verified.code, 0, verified.stderr);
  assert.match(verified.stdout, /latents of 8 bits in groups of 32 dims/);
  const text = path.join(dir, 'text.txt');
  writeFileSync(text, '#$%'.repeat(20));
  const perplexity = async (...options: string[]): Promise<number> => {
    const ran = await lpq(['eval', packed, '--text', text, '--ctx', '16', '--json', ...options]);
    assert.equal(ran.code, 0, ran.stderr);
    return (events(ran).at(-1) as unknown as { ppl: number }).ppl;
  };
  assert.ok((await perplexity()) > 1);
  assert.equal(await perplexity(), await perplexity('--kv', '8'));
  assert.notEqual(await perplexity(), await perplexity('--kv', '2'));
  for (const [from, ...options] of [[source], [quantized], [packed, '--kernels']] as const) {
    const exact = from === source ? await written(from) : { ids: undefined };
    const half = await written(from, '--kv', '16', ...options);
    const eight = await written(from, '--kv', '8', ...options);
    assert.deepEqual(eight.ids, half.ids);
    if (from === source) assert.deepEqual(half.ids, exact.ids);
    // A page of 64 tokens of 64 + 16 dims a block.
    assert.deepEqual([half.form, half.bytes], ['latents of f16', 2 * 64 * 160]);
    assert.deepEqual([eight.form, eight.bytes], ['latents of 8 bits in groups of 32', 2 * 64 * (64 + 8 + 32)]);
  }
});

test('bits by layer go from the command line to the artifact, its evaluation, which tells its size, and its verification', async (t) => {
  const dir = scratch(t);
  const [output, packed, text] = ['out', 'packed', 'text.txt'].map((name) => path.join(dir, name)) as [
    string,
    string,
    string,
  ];
  const layers = ['--kv', '8', '--kv-granularity', 'token', '--kv-layers', '0=4,2-3=k8v4,1=8'];
  const made = await lpq([...base.slice(0, 3), output, ...base.slice(4), ...layers]);
  assert.equal(made.code, 0, made.stderr);
  const read = (...names: string[]) => JSON.parse(readFileSync(path.join(...names), 'utf8'));
  // What a layer has in common with most is not said.
  const kv = {
    form: 'turbomind',
    keys: { bits: 8, granularity: 'token', group: 64 },
    values: { bits: 8, group: 64 },
    residual: 0,
    layers: { 0: { keys: 4, values: 4 }, 2: { keys: 8, values: 4 }, 3: { keys: 8, values: 4 } },
  };
  assert.deepEqual(read(output, 'lpq.json').kv, kv);
  assert.equal(read(output, 'lpq.json').provenance.options.kvLayers, '0=4,2-3=k8v4,1=8');
  assert.equal((await lpq(['pack', output, '-o', packed, '--target', 'tilus'])).code, 0);
  assert.deepEqual(read(packed, 'lpq.json').kv, kv);

  writeFileSync(text, readFileSync(path.join(root, 'share', 'text', 'books-valid.txt'), 'utf8').slice(0, 4000));
  const evaluated = async (...args: string[]) => {
    const found = await lpq(['eval', ...args, '--text', text, '--ctx', '128', '--json']);
    assert.equal(found.code, 0, found.stderr);
    return events(found).at(-1) as { nll: number; cache: { bytesPerToken: number; bitsPerNumber: number } };
  };
  const [own, given] = [await evaluated(packed), await evaluated(output, ...layers)];
  assert.equal(own.nll, given.nll);
  // Two heads of 64 keys and values, and a scale and zero of 4 bytes for each: layers of 4, 8, 6 and 6 bits.
  assert.equal(own.cache.bytesPerToken, (2 * (2 * 64 * (4 + 8 + 6 + 6))) / 8 + 4 * 2 * 2 * 4);
  assert.equal(own.cache.bitsPerNumber, 6 + 0.5);
  const plain = await lpq(['eval', packed, '--text', text, '--ctx', '128']);
  assert.match(plain.stdout, /^ppl .*\ncache KV8, KV4 in layer 0, .* bits a number$/);
  const beside = await lpq(['eval', packed, '--text', text, '--ctx', '128', '--source', model]);
  assert.match(
    beside.stdout,
    /^cache KV8, KV4 in layer 0, K8V4 in layers 2 and 3 .*: 832 bytes a token, 6\.5 bits a number$/m,
  );
  const alike = await evaluated(output, '--kv', '8', '--kv-granularity', 'token', '--kv-layers', '0-3=4');
  assert.equal(alike.nll, (await evaluated(output, '--kv', '4', '--kv-granularity', 'token')).nll);
  assert.notEqual(alike.nll, own.nll);

  const proved = await lpq(['verify', packed, '--json']);
  assert.equal(proved.code, 0, proved.stderr);
  const { checks } = events(proved).at(-1) as { checks: { name: string; status: string; detail: string }[] };
  const check = checks.find(({ name }) => name === 'kv');
  assert.equal(check?.status, 'passed');
  assert.match(check?.detail ?? '', /KV8, KV4 in layer 0, K8V4 in layers 2 and 3 \(turbomind/);
});

test('the scheme goes from the command line to the checkpoint, the artifact, its evaluation and its verification', async (t) => {
  const dir = scratch(t);
  const [output, packed, text] = ['out', 'packed', 'text.txt'].map((name) => path.join(dir, name)) as [
    string,
    string,
    string,
  ];
  assert.equal(
    (await lpq([...base.slice(0, 3), output, ...base.slice(4), '--kv', '8', '--kv-granularity', 'token'])).code,
    0,
  );
  const kv = {
    form: 'turbomind',
    keys: { bits: 8, granularity: 'token', group: 64 },
    values: { bits: 8, group: 64 },
    residual: 0,
  };
  const read = (...names: string[]) => JSON.parse(readFileSync(path.join(...names), 'utf8'));
  assert.deepEqual(read(output, 'lpq.json').kv, kv);
  assert.deepEqual(read(output, 'config.json').quantization_config.kv, kv);
  const ran = await lpq(['pack', output, '-o', packed, '--target', 'tilus']);
  assert.equal(ran.code, 0, ran.stderr);
  assert.deepEqual(read(packed, 'lpq.json').kv, kv);

  writeFileSync(text, readFileSync(path.join(root, 'share', 'text', 'books-valid.txt'), 'utf8').slice(0, 4000));
  const nll = async (...args: string[]): Promise<number> => {
    const found = await lpq(['eval', ...args, '--text', text, '--ctx', '128', '--json']);
    assert.equal(found.code, 0, found.stderr);
    return (events(found).at(-1) as { nll: number }).nll;
  };
  const own = await nll(output);
  assert.equal(await nll(packed), own, 'the artifact evaluates with its own cache');
  assert.equal(await nll(packed, '--kv', '8', '--kv-granularity', 'token'), own);
  assert.notEqual(await nll(packed, '--kv', '2', '--kv-residual', '0'), own);

  const proved = await lpq(['verify', packed, '--json']);
  assert.equal(proved.code, 0, proved.stderr);
  const { checks } = events(proved).at(-1) as { checks: { name: string; status: string; detail: string }[] };
  const check = checks.find(({ name }) => name === 'kv');
  assert.equal(check?.status, 'passed');
  assert.match(check?.detail ?? '', /KV8 \(turbomind/);
});

test('what a packed cache costs on the first windows of a text', async (t) => {
  const text = path.join(scratch(t), 'text.txt');
  writeFileSync(text, readFileSync(path.join(root, 'share', 'text', 'books-valid.txt'), 'utf8').slice(0, 16_000));
  const nll = async (...args: string[]): Promise<number> => {
    const found = await lpq(['eval', model, '--text', text, '--ctx', '512', '--device', 'cpu', '--json', ...args]);
    assert.equal(found.code, 0, found.stderr);
    return (events(found).at(-1) as { nll: number }).nll;
  };
  const plain = await nll();
  // The bounds of docs/kv-cache.md, which the whole text meets; ten windows scatter by some tenths of them.
  for (const [args, bar] of [
    [['--kv', '4'], 0.0015],
    [['--kv', '4', '--kv-group', '32', '--kv-residual', '0', '--kv-fit'], 0.007],
    [['--kv', '2'], 0.015],
    [['--kv', '8', '--kv-residual', '0'], 0.001],
  ] as const) {
    const excess = (await nll(...args)) - plain;
    assert.ok(Math.abs(excess) <= bar, `${args.join(' ')}: ${excess}`);
  }
});
