import { readFileSync } from 'node:fs';
import path from 'node:path';
import { ARCHITECTURES, PlainFile, writeWidened } from '../../src/model/fixtures.js';
import { values } from '../../src/model/reference-runtime.js';
import type { Encoded } from './encode.js';
import { writeModel } from './mini.js';

/**
 * Models as their makers publish them in low bits, and the same numbers in floats, written out from the formats'
 * definitions: what a reader, a packer and a verifier must all make of them.
 */
export interface Published {
  readonly plain: string;
  readonly low: string;
  /** W [N, K] of every module, f32, by its canonical name. */
  readonly weights: ReadonlyMap<string, Float32Array>;
}

/** Settings that stand in the text model's own. */
interface Nested {
  readonly text_config: { readonly quantization_config: object };
}

interface Twice {
  readonly plain: Encoded[];
  readonly low: Encoded[];
  readonly weights: readonly (readonly [string, Float32Array])[];
}

export const E2M1: readonly number[] = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0, -0.5, -1, -1.5, -2, -3, -4, -6];

/** E4M3 by its definition: sign, exponent bias 7, three bits of fraction. */
export function e4m3(code: number): number {
  const [e, m] = [(code >> 3) & 15, code & 7];
  return (code & 128 ? -1 : 1) * (e === 0 ? (m / 8) * 2 ** -6 : (1 + m / 8) * 2 ** (e - 7));
}

function generator(seed: number): (limit: number) => number {
  let state = seed;
  return (limit) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * limit);
  };
}

/** The checkpoint `dir` twice: tensors that `encode` takes in floats and in low bits, the rest as they are. */
async function twice(
  root: string,
  name: string,
  dir: string,
  settings: object | Nested,
  encode: (name: string, shape: readonly number[]) => Twice | undefined,
): Promise<Published> {
  const file = new PlainFile(path.join(dir, 'model.safetensors'));
  const both: { plain: Encoded[]; low: Encoded[] } = { plain: [], low: [] };
  const weights = new Map<string, Float32Array>();
  for (const tensorName of Object.keys(file.header)) {
    const tensor = file.tensor(tensorName);
    const data = Float32Array.from(values(tensor));
    const same: Encoded = { name: tensorName, dtype: 'F32', shape: tensor.shape, data };
    const made = encode(tensorName, tensor.shape) ?? { plain: [same], low: [same], weights: [] };
    both.plain.push(...made.plain);
    both.low.push(...made.low);
    for (const [module, weight] of made.weights) weights.set(module, weight);
  }
  const config = JSON.parse(readFileSync(path.join(dir, 'config.json'), 'utf8')) as { text_config?: object };
  const low =
    'text_config' in settings
      ? { config: { ...config, text_config: { ...config.text_config, ...settings.text_config } } }
      : { config, settings };
  return {
    plain: await writeModel(path.join(root, `${name}-plain`), { tensors: both.plain, config }),
    low: await writeModel(path.join(root, `${name}-low`), { tensors: both.low, ...low }),
    weights,
  };
}

/** Two codes a byte, sixteen bytes to a scale. */
function mxfp4(name: string, scales: readonly number[], codes: Uint8Array, exponents: Uint8Array): Encoded[] {
  const blocks = Uint8Array.from({ length: codes.length / 2 }, (_, i) => codes[2 * i]! | (codes[2 * i + 1]! << 4));
  return [
    { name: `${name}_blocks`, dtype: 'U8', shape: [...scales, 16], data: blocks },
    { name: `${name}_scales`, dtype: 'U8', shape: scales, data: exponents },
  ];
}

