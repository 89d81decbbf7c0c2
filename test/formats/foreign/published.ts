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
  settings: object,
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
  const config = JSON.parse(readFileSync(path.join(dir, 'config.json'), 'utf8')) as object;
  return {
    plain: await writeModel(path.join(root, `${name}-plain`), { tensors: both.plain, config }),
    low: await writeModel(path.join(root, `${name}-low`), { tensors: both.low, config, settings }),
    weights,
  };
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
    const blocks = Uint8Array.from({ length: codes.length / 2 }, (_, i) => codes[2 * i]! | (codes[2 * i + 1]! << 4));
    return {
      plain: [{ name, dtype: 'F32', shape, data }],
      low: [
        { name: `${name}_blocks`, dtype: 'U8', shape: [experts, n, k / 32, 16], data: blocks },
        { name: `${name}_scales`, dtype: 'U8', shape: [experts, n, k / 32], data: exponents },
      ],
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
