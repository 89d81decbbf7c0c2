// Test-only artifacts, built from the closed forms of the layout facts (word and nibble of element (k, n)), never from
// lpq's packer: what the verifier is tested with shares no code with it.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { PackedModule } from '../../../formats/artifact/schema.js';
import { ArtifactWriter, type PackedDeclaration } from '../../../formats/artifact/write.js';
import type { CanonicalModule, Provenance, Zeros } from '../../../formats/canonical/schema.js';
import { type ModuleDeclaration, moduleTensors } from '../../../formats/canonical/tensors.js';
import { CanonicalWriter, type ModuleData } from '../../../formats/canonical/write.js';
import { OutputDirectory } from '../../../formats/directory/output-directory.js';
import type { KvScheme } from '../../../formats/kv/scheme.js';
import type { SafetensorsDtype } from '../../../formats/safetensors/dtypes.js';
import type { TensorSpec } from '../../../formats/safetensors/header.js';
import { type Granularity, groupCount, groupSizeOf } from '../../../src/core/granularity.js';
import { decodeCode, quantType } from '../../../src/core/quant-type.js';
import { tensorHash } from '../../formats/safetensors/tensor-hash.js';

export interface ModuleSpec {
  readonly type: string;
  readonly n: number;
  readonly k: number;
  readonly granularity: Granularity;
  readonly zeros: Zeros;
  readonly layout: PackedModule['layout'];
  readonly scaleDtype?: 'f16' | 'bf16';
  readonly actOrder?: boolean;
}

/** A module's numbers: codes as raw patterns [N][K], f16 or bf16 scale bits and zeros [N][G], groups [K]. */
export interface Numbers {
  readonly codes: Uint8Array;
  readonly scales: Uint16Array;
  readonly zeros: Int16Array;
  readonly group: Int32Array;
}

export interface Built {
  readonly quantized: string;
  readonly artifact: string;
  readonly numbers: Map<string, Numbers>;
  readonly bias: Uint16Array;
  remove(): void;
}

export interface TensorOut {
  readonly name: string;
  readonly dtype: SafetensorsDtype;
  readonly shape: readonly number[];
  readonly data: ArrayBufferView;
}

/** xorshift32: the same numbers every time. */
export function random(seed: number): () => number {
  let s = seed || 1;
  return () => {
    s ^= s << 13;
    s ^= s >>> 17;
    s ^= s << 5;
    return s >>> 0;
  };
}

export function drawNumbers(spec: ModuleSpec, seed: number): Numbers {
  const next = random(seed);
  const { n, k, granularity, zeros } = spec;
  const { bits } = quantType(spec.type);
  const groups = groupCount(granularity, k);
  const size = groupSizeOf(granularity, k);
  const codes = Uint8Array.from({ length: n * k }, () => (next() >>> 8) % 2 ** bits);
  // Positive normal numbers between 2^-9 and 2^-5 (f16), 2^-15 and 2^-7 (bf16).
  const scales = Uint16Array.from({ length: n * groups }, () =>
    spec.scaleDtype === 'bf16' ? 0x3800 + ((next() >>> 7) % 0x400) : 0x1800 + ((next() >>> 7) % 0x1000),
  );
  const constant = zeros.kind === 'const' ? zeros.value : 0;
  const zero = () => (zeros.kind === 'int' ? (next() >>> 8) % 2 ** bits : constant);
  const low = zeros.kind === 'int' && zeros.dtype === 'i16' ? 2 ** (bits - 1) : 0;
  const group = Int32Array.from({ length: k }, (_, i) => Math.floor(i / size));
  if (spec.actOrder) for (let i = k - 1; i > 0; i--) swap(group, i, next() % (i + 1));
  return { codes, scales, zeros: Int16Array.from({ length: n * groups }, () => zero() - low), group };
}

function swap(list: Int32Array, i: number, j: number): void {
  [list[i], list[j]] = [list[j]!, list[i]!];
}

