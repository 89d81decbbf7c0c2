import assert from 'node:assert/strict';
import { cpSync, existsSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { SafetensorsFile } from '../../formats/safetensors/read.js';
import { allocate, createRuntime, fromTyped, type Tensor, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { MMA_M16N8K16 } from '../../src/layout/fragment.js';
import { bitPositions } from '../../src/layout/memory.js';
import { marlinScales, marlinWeight } from '../../src/pack/layouts/marlin.js';
import { lpq, model, root, scratch } from '../src/cli/lpq.js';
import { locate } from '../src/layout/locate.js';

const file = path.join(root, 'docs', 'internals', 'walk.md');
const page = readFileSync(file, 'utf8');

const NAME = 'model.layers.0.mlp.down_proj';
const [N, K, GROUP] = [256, 768, 128];
const [n, k] = [93, 293];
const hex = (value: number, digits = 8) => `0x${value.toString(16).padStart(digits, '0')}`;

/** The number of f16 bits. */
function half(bits: number): number {
  const [exponent, mantissa] = [(bits >> 10) & 31, bits & 1023];
  const size = exponent === 0 ? mantissa * 2 ** -24 : (1024 + mantissa) * 2 ** (exponent - 25);
  return bits & 0x8000 ? -size : size;
}

/** f16 bits of a whole number up to 2048. */
function wholeHalf(value: number): number {
  if (value === 0) return 0;
  const exponent = Math.floor(Math.log2(Math.abs(value)));
  return (value < 0 ? 0x8000 : 0) | ((exponent + 15) << 10) | (Math.abs(value) * 2 ** (10 - exponent) - 1024);
}

/** What a tensor of a file holds, as typed array. */
function read<T>(dir: string, tensor: string): T {
  const opened = SafetensorsFile.open(path.join(dir, 'model.safetensors'));
  const mapped = opened.tensor(tensor);
  const values = typed<{ slice(): T }>(mapped).slice();
  mapped.dispose();
  opened.close();
  return values;
}

async function run(...args: string[]): Promise<string> {
  const { code, stdout, stderr } = await lpq(args);
  assert.equal(code, 0, stderr);
  return stdout;
}

/** Where the words of the file begin that hold the packed codes. */
function startOf(dir: string, tensor: string): number {
  const bytes = readFileSync(path.join(dir, 'model.safetensors'));
  const length = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.subarray(8, 8 + length).toString()) as Record<string, { data_offsets: number[] }>;
  return 8 + length + header[tensor]!.data_offsets[0]!;
}

function quantized(w4: string): { code: number; scaleBits: number; quantize: string; canonical: string } {
  const weight = read<Uint16Array>(model, `${NAME}.weight`);
  const value = (at: number) => new Float32Array(Uint32Array.of(weight[at]! << 16).buffer)[0]!;
  const group = Math.floor(k / GROUP);
  const row = Array.from({ length: GROUP }, (_, i) => Math.abs(value(n * K + group * GROUP + i)));
  const most = Math.max(...row);
  const scale = Math.fround((2 * most) / 15);
  const x = value(n * K + k) / scale;
  const code = Math.round(x);
  const at = n * (K / 2) + Math.floor(k / 2);
  const byte = read<Uint8Array>(w4, `${NAME}.codes`)[at]!;
  assert.equal((byte >> (4 * (k % 2))) & 15, code & 15);
  const scaleBits = read<Uint16Array>(w4, `${NAME}.scales`)[n * (K / GROUP) + group]!;
  assert.ok(Math.abs(half(scaleBits) - scale) <= scale * 2 ** -11);
  return {
    code,
    scaleBits,
    quantize: `
W[${n}][${k}]          bf16 ${hex(weight[n * K + k]!, 4)} = ${value(n * K + k)}
group ${group}            k = ${group * GROUP} .. ${group * GROUP + GROUP - 1}, max |w| = ${most}
scale              2 max |w| / 15 = ${scale.toFixed(8)} in fp32
x = w / scale      ${x.toFixed(4)}
code               rint(x) = ${code}, two's complement ${hex(code & 15, 1)}`,
    canonical: `
${NAME}.codes   U8 [${N}, ${K / 2}]   byte ${at} = row ${n}, byte ${at % (K / 2)} = ${hex(byte, 2)}
                                     ${k % 2 ? 'high' : 'low'} nibble: ${hex(code & 15, 1)}
${NAME}.scales  F16 [${N}, ${K / GROUP}]    element [${n}, ${group}] = ${hex(scaleBits, 4)} = ${half(scaleBits)}
what it stands for                   ${code} x ${half(scaleBits)} = ${code * half(scaleBits)}`,
  };
}

function packed(artifact: string, code: number, scaleBits: number) {
  const B = read<Int32Array>(artifact, `${NAME}.B`);
  const bit = bitPositions(marlinWeight(N, K), n, k)[0]!;
  const at = Math.floor(bit / 32);
  const nibble = (bit % 32) / 4;
  const word = B[at]! >>> 0;
  assert.equal((word >>> (4 * nibble)) & 15, code + 8);
  const [tileK, strip, inTile] = [Math.floor(at / (2 * N)), Math.floor((at % (2 * N)) / 128), at % 128];
  const [lane, j] = [Math.floor(inTile / 4), inTile % 4];
  const right = Math.floor((n % 16) / 8);
  const { threads, local } = locate(MMA_M16N8K16.b, [k % 16, n % 8]);
  assert.deepEqual(threads, [lane]);
  const v = 4 * right + local;
  assert.equal([0, 2, 4, 6, 1, 3, 5, 7][nibble], v);
  const s = read<Uint16Array>(artifact, `${NAME}.s`);
  const group = Math.floor(k / GROUP);
  const place = bitPositions(marlinScales(N, K / GROUP, false), n, group)[0]! / 16;
  assert.equal(s[place], scaleBits);
  const nibbles = [...word.toString(16).padStart(8, '0')];
  const mark = (i: number) => (i === 7 - nibble ? ' ^^' : '   ');
  return {
    ...{ at, word, nibble, lane, j, right, local, strip, tileK, place },
    text: `
                 B I32 [${K / 16}, ${2 * N}]: ${K / 16} tiles along k, ${N / 64} strips of 64 columns along n
                      strip 0    strip 1    strip 2    strip 3
  k = 0 .. 15        [ 128    ] [ 128    ] [ 128    ] [ 128    ]
  ...
  k = ${16 * tileK} .. ${16 * tileK + 15}     [ words  ] [ here   ] [ words  ] [ words  ]   row ${tileK} of B, n = ${64 * strip} .. ${64 * strip + 63}

  k mod 16 = ${k % 16}, n mod 8 = ${n % 8}         lane ${lane} of the warp, value ${local} of a fragment of operand B (16 x 8)
  n mod 64 = ${n % 64}                     its tile j = ${j} of four, ${right ? 'right' : 'left'} eight columns: v${v} of v0 .. v7
  word ${tileK} x ${2 * N} + ${strip} x 128 + ${lane} x 4 + ${j} = ${at} of B = ${hex(word)}

  nibbles, high to low    ${nibbles.map((digit) => ` ${digit} `).join(' ')}
  they hold                v7  v5  v3  v1  v6  v4  v2  v0
                         ${nibbles.map((_, i) => mark(i)).join(' ')}
  nibble ${nibble} = ${hex(code + 8, 1)} = ${code} + 8

  s F16 [${K / GROUP}, ${N}]: row ${group}, position ${place % N} = ${64 * strip} + 8 x ${n % 8} + ${Math.floor((n % 64) / 8)}: ${hex(s[place]!, 4)}`,
  };
}

async function verified(t: TestContext, artifact: string, w4: string, found: { at: number; nibble: number }) {
  assert.match(await run('verify', artifact, '--against', w4), /emulator\s+passed/);
  const broken = path.join(scratch(t), 'broken');
  cpSync(artifact, broken, { recursive: true });
  const shard = path.join(broken, 'model.safetensors');
  const bytes = readFileSync(shard);
  bytes[startOf(broken, `${NAME}.B`) + 4 * found.at + Math.floor(found.nibble / 2)]! ^= found.nibble % 2 ? 16 : 1;
  writeFileSync(shard, bytes);
  const { code, stderr } = await lpq(['verify', broken, '--against', w4]);
  assert.equal(code, 1);
  const [, sentence] = /(module '.*?expected -?\d+)/.exec(stderr) ?? assert.fail(stderr);
  return `\n${sentence}`;
}

/** The lane's instructions as the kernel has them, and the product by the CPU's operation on the same bytes. */
async function multiplied(artifact: string, code: number, scaleBits: number, found: ReturnType<typeof packed>) {
  const { word, lane, right, local, j } = found;
  const [slot, high] = [Math.floor(local / 2), local % 2];
  assert.equal(slot, 0);
  const shifted = word >>> (8 * right);
  const masked = shifted & 0x000f000f;
  const lifted = (masked | 0x64006400) >>> 0;
  const [low, top] = [(lifted & 0xffff) - 0x6408, (lifted >>> 16) - 0x6408];
  assert.equal(high ? top : low, code);
  const register = ((wholeHalf(top) << 16) | wholeHalf(low)) >>> 0;
  assert.equal(half(high ? register >>> 16 : register & 0xffff), code);
  const row = (lane >> 2) + 8 * right;
  assert.equal(64 * found.strip + 16 * j + row, n);
  assert.deepEqual(locate(MMA_M16N8K16.a, [row, k % 16]), { threads: [lane], local: 4 * slot + 2 * right + high });

  const rt = createRuntime(1);
  const B = fromTyped('i32', [K / 16, 2 * N], read<Int32Array>(artifact, `${NAME}.B`));
  const s = fromTyped('f16', [K / GROUP, N], read<Uint16Array>(artifact, `${NAME}.s`));
  const x = fromTyped(
    'f16',
    [1, K],
    Uint16Array.from({ length: K }, (_, i) => (i === k ? 0x3c00 : 0)),
  );
  const y: Tensor = allocate('f16', [1, N]);
  ops.gemmMarlin(rt, x, { weights: B, scales: s }, undefined, y, { bits: 4, groupSize: GROUP });
  await rt.sync();
  const got = typed<Uint16Array>(y)[n]!;
  assert.ok(Math.abs(half(got) - code * half(scaleBits)) <= Math.abs(half(got)) * 2 ** -11);
  return `
lane ${lane}    16 bytes of shared memory: its words of tiles j = 0, 1, 2, 3
word ${j}     ${hex(word)}
>> ${8 * right}       ${hex(shifted)}      the ${right ? 'right eight columns: rows 8 to 15' : 'left eight columns: rows 0 to 7'} of operand A
AND        ${hex(masked)}      0x000f000f
OR         ${hex(lifted)}      0x64006400: f16 of 1024 + nibble
- 1032     ${hex(register)}      f16 of ${top} and ${low}; the ${high ? 'high' : 'low'} half is the weight
           register a${2 * slot + right} of lane ${lane}: row ${row}, k = ${(k % 16) - high} and ${(k % 16) - high + 1} of the 16

mma        sums of n = ${n} are row ${row}: registers c${2 * right} and c${2 * right + 1} of lanes ${4 * (n % 8)} to ${4 * (n % 8) + 3}, tokens 0 to 7
scale      the lane reads eight f16 at position ${(found.place % N) - Math.floor((n % 64) / 8)} of s; number 2 j + ${right} = ${2 * j + right} is ${hex(scaleBits, 4)}
y[0][${n}]   with x[0][${k}] = 1 and all other x = 0: f16 ${hex(got, 4)} = ${half(got)}`;
}

test('docs/internals/walk.md: one weight through quantize, pack, verify and run', async (t) => {
  const dir = scratch(t);
  const [w4, artifact] = [path.join(dir, 'w4'), path.join(dir, 'w4-marlin')];
  await run('quantize', model, '-o', w4, '--method', 'rtn', '--bits', '4', '--group-size', '128', '--device', 'cpu');
  await run('pack', w4, '--target', 'marlin', '-o', artifact);
  const { code, scaleBits, quantize, canonical } = quantized(w4);
  const pack = packed(artifact, code, scaleBits);
  const blocks: Record<string, string> = {
    quantize,
    canonical,
    pack: pack.text,
    verify: await verified(t, artifact, w4, pack),
    run: await multiplied(artifact, code, scaleBits, pack),
  };
  const expected = page.replace(/```text (\S+)\n[\s\S]*?```/g, (_, name: string) => {
    const lines = blocks[name]!.slice(1).split('\n');
    return `\`\`\`text ${name}\n${lines.map((line) => line.trimEnd()).join('\n')}\n\`\`\``;
  });
  if (process.env.LPQ_UPDATE_DOCS) writeFileSync(file, expected);
  else assert.equal(page, expected, 'run LPQ_UPDATE_DOCS=1 node scripts/test.mjs walk.test');
});

test('docs/internals/walk.md names files and functions that exist', () => {
  for (const [, cell] of page.matchAll(/^\|.*\| (.*) \|$/gm)) {
    let text = '';
    for (const [, source, name] of cell!.matchAll(/((?:src|native|formats)\/[\w./-]+\.\w+)|`([\w:]+)`/g))
      if (source) {
        assert.ok(existsSync(path.join(root, source)), `${source} does not exist`);
        text = readFileSync(path.join(root, source), 'utf8');
      } else assert.ok(new RegExp(`\\b${name}\\b`).test(text), `no ${name} in the file before it: ${cell}`);
  }
});
