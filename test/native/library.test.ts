import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { createRuntime } from '../../native/binding.js';
import { packCheckpoint } from '../../src/pack/pack-checkpoint.js';
import { checkpointOf, made } from '../src/pack/checkpoint.js';
import { fakeCuda } from './fake-cuda/fake.js';

// liblpq_kernels.so from plain C, on a machine without a GPU.
const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const build = process.env.LPQ_BUILD_DIR ?? path.join(root, 'native', 'build');
const library = path.join(build, 'liblpq_kernels.so');
const work = mkdtempSync(path.join(tmpdir(), 'lpq-library-'));
after(() => rmSync(work, { recursive: true, force: true }));

const compiler = ['cc', 'gcc', 'clang'].find((name) => spawnSync(name, ['--version']).status === 0);
const skip = compiler === undefined ? 'no C compiler was found' : undefined;
const packed = path.join(work, 'packed');

function compile(source: string): string {
  const program = path.join(work, path.basename(source, '.c'));
  const flags = ['-std=c99', '-Wall', '-Wextra', '-pedantic', '-Werror', '-O1'];
  const args = [...flags, '-I', path.join(root, 'native/library'), '-o', program, path.join(root, source)];
  const run = spawnSync(compiler as string, [...args, '-L', build, '-llpq_kernels', '-lm', '-ldl'], {
    encoding: 'utf8',
  });
  assert.equal(run.status, 0, run.stderr);
  return program;
}

function runs(program: string, args: readonly string[], env: Record<string, string> = {}) {
  const paths = [build, env.LD_LIBRARY_PATH].filter(Boolean).join(':');
  return spawnSync(program, args, { encoding: 'utf8', env: { ...process.env, ...env, LD_LIBRARY_PATH: paths } });
}

function lpq(...args: string[]): void {
  const run = spawnSync(process.execPath, [path.join(root, 'bin/lpq.js'), ...args, '--quiet'], { encoding: 'utf8' });
  assert.equal(run.status, 0, run.stderr);
}

before(() => {
  if (skip !== undefined) return;
  const quantized = path.join(work, 'w4');
  lpq('quantize', path.join(root, 'share/tiny-llama'), '-o', quantized, '--bits', '4', '--method', 'rtn');
  lpq('pack', quantized, '--target', 'tilus', '-o', packed);
});

