// Test-only artifacts, which lpq's packer has no part in.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { PackedModule } from '../../../formats/artifact/schema.js';
import { ArtifactWriter, type PackedDeclaration } from '../../../formats/artifact/write.js';
import type { CanonicalModule, Provenance } from '../../../formats/canonical/schema.js';
import { type ModuleDeclaration, moduleTensors } from '../../../formats/canonical/tensors.js';
import { CanonicalWriter } from '../../../formats/canonical/write.js';
import { OutputDirectory } from '../../../formats/directory/output-directory.js';
import type { KvScheme } from '../../../formats/kv/scheme.js';
import type { TensorSpec } from '../../../formats/safetensors/header.js';
import { groupSizeOf } from '../../../src/core/granularity.js';
import { quantType } from '../../../src/core/quant-type.js';
import { tensorHash } from '../../formats/safetensors/tensor-hash.js';
import { packModule, type TensorOut } from './layouts.js';
import { canonicalData, drawNumbers, type ModuleSpec, type Numbers } from './numbers.js';

export interface Built {
  readonly quantized: string;
  readonly artifact: string;
  readonly numbers: Map<string, Numbers>;
  readonly bias: Uint16Array;
  remove(): void;
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
    card: { serve: [], relativeError: null },
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