/** Rows of values as little-endian bitstreams of ceil(width*bits/unit)*unit bits. */
export function bitstream(
  rows: number,
  width: number,
  bits: number,
  unit: number,
  at: (r: number, i: number) => number,
) {
  const rowBytes = (Math.ceil((width * bits) / unit) * unit) / 8;
  const bytes = new Uint8Array(rows * rowBytes);
  for (let r = 0; r < rows; r++)
    for (let i = 0; i < width; i++)
      for (let b = 0; b < bits; b++) {
        const bit = i * bits + b;
        if ((at(r, i) >> b) & 1) bytes[r * rowBytes + (bit >> 3)]! |= 1 << (bit & 7);
      }
  return bytes;
}

/** Words of `rows` streams, transposed: word w of stream r lies at [w][r]. */
function streamsDown(rows: number, width: number, bits: number, at: (r: number, i: number) => number): Int32Array {
  const words = new Int32Array(bitstream(rows, width, bits, 32, at).buffer);
  const count = words.length / rows;
  return Int32Array.from({ length: words.length }, (_, i) => words[(i % rows) * count + Math.floor(i / rows)]!);
}

/** MARLIN's B from stored codes: the closed form of element (k, n). */
export function marlinWords(np: number, kp: number, stored: (n: number, k: number) => number): Int32Array {
  const words = new Uint32Array((kp / 16) * 2 * np);
  for (let n = 0; n < np; n++)
    for (let k = 0; k < kp; k++) {
      const [kt, kr, nt, j, c] = [Math.floor(k / 16), k % 16, Math.floor(n / 64), Math.floor((n % 64) / 16), n % 16];
      const lane = 4 * (c % 8) + Math.floor((kr % 8) / 2);
      const nibble = 4 * (kr & 1) + 2 * Math.floor(c / 8) + Math.floor(kr / 8);
      words[kt * 2 * np + nt * 128 + lane * 4 + j]! |= stored(n, k) << (4 * nibble);
    }
  return new Int32Array(words.buffer);
}

/** MARLIN's permuted scales [G][Np]: per 64 columns, or per 32 for whole channels. */
export function marlinScales(np: number, groups: number, scale: (n: number, g: number) => number): Uint16Array {
  const grouped = groups > 1;
  const block = grouped ? 64 : 32;
  const from = (p: number) =>
    grouped ? Math.floor(p / 8) + 8 * (p % 8) : 2 * Math.floor(p / 8) + 8 * Math.floor((p % 8) / 2) + (p % 2);
  return Uint16Array.from({ length: groups * np }, (_, i) => {
    const column = i % np;
    return scale(column - (column % block) + from(column % block), Math.floor(i / np));
  });
}

export const roundUp = (value: number, step: number): number => Math.ceil(value / step) * step;