test('the library is plain C to its users: exports, dependencies, soname', { skip }, () => {
  assert.ok(existsSync(library), `${library} was not built`);
  const names = spawnSync('nm', ['-D', '--defined-only', library], { encoding: 'utf8' }).stdout;
  const shown = [...names.matchAll(/ [TDBVWRi] (\S+)/g)].map((match) => (match[1] as string).replace(/@.*/, ''));
  const header = readFileSync(path.join(root, 'native/library/lpq_kernels.h'), 'utf8');
  const declared = [...header.matchAll(/^LPQ_API .*?\b(lpq_\w+)\(/gm)].map((match) => match[1] as string);
  assert.ok(declared.length > 20);
  assert.deepEqual(shown.sort(), declared.sort());
  const facts = spawnSync('readelf', ['-d', library], { encoding: 'utf8' }).stdout;
  const needed = [...facts.matchAll(/NEEDED.*\[(.*)\]/g)].map((match) => match[1] as string);
  const usual = /^(libc|libm|libdl|libpthread|libgcc_s|libstdc\+\+|ld-linux-x86-64)\.so/;
  assert.deepEqual(
    needed.filter((name) => !usual.test(name)),
    [],
  );
  assert.match(facts, /SONAME.*\[liblpq_kernels\.so\.1\]/);
});

test('the contract, as far as it needs no device', { skip }, () => {
  const run = runs(compile('test/gpu/library/contract.c'), []);
  assert.equal(run.status, 0, run.stdout);
  assert.match(run.stdout, /^46 checks, 0 failed$/m);
});

test('and the rest of it on a driver that is none', { skip }, (t) => {
  const fake = fakeCuda([
    'lpq_gemm_int4_f16_s2',
    'lpq_marlin_u8_f16_t8',
    ...[1, 2, 4, 8].flatMap((tiles) => [`lpq_gemm_int4_f16_t${tiles}`, `lpq_sparse_u4_f16_t${tiles}`]),
    ...[2, 4, 8, 16].map((tiles) => `lpq_gemm_act8_w4x_${tiles}x1x1`),
    `lpq_gemm_act8_w4x_2x1x2`,
    ...[1, 2].flatMap((tiles) => [2, 4].map((rows) => `lpq_gemm_few_t${tiles}_r${rows}`)),
  ]);
  if (typeof fake === 'string') return t.skip(fake);
  try {
    const run = runs(compile('test/gpu/library/contract.c'), ['gpu', 'one'], { ...fake.env, FAKE_CUDA_ARCH: '86' });
    assert.equal(run.status, 0, run.stdout + run.stderr);
    assert.match(run.stdout, /^\d{2,} checks, 0 failed$/m);
  } finally {
    fake.remove();
  }
});

test('the example in C lists an artifact, and says which kernel runs', { skip }, () => {
  const program = compile('examples/c/layer.c');
  assert.match(runs(program, []).stdout, /lpq_gemm_int4_f16_\w+: \d+ blocks/);
  const run = runs(program, [packed]);
  assert.equal(run.status, 0, run.stderr);
  assert.match(run.stdout, /^model\.layers\.0\.mlp\.down_proj: i4 in layout tilus, 256 x 768, group \d+$/m);
  assert.match(run.stdout, /down_proj\.packed: dtype 12, \[8,6,2048\], 98304 bytes/);
  assert.match(run.stdout, /^28 modules, \d+ tensors$/m);
});

test('layouts of 2:4 weights and of W4Ax are known, and numbers of blocks that contradict each other are not', {
  skip,
}, async (t) => {
  const dir = path.join(work, 'others');
  const reads = (...bits: (4 | 8)[]) => ({ block: 128 as const, bits, clip: bits.map(() => 1) });
  const mixed = made({ type: 'i4', n: 40, k: 256, group: 128, activations: reads(4, 8) });
  const input = await checkpointOf(dir, 'mixed', { m: mixed });
  const output = path.join(dir, 'comet');
  await packCheckpoint({ input, target: 'comet', output, runtime: createRuntime(1) });
  input.close();
  const run = runs(compile('examples/c/layer.c'), [output]);
  assert.equal(run.status, 0, run.stderr);
  assert.match(run.stdout, /^m: i4 in layout comet, 40 x 256, group 128$/m);
  const fake = fakeCuda([]);
  if (typeof fake === 'string') return t.skip(fake);
  const env = { ...fake.env, FAKE_CUDA_ARCH: '86' };
  const upload = () => runs(path.join(work, 'layer'), [output, 'm', '3'], env).stderr;
  assert.match(upload(), /products of codes with codes have kernels for devices of compute capability 9\.0/);
  const shard = path.join(output, 'model.safetensors');
  const bytes = readFileSync(shard);
  const at = 8 + Number(bytes.readBigUInt64LE());
  const header = JSON.parse(bytes.toString('utf8', 8, at)) as Record<string, { data_offsets: [number, number] }>;
  bytes[at + (header['m.blocks'] as { data_offsets: [number, number] }).data_offsets[0]] = 1;
  writeFileSync(shard, bytes);
  assert.match(upload(), /'m\.blocks' does not number the blocks/);
  fake.remove();
});

/** An artifact with something wrong: what is done to it, and what the library must say. */
const DAMAGE: readonly (readonly [string, (dir: string, shard: string) => void, RegExp])[] = [
  ['no manifest', (dir) => rmSync(path.join(dir, 'lpq.json')), /lpq\.json cannot be opened/],
  ['a manifest that is no JSON', (dir) => writeFileSync(path.join(dir, 'lpq.json'), '{"format":'), /not valid JSON/],
  ['a name twice', (dir) => edit(dir, (text) => text.replace('{', '{"format":1,')), /'format' occurs twice/],
  ['deep nesting', (dir) => writeFileSync(path.join(dir, 'lpq.json'), '['.repeat(1e5)), /nested too deeply/],
  ['another format', (dir) => edit(dir, (text) => text.replace('lpq-artifact', 'lpq-canonical')), /not lpq-artifact/],
  ['a later version', (dir) => edit(dir, (text) => text.replace('"version": 1', '"version": 2')), /version is not 1/],
  ['an unknown type', (dir) => edit(dir, (text) => text.replace('"type": "i4"', '"type": "i9"')), /'i9'/],
  ['a shape of one', (dir) => edit(dir, (text) => text.replace(/"shape": \[\s*\d+,/, '"shape": [')), /not \[N, K\]/],
  ['no weights', (_dir, shard) => rmSync(shard), /holds no \.safetensors file/],
  [
    'a tensor that is not there',
    (_dir, shard) => head(shard, (text) => text.replace('.packed"', '.pocked"')),
    /no file holds/,
  ],
  ['an empty file', (_dir, shard) => truncateSync(shard, 0), /shorter than the 8 bytes/],
  ['a file cut short', (_dir, shard) => truncateSync(shard, readFileSync(shard).length - 1), /ends beyond the file/],
  ['a header cut short', (_dir, shard) => truncateSync(shard, 100), /ends inside its header/],
  ['a header of 2^63 bytes', (_dir, shard) => patch(shard, Buffer.from('0000000000000080', 'hex')), /above the limit/],
  ['an unknown dtype', (_dir, shard) => head(shard, (text) => text.replace('"F16"', '"F17"')), /dtype is unknown/],
  [
    'a shape beyond the span',
    (_dir, shard) => head(shard, (t) => t.replace(/"shape":\[(\d)/, '"shape":[9$1')),
    /do not match/,
  ],
  [
    'a shape that overflows',
    (_dir, shard) => head(shard, (t) => t.replace(/"shape":\[\d+/, '"shape":[4503599627370496,4096,4096')),
    /beyond 2\^63 bits/,
  ],
  ['a negative size', (_dir, shard) => head(shard, (t) => t.replace(/"shape":\[/, '"shape":[-')), /no integer from 0/],
  ['bytes that belong to nobody', (_dir, shard) => writeFileSync(shard, 'x', { flag: 'a' }), /belong to no tensor/],
  ['one tensor in two files', (dir, shard) => cpSync(shard, path.join(dir, 'more.safetensors')), /is in two files/],
];

function edit(dir: string, change: (text: string) => string): void {
  const file = path.join(dir, 'lpq.json');
  const text = readFileSync(file, 'utf8');
  const changed = change(text);
  assert.notEqual(changed, text);
  writeFileSync(file, changed);
}

/** Rewrites a header and its length. */
function head(shard: string, change: (text: string) => string): void {
  const bytes = readFileSync(shard);
  const length = Number(bytes.readBigUInt64LE());
  const text = bytes.toString('utf8', 8, 8 + length);
  const changed = change(text);
  assert.notEqual(changed, text);
  const size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(Buffer.byteLength(changed)));
  writeFileSync(shard, Buffer.concat([size, Buffer.from(changed), bytes.subarray(8 + length)]));
}

function patch(shard: string, bytes: Buffer): void {
  const all = readFileSync(shard);
  bytes.copy(all);
  writeFileSync(shard, all);
}

test('a damaged artifact is refused with a sentence', { skip }, () => {
  const program = compile('examples/c/layer.c');
  for (const [what, damage, says] of DAMAGE) {
    const dir = path.join(work, 'damaged');
    rmSync(dir, { recursive: true, force: true });
    cpSync(packed, dir, { recursive: true });
    const shard = readdirSync(dir).find((name) => name.endsWith('.safetensors')) as string;
    damage(dir, path.join(dir, shard));
    const run = runs(program, [dir]);
    assert.equal(run.status, 1, `${what}: ${run.stdout}${run.stderr}`);
    assert.match(run.stderr, says, what);
  }
});

test('whatever a few changed bytes make of an artifact, it is refused or can be read', { skip }, () => {
  const dir = path.join(work, 'fuzzed');
  cpSync(packed, dir, { recursive: true });
  const shard = readdirSync(dir).find((name) => name.endsWith('.safetensors')) as string;
  const run = runs(compile('test/native/library-fuzz.c'), [dir, shard, '1500']);
  assert.equal(run.status, 0, `${run.signal} ${run.stdout}${run.stderr}`);
  const [, opened, refused] = /^(\d+) opened, (\d+) refused$/m.exec(run.stdout) ?? [];
  assert.ok(Number(opened) > 50 && Number(refused) > 500, run.stdout);
});

test('installed with cmake --install, the library is found by pkg-config', { skip }, (t) => {
  const prefix = path.join(work, 'prefix');
  const cmake = spawnSync('cmake', ['--install', build, '--prefix', prefix], { encoding: 'utf8' });
  if (cmake.error) return t.skip('cmake was not found');
  assert.equal(cmake.status, 0, cmake.stderr);
  const lib = ['lib', 'lib64', `lib/${process.arch === 'x64' ? 'x86_64' : process.arch}-linux-gnu`]
    .map((dir) => path.join(prefix, dir))
    .find((dir) => existsSync(path.join(dir, 'liblpq_kernels.so.1'))) as string;
  assert.ok(existsSync(path.join(prefix, 'include/lpq_kernels.h')));
  assert.ok(existsSync(path.join(lib, 'liblpq_kernels.so')));
  const file = readFileSync(path.join(lib, 'pkgconfig/lpq_kernels.pc'), 'utf8');
  assert.match(file, /^Libs: -L\$\{libdir\} -llpq_kernels$/m);
  const config = spawnSync('pkg-config', ['--cflags', '--libs', 'lpq_kernels'], {
    encoding: 'utf8',
    env: { ...process.env, PKG_CONFIG_PATH: path.join(lib, 'pkgconfig') },
  });
  if (config.error) return t.skip('pkg-config was not found');
  const program = path.join(work, 'installed');
  mkdirSync(prefix, { recursive: true });
  const flags = config.stdout.trim().split(/\s+/);
  const run = spawnSync(
    compiler as string,
    ['-std=c99', '-o', program, path.join(root, 'examples/c/layer.c'), ...flags, '-lm', '-ldl'],
    { encoding: 'utf8' },
  );
  assert.equal(run.status, 0, run.stderr);
  const shown = spawnSync(program, { encoding: 'utf8', env: { ...process.env, LD_LIBRARY_PATH: lib } });
  assert.match(shown.stdout, /ABI 1/);
});
