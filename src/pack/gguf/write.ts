import path from 'node:path';
import { setImmediate } from 'node:timers/promises';
import { type ArtifactManifest, artifactSchema, type PackedModule } from '../../../formats/artifact/schema.js';
import { sealManifest } from '../../../formats/artifact/seal.js';
import { hashFile } from '../../../formats/artifact/write.js';
import { dequantizeModule } from '../../../formats/canonical/dequantize.js';
import { compareNatural } from '../../../formats/canonical/order.js';
import type { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { openSource } from '../../../formats/canonical/source.js';
import { OutputDirectory } from '../../../formats/directory/output-directory.js';
import { bool, type GgufMetadata, text, u32 } from '../../../formats/gguf/metadata.js';
import { ggufOrder } from '../../../formats/gguf/names.js';
import { ggufTokenizer } from '../../../formats/gguf/tokenizer.js';
import { type GgufTypeName, ggufType } from '../../../formats/gguf/types.js';
import { type GgufTensorPlan, GgufWriter } from '../../../formats/gguf/write.js';
import { sha256 } from '../../../formats/safetensors/hash.js';
import { allocate, type NativeRuntime, type Tensor } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { LpqError } from '../../core/error.js';
import type { WeightSource } from '../../model/source.js';
import type { PackedRow, PackReport, PackRequest } from '../pack-checkpoint.js';
import { type PackPlan, plainDtype } from '../plan.js';
import { carriedBytes, planCarried } from './carried.js';
import { encodeCodes, searchBlocks, takeRows } from './encode.js';
import { type GgufContext, orderOf, tensorName } from './target.js';

export const GGUF_FILE = 'model.gguf';

/** A weight F32 [N, K] as it was before quantizing, where `source` has it, or as it was quantized. Throws LPQ_TENSOR_SHAPE. */
export async function moduleWeight(
  rt: NativeRuntime,
  checkpoint: CanonicalCheckpoint,
  name: string,
  source: WeightSource | undefined,
): Promise<Tensor> {
  if (!source) return dequantizeModule(rt, checkpoint, name);
  const { shape } = checkpoint.module(name);
  const stored = await source.tensor(`${name}.weight`);
  if (`${stored.shape}` !== `${shape}`)
    throw new LpqError('LPQ_TENSOR_SHAPE', `'${name}.weight' of ${source.dir} is not the one that was quantized`, {
      got: `[${stored.shape}]`,
      expected: `[${shape}]`,
      hint: 'Give the checkpoint that was quantized as --source.',
    });
  const wide = allocate('f32', shape);
  ops.cast(rt, stored, wide);
  await rt.sync();
  stored.dispose();
  return wide;
}

/**
 * One directory: model.gguf, lpq.json, and every file of the model that is no weight. Throws as packCheckpoint does, and
 * LPQ_CONFIG or LPQ_TARGET for a tokenizer or a --source that does not suit.
 */
export async function writeGguf(request: PackRequest, plan: PackPlan, context: GgufContext): Promise<PackReport> {
  const { input, runtime: rt, signal } = request;
  const start = performance.now();
  const { plans: carried, left } = planCarried(plan.carried, context);
  const tokenizer = ggufTokenizer(input.dir, input.config, context.model.vocab);
  const notes = [...plan.notes, ...context.model.notes, ...tokenizer.notes];
  if (left.length > 0)
    notes.push(
      `llama.cpp has no place for ${left.length} tensors, which were left out: ${left.slice(0, 5).join(', ')}`,
    );
  const source = request.source === undefined || !context.search ? undefined : openSource(request.source, rt);
  const output = await OutputDirectory.create(request.output).catch((error: unknown) => {
    source?.close();
    throw error;
  });
  request.onOutput?.(output);
  let writer: GgufWriter | undefined;
  try {
    const { skipped } = await output.carryFrom(input.dir, {
      except: ['lpq.json', 'config.json', 'quantize_config.json'],
    });
    const { quantization_config: _, ...config } = input.config;
    await output.writeJson('config.json', config);
    const tensors = tensorPlans(plan, context, carried);
    const metadata = fileMetadata(input, plan, context, tokenizer.metadata, tensors);
    writer = await GgufWriter.create(path.join(output.path, GGUF_FILE), metadata, tensors);
    const modules: ArtifactManifest['modules'] = {};
    const rows: PackedRow[] = [];
    for (const [name, decision] of plan.decisions) {
      if (signal?.aborted) throw new LpqError('LPQ_ABORTED', 'packing was interrupted; nothing was left behind');
      const began = performance.now();
      await input.requireHashes(name);
      const { bytes, entry } = await writeModule(rt, input, name, decision, context, writer, source);
      modules[name] = entry;
      const { type, shape, layout, padded, notes: own } = entry;
      const seconds = (performance.now() - began) / 1000;
      rows.push({ name, type, action: decision.action, layout, shape, padded, notes: own, bytes, seconds });
      request.onModule?.(rows.at(-1)!, rows.length, plan.decisions.size);
      await setImmediate();
    }
    const hashes: Record<string, string> = {};
    for (const each of carried) {
      if (signal?.aborted) throw new LpqError('LPQ_ABORTED', 'packing was interrupted; nothing was left behind');
      input.requireCarried(each.source.name, await carriedHash(input, each.source.name));
      const tensor = await carriedBytes(rt, input.weights, each, context);
      const [, stack = each.name, slice = '0'] = /^(.*)\[(\d+)\]$/.exec(each.name) ?? [];
      hashes[each.name] = await writer.write(stack, tensor, Number(slice));
      tensor.dispose();
    }
    const { ropeFactors } = context.model;
    if (ropeFactors) hashes['rope_freqs.weight'] = await writer.write('rope_freqs.weight', ropeFactors);
    await writer.finish();
    const manifest = await writeManifest(output, plan, modules, hashes, input);
    await output.commit();
    return {
      target: plan.target.name,
      requested: plan.requested,
      notes,
      modules: rows,
      carriedTensors: carried.length,
      skippedFiles: skipped.filter(({ reason }) => reason !== 'weights'),
      bytes: rows.reduce((sum, row) => sum + row.bytes, 0),
      seconds: (performance.now() - start) / 1000,
      manifest,
    };
  } catch (error) {
    await rt.sync().catch(() => {});
    await writer?.abort();
    await output.abort();
    throw error;
  } finally {
    source?.close();
  }
}

async function carriedHash(input: CanonicalCheckpoint, name: string): Promise<string> {
  const tensor = input.weights.tensor(name);
  const hash = await sha256(tensor);
  tensor.dispose();
  return hash;
}

async function writeModule(
  rt: NativeRuntime,
  input: CanonicalCheckpoint,
  name: string,
  decision: PackPlan['decisions'] extends ReadonlyMap<string, infer D> ? D : never,
  context: GgufContext,
  writer: GgufWriter,
  source: WeightSource | undefined,
): Promise<{ bytes: number; entry: PackedModule }> {
  const module = input.module(name);
  const place = context.place(name);
  const order = orderOf(context, place, module.shape[0]);
  const form = context.form(name);
  const notes: string[] = [];
  let tensor: Tensor;
  let weight: string | undefined;
  if (decision.action === 'fallback') {
    notes.push(`Left as a plain weight, because ${decision.reason}. ${decision.remedy}`);
    const wide = await dequantizeModule(rt, input, name);
    const plain = allocate(plainDtype(module.sourceDtype).toLowerCase() as 'f32', module.shape);
    ops.cast(rt, wide, plain);
    await rt.sync();
    weight = await sha256(plain);
    tensor = await takeRows(rt, plain, order);
    for (const each of [wide, plain]) each.dispose();
  } else if ('reason' in form) throw new LpqError('LPQ_INTERNAL', `module '${name}' has no form: ${form.reason}`);
  else if (form.kind === 'codes') {
    notes.push(...decision.notes);
    tensor = await encodeCodes({ rt, checkpoint: input, name, module }, form, order);
  } else {
    const wide = await moduleWeight(rt, input, name, source);
    const { blocks, mean, error, norm } = await searchBlocks(rt, name, wide, form.type, order);
    weight = await sha256(mean);
    for (const each of [wide, mean]) each.dispose();
    tensor = blocks;
    const from = source ? 'the source' : 'the quantized weights';
    const share = norm > 0 ? error / norm : 0;
    notes.push(...decision.notes, `Searched from ${from}: relative squared error ${share.toPrecision(3)}.`);
  }
  const hash = await writer.write(place.name, tensor, place.expert ?? 0);
  const bytes = tensor.byteLength;
  tensor.dispose();
  const { codes, scales, zeros, global_scale, g_idx, permutation, mask } = module.sha256;
  return {
    bytes,
    entry: {
      type: module.type,
      shape: module.shape,
      padded: module.shape,
      granularity: module.granularity,
      scales: module.scales,
      zeros: module.zeros,
      layout: decision.action === 'fallback' ? 'dense' : decision.layout,
      notes,
      tensors: { [tensorName(place)]: hash },
      canonical: {
        codes: codes!,
        scales: scales!,
        ...(zeros && { zeros }),
        ...(global_scale && { global_scale }),
        ...(g_idx && { g_idx }),
        ...(permutation && { permutation }),
        ...(mask && { mask }),
        ...(weight !== undefined && { weight }),
      },
    },
  };
}

/** Every tensor of the file, in its order; experts stacked. */
function tensorPlans(
  plan: PackPlan,
  context: GgufContext,
  carried: ReturnType<typeof planCarried>['plans'],
): GgufTensorPlan[] {
  const plans = new Map<string, { type: GgufTypeName; shape: readonly number[]; slices: number }>();
  const add = (full: string, type: GgufTypeName, shape: readonly number[]): void => {
    const stack = /^(.*)\[\d+\]$/.exec(full)?.[1];
    const known = plans.get(stack ?? full);
    if (known && (known.type !== type || `${known.shape}` !== `${shape}`))
      throw new LpqError('LPQ_PACK', `the experts of ${stack} differ in type or shape`, {
        got: `${known.type} [${known.shape}] and ${type} [${shape}]`,
        hint: 'Quantize all experts of a block, or none.',
      });
    plans.set(stack ?? full, { type, shape, slices: stack === undefined ? 0 : (known?.slices ?? 0) + 1 });
  };
  for (const [name, decision] of plan.decisions) {
    const { shape, sourceDtype } = plan.checkpoint.module(name);
    const type = decision.action === 'fallback' ? plainDtype(sourceDtype).toLowerCase() : decision.layout.slice(5);
    add(tensorName(context.place(name)), type as GgufTypeName, shape);
  }
  for (const { name, type, shape } of carried) add(name, type, shape);
  if (context.model.ropeFactors) add('rope_freqs.weight', 'f32', [context.model.ropeFactors.length]);
  return [...plans]
    .sort(([a], [b]) => ggufOrder(a) - ggufOrder(b) || compareNatural(a, b))
    .map(([name, { type, shape, slices }]) => {
      if (slices > 0 && slices !== context.model.experts)
        throw new LpqError('LPQ_TENSOR_MISSING', `${name} has ${slices} experts`, { expected: context.model.experts });
      return { name, type, shape: slices > 0 ? [slices, ...shape] : shape };
    });
}

function fileMetadata(
  input: CanonicalCheckpoint,
  plan: PackPlan,
  context: GgufContext,
  tokenizer: GgufMetadata,
  tensors: readonly GgufTensorPlan[],
): GgufMetadata {
  const counts = new Map<GgufTypeName, number>();
  for (const { name, type, shape } of tensors)
    if (name.startsWith('blk.') && shape.length > 1)
      counts.set(type, (counts.get(type) ?? 0) + shape.reduce((a, b) => a * b, 1));
  const [main = 'f32'] = [...counts].sort((a, b) => b[1] - a[1]).map(([type]) => type);
  const { provenance } = input.manifest;
  const [architecture, ...rest] = context.model.metadata;
  return new Map([
    architecture!,
    ['general.type', text('model')],
    ['general.name', text(provenance.source.name)],
    ['general.quantized_by', text(`lpq ${provenance.lpq}`)],
    ['general.file_type', u32(ggufType(main).fileType)],
    ['general.quantization_version', u32(2)],
    ...(plan.decisions.size > 0 ? ([['lpq.from_codes', bool(context.search === undefined)]] as const) : []),
    ...rest,
    ...tokenizer,
  ]);
}

async function writeManifest(
  output: OutputDirectory,
  plan: PackPlan,
  modules: ArtifactManifest['modules'],
  carried: Record<string, string>,
  input: CanonicalCheckpoint,
): Promise<ArtifactManifest> {
  const natural = <T>(record: Readonly<Record<string, T>>) =>
    Object.fromEntries(Object.entries(record).sort(([a], [b]) => compareNatural(a, b)));
  const files: Record<string, string> = {};
  for (const file of await output.files())
    if (file !== 'lpq.json') files[file] = await hashFile(path.join(output.path, file));
  const sealed = sealManifest(
    artifactSchema.parse({
      format: 'lpq-artifact',
      version: 1,
      target: plan.target.name,
      modules: natural(modules),
      carried: natural(carried),
      files,
      provenance: input.manifest.provenance,
    }),
  );
  await output.writeFile('lpq.json', sealed.text);
  return sealed.manifest;
}