/** The packed tensors of a module, and its padded shape. */
export function packModule(
  name: string,
  spec: ModuleSpec,
  numbers: Numbers,
): { tensors: TensorOut[]; padded: [number, number] } {
  const { n, k, layout } = spec;
  const type = quantType(spec.type);
  const { bits } = type;
  const bias = type.kind === 'int' && type.signed ? 2 ** (bits - 1) : 0;
  const groups = groupCount(spec.granularity, k);
  const stored = (row: number, i: number) => numbers.codes[row * k + i]! ^ bias;
  const zero = (row: number, g: number) => numbers.zeros[row * groups + g]! + bias;
  const scale = (row: number, g: number) => (row < n ? numbers.scales[row * groups + g]! : 0);
  const one = (suffix: string, dtype: SafetensorsDtype, shape: number[], data: ArrayBufferView): TensorOut => ({
    name: `${name}.${suffix}`,
    dtype,
    shape,
    data,
  });
  const words = (count: number) => Math.ceil((count * bits) / 32);
  const scaleDtype = spec.scaleDtype === 'bf16' ? 'BF16' : 'F16';
  if (layout === 'marlin') {
    const [np, kp] = [roundUp(n, 256), roundUp(k, 128)];
    const code = (row: number, i: number) => (row < n && i < k ? stored(row, i) : 8);
    return {
      padded: [np, kp],
      tensors: [
        one('B', 'I32', [kp / 16, 2 * np], marlinWords(np, kp, code)),
        one('s', 'F16', [groups, np], marlinScales(np, groups, scale)),
      ],
    };
  }
  const padded: [number, number] = [n, k];
  if (layout === 'compressed-tensors')
    return {
      padded,
      tensors: [
        one('weight_packed', 'I32', [n, words(k)], new Int32Array(bitstream(n, k, bits, 32, stored).buffer)),
        one('weight_scale', scaleDtype, [n, groups], numbers.scales),
        one('weight_shape', 'I64', [2], BigInt64Array.of(BigInt(n), BigInt(k))),
        ...(spec.zeros.kind === 'int'
          ? [
              one(
                'weight_zero_point',
                'I32',
                [words(n), groups],
                streamsDown(groups, n, bits, (g, row) => zero(row, g)),
              ),
            ]
          : []),
        ...(spec.actOrder ? [one('weight_g_idx', 'I32', [k], numbers.group)] : []),
      ],
    };
  if (layout === 'gptq' || layout === 'gptq_v2') {
    const less = layout === 'gptq' ? 1 : 0;
    const mask = 2 ** bits - 1;
    const zeros = bitstream(groups, n, bits, 32, (g, row) => (zero(row, g) - less) & mask);
    const turned = Uint16Array.from({ length: groups * n }, (_, i) => scale(i % n, Math.floor(i / n)));
    return {
      padded,
      tensors: [
        one('qweight', 'I32', [words(k), n], streamsDown(n, k, bits, stored)),
        one('qzeros', 'I32', [groups, words(n)], new Int32Array(zeros.buffer)),
        one('scales', 'F16', [groups, n], turned),
        one('g_idx', 'I32', [k], numbers.group),
      ],
    };
  }
  if (layout === 'dense')
    return { padded, tensors: [one('weight', 'F32', [n, k], Float32Array.from(weights(spec, numbers)))] };
  const data = canonicalData(spec, numbers);
  return {
    padded,
    tensors: [
      one('codes', 'U8', [n, Math.ceil((k * bits) / 8)], data.codes as Uint8Array),
      one('scales', scaleDtype, [n, groups], numbers.scales),
      ...(data.zeros
        ? [
            one(
              'zeros',
              spec.zeros.kind === 'int' && spec.zeros.dtype === 'u8' ? 'U8' : 'I16',
              [n, groups],
              data.zeros as Uint8Array,
            ),
          ]
        : []),
      ...(spec.actOrder ? [one('g_idx', 'I32', [k], numbers.group)] : []),
    ],
  };
}

export function canonicalData(spec: ModuleSpec, numbers: Numbers): ModuleData {
  const { n, k } = spec;
  const { bits } = quantType(spec.type);
  return {
    codes: bitstream(n, k, bits, 8, (row, i) => numbers.codes[row * k + i]!),
    scales: numbers.scales,
    ...(spec.zeros.kind === 'int' && {
      zeros: spec.zeros.dtype === 'u8' ? Uint8Array.from(numbers.zeros) : numbers.zeros,
    }),
    ...(spec.actOrder && { g_idx: numbers.group }),
  };
}

/** W [N][K] in double precision: (q - z) * s. */
export function weights(spec: ModuleSpec, numbers: Numbers): Float64Array {
  const { n, k } = spec;
  const type = quantType(spec.type);
  const groups = groupCount(spec.granularity, k);
  return Float64Array.from({ length: n * k }, (_, at) => {
    const [row, i] = [Math.floor(at / k), at % k];
    const where = row * groups + numbers.group[i]!;
    const bitsOf = numbers.scales[where]!;
    const scale = spec.scaleDtype === 'bf16' ? bfloat(bitsOf) : half(bitsOf);
    return (decodeCode(type, numbers.codes[at]!) - numbers.zeros[where]!) * scale;
  });
}

