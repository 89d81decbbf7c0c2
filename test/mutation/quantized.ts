import { existsSync } from 'node:fs';
import path from 'node:path';
import { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import { SourceCheckpoint } from '../../formats/canonical/source.js';
import { PARTS } from '../../formats/canonical/tensors.js';
import { CanonicalWriter, type ModuleData } from '../../formats/canonical/write.js';
import { OutputDirectory } from '../../formats/directory/output-directory.js';
import { readConfigText } from '../../formats/safetensors/checkpoint.js';
import type { NativeRuntime } from '../../native/binding.js';
import { openModel } from '../../src/model/graph.js';
import type { ActivationForm } from '../../src/model/source.js';
import { type QuantizeRequest, quantizeCheckpoint } from '../../src/quantize/run.js';
import { type SchemeOptions, schemeFromOptions } from '../../src/quantize/scheme.js';
import { rtnQuantizer } from '../../src/rtn/quantizer.js';
import { type ModelKind, writeModel } from './model.js';

interface Variant {
  readonly model: ModelKind;
  readonly scheme: SchemeOptions;
  /** First match decides; without options the linear stays as it is. */
  readonly rules?: readonly (readonly [RegExp, SchemeOptions | undefined])[];
  readonly lmHead?: boolean;
  readonly kv?: QuantizeRequest['kv'];
  readonly activations?: true;
  /** Largest magnitudes of inputs, keys and values, as if a text had been read. */
  readonly ranges?: true;
  /** Made of another variant: groups named by g_idx, or columns in another order. */
  readonly columns?: 'g_idx' | 'permutation';
}

/** One linear of each kind that a packer may get wrong: left plain, of other bits, of a type that many targets lack. */
const RULES: NonNullable<Variant['rules']> = [
  [/layers\.1\.self_attn\.k_proj/, undefined],
  [/layers\.1\.self_attn\.v_proj/, { bits: 5, groupSize: 128 }],
  [/layers\.1\.self_attn\.o_proj/, { bits: 8, groupSize: 64 }],
];
const PLAIN: NonNullable<Variant['rules']> = [[/layers\.1\.self_attn\.k_proj/, undefined]];

/** What is quantized, by name. */
export const VARIANTS = {
  mixed: {
    model: 'dense',
    scheme: { bits: 4, groupSize: 128 },
    rules: RULES,
    kv: {
      form: 'bitdecoding',
      keys: { bits: 4, granularity: 'channel', group: 64 },
      values: { bits: 4, group: 64 },
      residual: 64,
    },
  },
  alike: { model: 'dense', scheme: { bits: 4, groupSize: 128 }, rules: PLAIN },
  zeros: { model: 'dense', scheme: { bits: 4, groupSize: 64, asym: true }, rules: PLAIN },
  three: { model: 'dense', scheme: { bits: 3, groupSize: 64, asym: true }, rules: PLAIN },
  head: { model: 'dense', scheme: { bits: 4, groupSize: 128 }, lmHead: true },
  floats: {
    model: 'dense',
    scheme: { bits: 4, groupSize: 128 },
    rules: [...PLAIN, [/layers\.1\.self_attn\.q_proj/, { dtype: 'f6e3m2', groupSize: 32 }]],
  },
  channel: { model: 'odd', scheme: { bits: 4, groupSize: 'channel' }, rules: PLAIN },
  bytes: {
    model: 'dense',
    scheme: { dtype: 'i8', groupSize: 'channel' },
    rules: [...PLAIN, [/layers\.1\.self_attn\.v_proj/, { bits: 4, groupSize: 128 }]],
  },
  twoLevel: { model: 'dense', scheme: { bits: 4, groupSize: 128, groupScales: 'integer' }, rules: PLAIN },
  bytes128: { model: 'dense', scheme: { dtype: 'i8', groupSize: 128 }, rules: PLAIN },
  bytesAsym: { model: 'dense', scheme: { bits: 8, groupSize: 128, asym: true }, rules: PLAIN },
  fp8: { model: 'dense', scheme: { dtype: 'f8e4m3', groupSize: 'channel' }, rules: PLAIN },
  mxfp4: { model: 'dense', scheme: { dtype: 'mxfp4' }, rules: PLAIN },
  nvfp4: { model: 'dense', scheme: { dtype: 'nvfp4' }, rules: PLAIN },
  mxfp8: { model: 'dense', scheme: { dtype: 'mxfp8' }, rules: PLAIN },
  static8: { model: 'dense', scheme: { dtype: 'f8e4m3', groupSize: 'channel' }, rules: PLAIN, ranges: true },
  static4: { model: 'dense', scheme: { dtype: 'nvfp4' }, rules: PLAIN, ranges: true },
  cache: { model: 'dense', scheme: { bits: 4, groupSize: 128 }, rules: PLAIN, ranges: true },
  eights: {
    model: 'dense',
    scheme: { dtype: 'nvfp4' },
    rules: [
      ...PLAIN,
      [/self_attn/, { dtype: 'f8e4m3', groupSize: 'channel' }],
      [/layers\.0\.mlp\.down/, { dtype: 'mxfp8' }],
    ],
  },
  sparse: { model: 'dense', scheme: { bits: 4, groupSize: 128, sparsity: '2:4' }, rules: PLAIN },
  codes: {
    model: 'dense',
    scheme: { bits: 4, groupSize: 128 },
    rules: PLAIN,
    activations: true,
    kv: { bits: 4, group: 64 },
  },
  ordered: { model: 'dense', scheme: { bits: 4, groupSize: 64 }, rules: PLAIN, columns: 'g_idx' },
  gathered: { model: 'dense', scheme: { bits: 4, groupSize: 128 }, rules: PLAIN, columns: 'permutation' },
  fused: {
    model: 'dense',
    scheme: { bits: 4, groupSize: 128 },
    rules: [
      [/layers\.1\.self_attn\.[qkv]_proj/, { bits: 8, groupSize: 128 }],
      [/layers\.0\.mlp\.(gate|up)_proj/, undefined],
    ],
  },
  mixture: { model: 'mixture', scheme: { bits: 4, groupSize: 128 } },
} as const satisfies Readonly<Record<string, Variant>>;

export type VariantName = keyof typeof VARIANTS;

/** Quantized checkpoints of the tiny models, made when they are asked for. */
export class Shelf {
  constructor(
    readonly dir: string,
    private readonly runtime: NativeRuntime,
  ) {}

  /** The directory of a variant. */
  async quantized(name: VariantName): Promise<string> {
    const output = path.join(this.dir, 'quantized', name);
    if (existsSync(output)) return output;
    const variant: Variant = VARIANTS[name];
    const source = path.join(this.dir, variant.model);
    if (!existsSync(source)) writeModel(source, variant.model);
    const plain = variant.columns ? `${output}-plain` : output;
    const scheme = schemeFromOptions(variant.scheme);
    await quantizeCheckpoint([this.runtime], {
      source,
      output: plain,
      scheme,
      rules: (variant.rules ?? []).map(([match, own]) => ({ match, scheme: own ? schemeFromOptions(own) : 'skip' })),
      quantizer: rtnQuantizer(),
      calibration: undefined,
      lmHead: variant.lmHead ?? false,
      options: { ...variant.scheme, ...(variant.ranges && { inputScales: true, kvScales: true }) },
      version: '0.1.0',
      ...(variant.kv && { kv: variant.kv }),
      ...(variant.activations && { activations: activationsOf(source) }),
      ...(variant.ranges && { ranges: rangesOf(source) }),
    });
    if (variant.columns) await reordered(plain, output, variant.columns);
    return output;
  }
}

/** W4Ax of every linear: blocks of 4 and of 8 bits, some clipped. */
function activationsOf(dir: string): Map<string, ActivationForm> {
  const source = SourceCheckpoint.open(dir);
  const feeds = openModel(source).blocks.flatMap(({ stages }) => stages.flatMap((stage) => stage.feeds));
  source.close();
  return new Map(
    feeds.flatMap(({ linears }) =>
      linears.map(({ name, k }) => {
        const bits = Uint8Array.from({ length: k / 128 }, (_, b) => ((b + name.length) % 2 ? 4 : 8));
        return [name, { blocks: { bits, clip: Float32Array.from(bits, (_, b) => 1 - b / 16) } }] as const;
      }),
    ),
  );
}

/** A number above 0 for each linear and each attention. */
function rangesOf(dir: string): NonNullable<QuantizeRequest['ranges']> {
  const source = SourceCheckpoint.open(dir);
  const feeds = openModel(source).blocks.flatMap(({ stages }) => stages.flatMap((stage) => stage.feeds));
  source.close();
  const inputs = new Map(feeds.flatMap(({ linears }, i) => linears.map(({ name }) => [name, 1.3 + i] as const)));
  const paths = [...inputs.keys()].filter((name) => /self_attn\.o_proj$/.test(name)).map((name) => name.slice(0, -7));
  return { inputs, cache: Object.fromEntries(paths.map((at, i) => [at, { keys: 2.7 + i, values: 1.1 + i }])) };
}

/** The checkpoint once more with the same codes for columns elsewhere: packing moves them and asks no sense of them. */
async function reordered(from: string, to: string, how: 'g_idx' | 'permutation'): Promise<void> {
  const input = CanonicalCheckpoint.open(from);
  const output = await OutputDirectory.create(to);
  await output.carryFrom(from, { except: ['lpq.json', 'config.json'] });
  const config = readConfigText(from, input.config);
  const carried = Object.keys(input.manifest.carried).map((name) => {
    const { dtype, shape } = input.weights.spec(name);
    return { name, dtype, shape };
  });
  const modules = new Map(
    input.moduleNames().map((name) => {
      const { sha256: _hashes, quality: _quality, ...declaration } = input.module(name);
      return [name, { ...declaration, groupIndex: how === 'g_idx', permutation: how === 'permutation' }] as const;
    }),
  );
  const writer = await CanonicalWriter.create(output, { modules, carried, config });
  for (const { name } of carried) await writer.writeCarried(name, input.weights.tensor(name));
  for (const [name, module] of modules) {
    const data: ModuleData = {};
    for (const part of PARTS) {
      const tensor = input.part(name, part);
      if (tensor) data[part] = tensor;
    }
    const [, k] = module.shape;
    const groups = k / module.scales.block[1];
    if (how === 'g_idx') data.g_idx = Int32Array.from({ length: k }, (_, i) => (i * 5 + 1) % groups);
    else data.permutation = Int32Array.from({ length: k }, (_, i) => (i * 7 + 3) % k);
    await writer.writeModule(name, data);
  }
  await writer.finish(input.manifest.provenance);
  await output.commit();
  input.close();
}
