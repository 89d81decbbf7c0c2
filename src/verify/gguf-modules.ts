import type { ArtifactManifest, PackedModule } from '../../formats/artifact/schema.js';
import { scalarNames } from '../../formats/gguf/scalars.js';
import { hashTensor } from '../../formats/safetensors/hash.js';
import { allocate, type Tensor } from '../../native/binding.js';
import { isQuantType } from '../core/quant-type.js';
import type { Carried } from '../model/gguf/carried.js';
import { compareEntries, compareModule } from './against.js';
import { canonicalFacts, disposeDecoded } from './decode.js';
import { decodeBlocks, decodeValues } from './decode-gguf.js';
import { GGUF_FILE, type GgufContext, type GgufExpectation } from './gguf-context.js';
import type { BlocksFrom } from './gguf-metadata.js';
import { checkpointNames, placeOf, wholeOf } from './gguf-tables.js';
import { checkZeros, compareSearched, compareStored } from './gguf-values.js';
import { checkCanonical, checkHash, recordProblems } from './module-parts.js';
import type { ModuleReport } from './report.js';

/** The bytes of a tensor against its hash; false when it is not there. */
async function checkThere(
  { recorder, file }: GgufContext,
  check: 'tensors' | 'carried',
  tensor: string,
  hash: string,
): Promise<boolean> {
  if (file.has(tensor)) await checkHash(recorder, file, { check, tensor }, hash);
  else recorder.check(false, { check, tensor, message: `tensor '${tensor}' is not in ${GGUF_FILE}` });
  return file.has(tensor);
}

async function allThere(context: GgufContext, parts: readonly (readonly [tensor: string, hash: string])[]) {
  let there = true;
  for (const [tensor, hash] of parts) there = (await checkThere(context, 'tensors', tensor, hash)) && there;
  return there;
}

/** Carried tensors against their hashes and, with a checkpoint, against what they were made of. */
export async function checkCarried(context: GgufContext, manifest: ArtifactManifest): Promise<void> {
  const { recorder, model, canonical, carried } = context;
  const found = new Set(scalarNames(model.names, model.plan.blocks.length));
  for (const [tensor, hash] of Object.entries(manifest.carried)) {
    if (!(await checkThere(context, 'carried', tensor, hash)) || /^rope_/.test(tensor)) continue;
    const names = checkpointNames(model, tensor, context.file.matrix(tensor).rows);
    const again = names.length === 1 && found.has(names[0] as string);
    for (const name of names) found.add(name);
    if (canonical && carried && !again)
      await compareCarried(context, { dir: canonical.dir, carried }, wholeOf(model, tensor), names);
  }
  if (!carried) {
    recorder.unproved.push('carried tensors and the model’s other files are proved only by hashes in lpq.json');
    return;
  }
  const left = carried.specs.map(({ name }) => name).filter((name) => !found.has(name));
  if (left.length > 0)
    recorder.unproved.push(`${left.length} tensors have no place in GGUF: ${left.slice(0, 5).join(', ')}`);
}

async function compareCarried(
  context: GgufContext,
  { dir, carried }: { readonly dir: string; readonly carried: Carried },
  tensor: string,
  names: readonly string[],
): Promise<void> {
  const [name = ''] = names;
  if (context.model.unread.some((each) => each.tensor === tensor) && !carried.has(name)) {
    checkZeros(context, tensor, 0);
    return;
  }
  if (names.length === 0 || !names.every((each) => carried.has(each))) {
    const message = `tensor '${tensor}' is not in ${dir}`;
    context.recorder.check(false, { check: 'against', tensor, message });
    return;
  }
  const parts: Tensor[] = [];
  for (const each of names) parts.push(await carried.tensor(each));
  await compareStored(context, tensor, name, stackedRows(parts), dir);
}

/** One tensor as it is; several vectors as rows of one. Disposes of the parts. */
function stackedRows(parts: readonly Tensor[]): Tensor {
  const [first] = parts as [Tensor];
  if (parts.length === 1) return first;
  const out = allocate(first.dtype, [parts.length, ...first.shape]);
  const bytes = out.bytes();
  for (const [row, part] of parts.entries()) {
    bytes.set(part.bytes(), row * part.byteLength);
    part.dispose();
  }
  return out;
}