/** GPT-OSS: experts.gate_up_proj and down_proj of all experts as NAME_blocks and NAME_scales, the rest in floats. */
export function gptOss(root: string): Promise<Published> {
  const random = generator(7);
  return twice(root, 'gpt_oss', path.join(ARCHITECTURES, 'gpt_oss'), { quant_method: 'mxfp4' }, (name, shape) => {
    if (!/experts\.(gate_up|down)_proj$/.test(name)) return undefined;
    const [experts, k, n] = shape as [number, number, number];
    const codes = Uint8Array.from({ length: experts * n * k }, () => random(16));
    const exponents = Uint8Array.from({ length: (experts * n * k) / 32 }, () => 119 + random(4));
    const data = new Float32Array(experts * k * n);
    const parts = name.endsWith('gate_up_proj') ? ['gate_proj', 'up_proj'] : ['down_proj'];
    const rows = n / parts.length;
    const weights: [string, Float32Array][] = [];
    for (let e = 0; e < experts; e++) {
      const own = parts.map((): Float32Array => new Float32Array(rows * k));
      for (let row = 0; row < n; row++)
        for (let i = 0; i < k; i++) {
          const at = (e * n + row) * k + i;
          const value = E2M1[codes[at]!]! * 2 ** (exponents[at >> 5]! - 127);
          data[(e * k + i) * n + row] = value;
          // The output features of gate and up take turns.
          own[row % parts.length]![Math.floor(row / parts.length) * k + i] = value;
        }
      const prefix = name.slice(0, name.lastIndexOf('.') + 1);
      for (const [turn, part] of parts.entries()) weights.push([`${prefix}${e}.${part}`, own[turn]!]);
    }
    return {
      plain: [{ name, dtype: 'F32', shape, data }],
      low: mxfp4(name, [experts, n, k / 32], codes, exponents),
      weights,
    };
  });
}

/** Scales of FP8 blocks: of 24 significant bits; powers of two in F32 (UE8M0, as of V3.1); or BF16. */
export type Fp8Scales = 'f32' | 'powers' | 'bf16';

/** DeepSeek-V3: every linear of a block but the router in E4M3, with weight_scale_inv for 128 x 128 weights. */
export async function deepseek(root: string, form: Fp8Scales = 'f32'): Promise<Published> {
  const wide = path.join(root, `deepseek-${form}-wide`);
  await writeWidened('deepseek_v3', wide);
  const random = generator(11);
  const settings = { quant_method: 'fp8', fmt: 'e4m3', activation_scheme: 'dynamic', weight_block_size: [128, 128] };
  return twice(root, `deepseek-${form}`, wide, settings, (name, shape) => {
    if (!/proj(_with_mqa)?\.weight$/.test(name)) return undefined;
    const [n, k] = shape as [number, number];
    const [rows, columns] = [Math.ceil(n / 128), Math.ceil(k / 128)];
    const codes = Uint8Array.from({ length: n * k }, () => random(2) * 128 + random(0x50));
    const scales = Float32Array.from({ length: rows * columns }, () =>
      form === 'f32' ? 0.01 + random(100) / 1000 : form === 'powers' ? 2 ** -(3 + random(4)) : (1 + random(120)) / 1024,
    );
    const halves = Uint16Array.from(new Uint32Array(scales.buffer), (pattern) => pattern >>> 16);
    const data = Float32Array.from({ length: n * k }, (_, i) => {
      const [row, column] = [Math.floor(i / k), i % k];
      return e4m3(codes[i]!) * scales[(row >> 7) * columns + (column >> 7)]!;
    });
    const stored =
      form === 'bf16' ? ({ dtype: 'BF16', data: halves } as const) : ({ dtype: 'F32', data: scales } as const);
    return {
      plain: [{ name, dtype: 'F32', shape, data }],
      low: [
        { name, dtype: 'F8_E4M3', shape, data: codes },
        { name: `${name}_scale_inv`, shape: [rows, columns], ...stored },
      ],
      weights: [[name.slice(0, -'.weight'.length), data]],
    };
  });
}

/** Settings of Kimi K2 Thinking and K2.5, with `more` in those of the weights. */
export const int4Settings = (more: object = {}) => ({
  quant_method: 'compressed-tensors',
  format: 'pack-quantized',
  quantization_status: 'compressed',
  kv_cache_scheme: null,
  ignore: [
    'lm_head',
    're:.*self_attn.*',
    're:.*shared_experts.*',
    're:.*mlp\\.(gate|up|gate_up|down)_proj.*',
    're:vision_tower.*',
  ],
  config_groups: {
    group_0: {
      targets: ['Linear'],
      input_activations: null,
      output_activations: null,
      weights: {
        ...{ num_bits: 4, type: 'int', symmetric: true, strategy: 'group', group_size: 32, block_structure: null },
        ...{ actorder: null, dynamic: false, observer: 'minmax', observer_kwargs: {} },
        ...more,
      },
    },
  },
});