export function half(bits: number): number {
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  const magnitude = exponent === 0 ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

function bfloat(bits: number): number {
  return new Float32Array(Uint32Array.of(bits << 16).buffer)[0]!;
}

export const PROVENANCE: Provenance = {
  lpq: '0.1.0',
  source: { name: 'test', revision: null, fingerprint: '0'.repeat(64) },
  method: 'rtn',
  options: { bits: 4 },
  calibration: null,
};

/** quantization_config of a target whose packed modules are all alike, every key of it. */
function quantizationConfig(target: string, specs: Readonly<Record<string, ModuleSpec>>): Record<string, unknown> {
  const spec = Object.values(specs).find(({ layout }) => layout === target);
  if (!spec || !/^gptq|^compressed/.test(target))
    return { quant_method: 'lpq', format: 'lpq-artifact', version: 1, target, manifest: 'lpq.json' };
  const type = quantType(spec.type);
  const sym = spec.zeros.kind === 'const' || (spec.zeros.kind === 'none' && type.signed);
  const size = spec.granularity.kind === 'group' ? spec.granularity.size : -1;
  const dense = Object.keys(specs).filter((name) => specs[name]?.layout === 'dense' && name !== 'lm_head');
  if (target === 'compressed-tensors')
    return {
      quant_method: target,
      format: 'pack-quantized',
      quantization_status: 'compressed',
      global_compression_ratio: null,
      ignore: [...dense, 'lm_head'],
      kv_cache_scheme: null,
      config_groups: {
        group_0: {
          targets: ['Linear'],
          weights: {
            num_bits: type.bits,
            type: 'int',
            symmetric: sym,
            strategy: size < 0 ? 'channel' : 'group',
            group_size: size < 0 ? null : size,
            block_structure: null,
            dynamic: false,
            actorder: spec.actOrder ? 'group' : null,
            observer: 'minmax',
            observer_kwargs: {},
          },
          input_activations: null,
          output_activations: null,
          format: 'pack-quantized',
        },
      },
    };
  return {
    quant_method: 'gptq',
    checkpoint_format: target,
    bits: type.bits,
    group_size: size,
    desc_act: spec.actOrder ?? false,
    sym,
    static_groups: false,
    true_sequential: true,
    lm_head: false,
    damp_percent: 0.01,
    pack_dtype: 'int32',
    ...(dense.length > 0 && { dynamic: Object.fromEntries(dense.map((name) => [`-:^${name}$`, {}])) }),
    meta: { quantizer: ['lpq:0.1.0'] },
  };
}

export interface BuildOptions {
  readonly seed?: number | undefined;
  readonly change?: ((tensors: TensorOut[], name: string) => void) | undefined;
  /** Further tensors that are carried, BF16 zeros. */
  readonly carried?: Readonly<Record<string, readonly number[]>> | undefined;
  readonly config?: Readonly<Record<string, unknown>> | undefined;
  readonly kv?: KvScheme | undefined;
}

/** Writes a quantized checkpoint and the artifact packed from it for `target`. */
export async function build(
  target: string,
  specs: Readonly<Record<string, ModuleSpec>>,
  options: BuildOptions = {},
): Promise<Built> {
  const root = mkdtempSync(path.join(tmpdir(), 'lpq-verify-'));
  const quantized = path.join(root, 'quantized');
  const artifact = path.join(root, 'artifact');
  const numbers = new Map<string, Numbers>();
  const declarations = new Map<string, ModuleDeclaration>();
  const packed = new Map<string, PackedDeclaration>();
  const tensors: TensorOut[] = [];
  let seed = options.seed ?? 1;
  const first = Object.entries(specs);
  for (const [name, spec] of first) {
    const drawn = drawNumbers(spec, seed++ * 7919);
    numbers.set(name, drawn);
    const declaration = declare(spec);
    declarations.set(name, declaration);
    const { tensors: own, padded } = packModule(name, spec, drawn);
    const canonical = Object.fromEntries(
      Object.entries(canonicalData(spec, drawn)).map(([part, data]) => {
        const stored = moduleTensors(name, declaration).get(part as 'codes') as TensorSpec;
        return [part, tensorHash(stored, data as ArrayBufferView)];
      }),
    ) as PackedModule['canonical'];
    if (spec.layout === 'dense') canonical.weight = tensorHash(own[0]!, own[0]!.data);
    options.change?.(own, name);
    tensors.push(...own);
    const { type, shape, granularity, scales, zeros } = declaration;
    packed.set(name, {
      type,
      shape,
      granularity,
      scales,
      zeros,
      padded,
      layout: spec.layout,
      notes: [],
      tensors: own,
      canonical,
    });
  }
  const bias = Uint16Array.of(0x3f80, 0xbc00, 0x3555);
  const embedding = Uint16Array.from({ length: 24 }, (_, i) => 0x3f00 + 7 * i);
  const carried = [
    { name: 'embed_tokens.weight', dtype: 'BF16', shape: [6, 4] },
    { name: 'norm.weight', dtype: 'BF16', shape: [3] },
    ...Object.entries(options.carried ?? {}).map(([name, shape]) => ({ name, dtype: 'BF16' as const, shape })),
  ] as const;
  const zeros = Object.entries(options.carried ?? {}).map(
    ([name, shape]) => [name, new Uint16Array(shape.reduce((a, b) => a * b, 1))] as const,
  );
  const config = options.config ?? { architectures: ['LlamaForCausalLM'], hidden_size: 8 };
  const kv = options.kv && { kv: options.kv };

  const out = await OutputDirectory.create(quantized);
  await out.writeFile('tokenizer.json', '{"a":1}\n');
  const writer = await CanonicalWriter.create(out, {
    modules: declarations,
    carried,
    config: JSON.stringify(config),
    ...kv,
  });
  await writer.writeCarried('embed_tokens.weight', embedding);
  await writer.writeCarried('norm.weight', bias);
  for (const [name, data] of zeros) await writer.writeCarried(name, data);
  for (const [name, spec] of first) await writer.writeModule(name, canonicalData(spec, numbers.get(name)!));
  await writer.finish(PROVENANCE);
  await out.commit();

  const dir = await OutputDirectory.create(artifact);
  await dir.writeFile('tokenizer.json', '{"a":1}\n');
  const quantization = quantizationConfig(target, specs);
  const full = { ...config, quantization_config: quantization };
  if (target.startsWith('gptq')) await dir.writeJson('quantize_config.json', quantization);
  const art = await ArtifactWriter.create(dir, {
    target,
    modules: packed,
    carried,
    config: JSON.stringify(full),
    ...kv,
  });
  await art.write('embed_tokens.weight', embedding);
  await art.write('norm.weight', bias);
  for (const [name, data] of zeros) await art.write(name, data);
  for (const { name, data } of tensors) await art.write(name, data);
  await art.finish(PROVENANCE);
  await dir.commit();
  return { quantized, artifact, numbers, bias, remove: () => rmSync(root, { recursive: true, force: true }) };
}

function declare(spec: ModuleSpec): ModuleDeclaration & CanonicalModule {
  return {
    type: spec.type,
    shape: [spec.n, spec.k],
    granularity: spec.granularity,
    scales: { dtype: spec.scaleDtype ?? 'f16', block: [1, groupSizeOf(spec.granularity, spec.k)], global: false },
    zeros: spec.zeros,
    groupIndex: spec.actOrder ?? false,
    permutation: false,
    sparsity: 'none',
    sourceDtype: 'f32',
    sha256: {},
  };
}

export const NONE: Zeros = { kind: 'none' };
export const CHANNEL: Granularity = { kind: 'channel' };
export const group = (size: number): Granularity => ({ kind: 'group', size });