/** One module, from its tensor to what its blocks hold. */
export async function verifyGgufModule(
  context: GgufExpectation,
  name: string,
  module: PackedModule,
): Promise<ModuleReport> {
  const { recorder, file } = context;
  const started = performance.now();
  const before = recorder.failures.length;
  const parts = Object.entries(module.tensors);
  const tensor = parts.map(([part]) => part).join('+');
  const count = placeOf(context.model, tensor)?.half ? 2 : 1;
  const problem =
    parts.length === count
      ? layoutProblem(module, context.from)
      : `it does not have exactly ${count === 1 ? 'one tensor' : 'two tensors'}`;
  if (problem) recorder.check(false, { check: 'tensors', module: name, message: `module '${name}': ${problem}` });
  else if (await allThere(context, parts)) {
    const { type, rows, columns } = file.matrix(tensor);
    const wanted = module.layout === 'dense' ? ['f32', 'f16', 'bf16'] : [module.layout.slice('gguf-'.length)];
    const [got, expected] = [`${type.name} [${rows},${columns}]`, `${wanted.join(' or ')} [${module.shape}]`];
    const facts = { check: 'tensors', module: name, tensor, got, expected } as const;
    const same = wanted.includes(type.name) && `${[rows, columns]}` === `${module.shape}`;
    const fits = recorder.check(same, { ...facts, message: `'${tensor}' has another type or shape` });
    if (fits) await (module.canonical.weight === undefined ? proveCodes : proveWeight)(context, name, tensor, module);
  }
  const { layout, type, shape } = module;
  const seconds = (performance.now() - started) / 1000;
  return { name, layout, type, shape, ok: recorder.failures.length === before, seconds };
}

/** Blocks from the codes are proved by the codes, all else by the weight that it means. */
function layoutProblem({ type, layout, canonical, shape, padded }: PackedModule, from: BlocksFrom): string | undefined {
  if (!isQuantType(type)) return `'${type}' is not a quantized type`;
  if (layout !== 'dense' && !/^gguf-(mxfp4|q(4_0|4_1|5_0|5_1|8_0|[2-6]_k))$/.test(layout))
    return `'${layout}' is not a layout of GGUF`;
  if (`${padded}` !== `${shape}`) return `a padded shape of [${padded}] does not suit [${shape}]`;
  const codes = from === 'codes' && layout !== 'dense';
  if (codes !== (canonical.weight === undefined))
    return codes ? 'its blocks are the codes, not searched ones' : 'there is no hash of the weight';
  if (codes && !/^gguf-(mxfp4|q[458]_[01])$/.test(layout)) return `layout ${layout} does not hold the codes`;
  if (codes && (canonical.g_idx ?? canonical.permutation ?? canonical.mask) !== undefined)
    return `layout ${layout} has no order of columns and no mask`;
  return undefined;
}

/** The blocks are the canonical codes, scales and zero points. */
async function proveCodes(context: GgufContext, name: string, tensor: string, module: PackedModule): Promise<void> {
  const { rt, recorder, file, model, canonical } = context;
  const decoded = await decodeBlocks(rt, file, tensor, module, model);
  try {
    recordProblems(recorder, name, decoded.problems);
    await checkCanonical(recorder, name, module, decoded.parts, canonical !== undefined);
    if (canonical) await compareModule(rt, recorder, canonical, name, module, decoded, 'gguf');
  } finally {
    disposeDecoded(decoded);
  }
}

/** The blocks (or plain values) mean the weight that the packer took them for; with a checkpoint, one near its own. */
async function proveWeight(
  context: GgufExpectation,
  name: string,
  tensor: string,
  module: PackedModule,
): Promise<void> {
  const { rt, recorder, file, model, canonical } = context;
  const { tensor: weight, wrong } = await decodeValues(rt, file, tensor, model);
  try {
    const place = { row: wrong?.row ?? 0, column: wrong?.column ?? 0 };
    const broken = `'${tensor}' holds values that are NaN or infinite`;
    recorder.check(wrong === undefined, { check: 'padding', module: name, tensor, ...place, message: broken });
    const got = await hashTensor(canonicalFacts(name, 'weight', weight), weight);
    const expected = module.canonical.weight as string;
    const message = `module '${name}': its blocks do not decode to the packed weight`;
    recorder.check(got === expected, { check: 'canonical', module: name, got, expected, message });
    const known = canonical?.moduleNames().includes(name) ? canonical : undefined;
    if (module.layout === 'dense') {
      const parts = new Map([['weight' as const, weight.view(weight.shape)]]);
      if (known) await compareModule(rt, recorder, known, name, module, { parts, problems: [] }, 'gguf');
      return;
    }
    if (known) compareEntries(recorder, name, module, known.module(name), 'gguf');
    await compareSearched(context, name, tensor, weight);
  } finally {
    weight.dispose();
  }
}
