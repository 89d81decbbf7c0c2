import path from 'node:path';
import { setImmediate } from 'node:timers/promises';
import { type ArtifactManifest, artifactSchema, type PackedModule } from '../../../formats/artifact/schema.js';
import { sealManifest } from '../../../formats/artifact/seal.js';
import { hashFile } from '../../../formats/artifact/write.js';
import { compareNatural } from '../../../formats/canonical/order.js';
import type { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { openSource } from '../../../formats/canonical/source.js';
import { writeCard } from '../../../formats/card/write.js';
import { OutputDirectory } from '../../../formats/directory/output-directory.js';
import { withSettings } from '../../../formats/foreign/settings.js';
import { scalarNames } from '../../../formats/gguf/scalars.js';
import { ggufTokenizer } from '../../../formats/gguf/tokenizer.js';
import { GgufWriter } from '../../../formats/gguf/write.js';
import { readConfigText } from '../../../formats/safetensors/checkpoint.js';
import { fromNativeDtype } from '../../../formats/safetensors/dtypes.js';
import { hashTensor } from '../../../formats/safetensors/hash.js';
import type { NativeRuntime, Tensor } from '../../../native/binding.js';
import { LpqError } from '../../core/error.js';
import { carriedOf } from '../../model/gguf/carried.js';
import type { WeightSource } from '../../model/source.js';
import { packedCard } from '../card.js';
import { declaration } from '../declaration.js';
import type { PackedRow, PackReport, PackRequest } from '../pack-checkpoint.js';
import type { PackPlan } from '../plan.js';
import type { Decision } from '../target.js';
import { plainWeight, stopIfAborted } from '../write-modules.js';
import { carriedBytes, planCarried } from './carried.js';
import { columnsOf, type GgufContext, halvesOf, orderOf } from './context.js';
import { encodeCodes, encodeFours, moduleWeight, searchBlocks, takeColumns, takeRows } from './encode.js';
import { fileMetadata, tensorPlans } from './header.js';
import { openWeighting, type Weighting } from './importance.js';
import { scalarEntries } from './scalars.js';

export const GGUF_FILE = 'model.gguf';

/**
 * One directory: model.gguf, lpq.json, and every file of the model that is no weight. Throws as packCheckpoint does, and
 * LPQ_CONFIG or LPQ_TARGET for a tokenizer or a --source that does not suit.
 */
export async function writeGguf(request: PackRequest, plan: PackPlan, context: GgufContext): Promise<PackReport> {
  const { input, runtime: rt, signal } = request;
  const start = performance.now();
  const split = carriedOf(
    input,
    plan.carried.map(({ name }) => name),
  );
  const { plans: carried, left } = planCarried(split.specs, context);
  const tokenizer = ggufTokenizer(input.dir, input.config, context.model.plan.vocab);
  const notes = [...plan.notes, ...context.model.notes, ...tokenizer.notes];
  if (left.length > 0)
    notes.push(
      `llama.cpp has no place for ${left.length} tensors, so lpq left them out: ${left.slice(0, 5).join(', ')}`,
    );
  const weighting =
    request.importance === undefined || !context.search ? undefined : await openWeighting(request.importance);
  const source = request.source === undefined || !context.search ? undefined : openSource(request.source, rt);
  const output = await OutputDirectory.create(request.output).catch((error: unknown) => {
    source?.close();
    throw error;
  });
  request.onOutput?.(output);
  let writer: GgufWriter | undefined;
  try {
    const { skipped } = await output.carryFrom(input.dir, {
      except: ['lpq.json', 'config.json', 'quantize_config.json', 'quant_config.json', 'hf_quant_config.json'],
    });
    const config = readConfigText(input.dir, input.config);
    const place = path.join(input.dir, 'config.json');
    await output.writeFile('config.json', withSettings(config, undefined, place));
    const tensors = tensorPlans(plan, context, carried);
    for (const name of scalarNames(context.model.names, context.model.plan.blocks.length))
      input.requireCarried(name, await carriedHash(input, name));
    const scalars = await scalarEntries(split, context.model);
    const sourced = source !== undefined;
    const metadata = fileMetadata(input, context, tokenizer.metadata, tensors, scalars, sourced, weighting);
    writer = await GgufWriter.create(path.join(output.path, GGUF_FILE), metadata, tensors);
    const modules: ArtifactManifest['modules'] = {};
    const rows: PackedRow[] = [];
    for (const [name, decision] of plan.decisions) {
      stopIfAborted(signal);
      const began = performance.now();
      await input.requireHashes(name);
      const { bytes, entry } = await writeModule(rt, input, name, decision, plan, context, writer, {
        source,
        weighting,
      });
      modules[name] = entry;
      const { type, shape, layout, padded, notes: own } = entry;
      const seconds = (performance.now() - began) / 1000;
      rows.push({ name, type, action: decision.action, layout, shape, padded, notes: own, bytes, seconds });
      request.onModule?.(rows.at(-1)!, rows.length, plan.decisions.size);
      await setImmediate();
    }
    const hashes: Record<string, string> = {};
    for (const each of carried) {
      stopIfAborted(signal);
      for (const name of new Set(each.sources.map((source) => split.stored(source.name))))
        input.requireCarried(name, await carriedHash(input, name));
      const tensor = await carriedBytes(rt, split, each, context);
      const [, stack = each.name, slice = '0'] = /^(.*)\[(\d+)\]$/.exec(each.name) ?? [];
      hashes[each.name] = await writer.write(stack, tensor, Number(slice));
      tensor.dispose();
    }
    for (const [name, factors] of context.model.ropeTensors) hashes[name] = await writer.write(name, factors);
    await writer.finish();
    const manifest = await writeManifest(output, plan, modules, hashes, request);
    await request.onComplete?.(output.path);
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
  const hash = await hashTensor(input.weights.spec(name), tensor);
  tensor.dispose();
  return hash;
}

function hashWeight(name: string, weight: Tensor): Promise<string> {
  return hashTensor({ name: `${name}.weight`, dtype: fromNativeDtype(weight.dtype), shape: weight.shape }, weight);
}

async function writeModule(
  rt: NativeRuntime,
  input: CanonicalCheckpoint,
  name: string,
  decision: Decision,
  plan: PackPlan,
  context: GgufContext,
  writer: GgufWriter,
  { source, weighting }: { source: WeightSource | undefined; weighting: Weighting | undefined },
): Promise<{ bytes: number; entry: PackedModule }> {
  const module = input.module(name);
  const place = context.place(name);
  const order = orderOf(context, place, module.shape[0]);
  const chunks = columnsOf(context, place);
  const form = context.form(name);
  const { notes, canonical, ...entry } = declaration(input, name, decision, plan.target);
  const found: string[] = [];
  let tensor: Tensor;
  let weight: string | undefined;
  if (decision.action === 'fallback') {
    const plain = await plainWeight(rt, input, name);
    weight = await hashWeight(name, plain);
    tensor = takeColumns(await takeRows(rt, plain, order), chunks);
    plain.dispose();
  } else if ('reason' in form) throw new LpqError('LPQ_INTERNAL', `module '${name}' has no form: ${form.reason}`);
  else if (form.kind === 'fours') tensor = takeColumns(encodeFours({ checkpoint: input, name, module }, order), chunks);
  else if (form.kind === 'codes') {
    tensor = takeColumns(await encodeCodes({ rt, checkpoint: input, name, module }, form, order), chunks);
  } else {
    const wide = takeColumns(await moduleWeight(rt, input, name, source, place.fix === 'turned'), chunks);
    const weights = weighting?.of(place, name, module.shape[1]);
    const columns = weights && takeColumns(weights, chunks);
    const { blocks, mean, error, norm } = await searchBlocks(rt, name, wide, form.type, order, columns);
    weight = await hashWeight(name, takeColumns(mean, chunks, true));
    for (const each of [wide, mean, columns]) each?.dispose();
    tensor = blocks;
    const from = source ? 'the source' : 'the quantized weights';
    const share = norm > 0 ? error / norm : 0;
    found.push(`Searched from ${from}: relative squared error ${share.toPrecision(3)}.`);
  }
  const bytes = tensor.byteLength;
  const tensors: Record<string, string> = {};
  for (const [i, { name: half, rows }] of halvesOf(place, module.shape[0]).entries()) {
    const width = tensor.shape[1] as number;
    const part = tensor.view([rows, width], i * rows * width);
    tensors[half] = await writer.write(place.second === undefined ? place.name : half, part, place.expert ?? 0);
    part.dispose();
  }
  tensor.dispose();
  return {
    bytes,
    entry: {
      ...entry,
      notes: [...notes, ...found],
      tensors,
      canonical: { ...canonical, ...(weight !== undefined && { weight }) },
    },
  };
}

async function writeManifest(
  output: OutputDirectory,
  plan: PackPlan,
  modules: ArtifactManifest['modules'],
  carried: Record<string, string>,
  request: PackRequest,
): Promise<ArtifactManifest> {
  const { provenance } = request.input.manifest;
  const tensors = Object.fromEntries(Object.values(modules).flatMap((module) => Object.entries(module.tensors)));
  await writeCard(output, {
    ...{ form: plan.target.name, modules, provenance, facts: packedCard(request, plan) },
    tensors: { ...carried, ...tensors },
  });
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
      provenance,
    }),
  );
  await output.writeFile('lpq.json', sealed.text);
  return sealed.manifest;
}