/** Kimi K2.5: experts in INT4 under language_model., the settings beside the text model's; scales in BF16. */
export function kimi(root: string): Promise<Published> {
  const random = generator(13);
  const settings = { text_config: { quantization_config: int4Settings() } };
  return twice(root, 'kimi_k25', path.join(ARCHITECTURES, 'kimi_k25'), settings, (name, shape) => {
    if (!/experts\.\d+\.\w+_proj\.weight$/.test(name)) return undefined;
    const [n, k] = shape as [number, number];
    const codes = Uint8Array.from({ length: n * k }, () => random(16));
    // 1 to 2 in steps of 2^-7, times 2^-5: eight significant bits.
    const scales = Float32Array.from({ length: (n * k) / 32 }, () => (128 + random(128)) / 2 ** 12);
    const data = Float32Array.from(codes, (code, i) => (code - 8) * scales[i >> 5]!);
    const words = new Int32Array((n * k) / 8);
    for (const [i, code] of codes.entries()) words[i >> 3] = words[i >> 3]! | (code << (4 * (i % 8)));
    const halves = Uint16Array.from(new Uint32Array(scales.buffer), (pattern) => pattern >>> 16);
    const module = name.slice(0, -'.weight'.length);
    return {
      plain: [{ name, dtype: 'F32', shape, data }],
      low: [
        { name: `${module}.weight_packed`, dtype: 'I32', shape: [n, k / 8], data: words },
        { name: `${module}.weight_scale`, dtype: 'BF16', shape: [n, k / 32], data: halves },
        { name: `${module}.weight_shape`, dtype: 'I32', shape: [2], data: Int32Array.of(n, k) },
      ],
      weights: [[module, data]],
    };
  });
}

/** Qwen3-VL-MoE: attention and the tensors of all experts, as they lie, in E4M3 with a scale for 32 x 32 weights. */
export function qwenVlFp8(root: string): Promise<Published> {
  const random = generator(17);
  const settings = { quant_method: 'fp8', fmt: 'e4m3', activation_scheme: 'dynamic', weight_block_size: [32, 32] };
  return twice(root, 'qwen3_vl_moe', path.join(ARCHITECTURES, 'qwen3_vl_moe'), settings, (name, shape) => {
    if (!/language_model.*(self_attn\.\w_proj\.weight|experts\.\w+_proj)$/.test(name)) return undefined;
    const [rows, columns] = shape.slice(-2) as [number, number];
    const [high, wide] = [Math.ceil(rows / 32), Math.ceil(columns / 32)];
    const all = shape.reduce((a, b) => a * b, 1);
    const codes = Uint8Array.from({ length: all }, () => random(2) * 128 + random(0x50));
    const scales = Float32Array.from({ length: (all / rows / columns) * high * wide }, () => 0.01 + random(100) / 1000);
    const data = Float32Array.from(codes, (code, i) => {
      const [matrix, row, column] = [Math.floor(i / rows / columns), Math.floor(i / columns) % rows, i % columns];
      return e4m3(code) * scales[(matrix * high + (row >> 5)) * wide + (column >> 5)]!;
    });
    return {
      plain: [{ name, dtype: 'F32', shape, data }],
      low: [
        { name, dtype: 'F8_E4M3', shape, data: codes },
        { name: `${name}_scale_inv`, dtype: 'F32', shape: [...shape.slice(0, -2), high, wide], data: scales },
      ],
      weights: [],
    };
  });
}

/** The same model, its experts in MXFP4: NAME_blocks and NAME_scales stand for NAME [E, K, N]. */
export function qwenVlMxfp4(root: string): Promise<Published> {
  const random = generator(19);
  const settings = { quant_method: 'mxfp4' };
  return twice(root, 'qwen3_vl_mxfp4', path.join(ARCHITECTURES, 'qwen3_vl_moe'), settings, (name, shape) => {
    if (!/experts\.\w+_proj$/.test(name)) return undefined;
    const [experts, k, n] = shape as [number, number, number];
    const codes = Uint8Array.from({ length: experts * n * k }, () => random(16));
    const exponents = Uint8Array.from({ length: codes.length / 32 }, () => 119 + random(4));
    const data = new Float32Array(codes.length);
    for (const [i, code] of codes.entries()) {
      const [expert, row, column] = [Math.floor(i / k / n), Math.floor(i / k) % n, i % k];
      data[(expert * k + column) * n + row] = E2M1[code]! * 2 ** (exponents[i >> 5]! - 127);
    }
    return {
      plain: [{ name, dtype: 'F32', shape, data }],
      low: mxfp4(name, [experts, n, k / 32], codes, exponents),
      weights: [],
    };
  });
}
