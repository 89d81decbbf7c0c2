import { isDeepStrictEqual } from 'node:util';
import type { ArtifactManifest, PackedModule } from '../../formats/artifact/schema.js';
import { dequantizeModule } from '../../formats/canonical/dequantize.js';
import type { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import type { GgufFile } from '../../formats/gguf/read.js';
import { hashTensor } from '../../formats/safetensors/hash.js';
import { allocate, type NativeRuntime, type Tensor, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { compareModule } from './against.js';
import { canonicalFacts, type DecodedPart, disposeDecoded } from './decode.js';
import { decodeBlocks, decodeValues } from './decode-gguf.js';
import { checkpointName } from './gguf-tables.js';
import type { ModuleReport, Recorder } from './report.js';

type Json = Readonly<Record<string, unknown>>;

export const GGUF_FILE = 'model.gguf';

/** What the checks of a GGUF file share. */
export interface GgufContext {
  readonly rt: NativeRuntime;
  readonly recorder: Recorder;
  readonly file: GgufFile;
  readonly config: Json;
  readonly canonical: CanonicalCheckpoint | undefined;
}

/** Largest relative squared difference of a searched type from the quantized weights: a sign that it is another weight. */
const SEARCHED_BOUND = 0.25;
/** Of embeddings and output in q6_k or q8_0: steps of 1/32 of the largest of 16 weights give some 5e-4. */
const OUTER_BOUND = 0.01;

/** The bytes of a tensor against its hash; false when it is not there. */
async function checkHash(
  context: GgufContext,
  check: 'tensors' | 'carried',
  tensor: string,
  expected: string,
): Promise<boolean> {
  const { recorder, file } = context;
  if (!file.has(tensor))
    return recorder.check(false, { check, tensor, message: `tensor '${tensor}' is not in ${GGUF_FILE}` });
  const bytes = file.tensor(tensor);
  const got = await hashTensor(file.spec(tensor), bytes);
  bytes.dispose();
  const message = `the bytes of '${tensor}' are not those that were packed`;
  recorder.check(got === expected, { check, tensor, got, expected, message });
  return true;
}

/** Carried tensors against their hashes and, with a checkpoint, against what they were made of. */
export async function checkCarried(context: GgufContext, manifest: ArtifactManifest): Promise<void> {
  const { recorder, config, canonical } = context;
  const found = new Set<string>();
  for (const [tensor, hash] of Object.entries(manifest.carried)) {
    if (!(await checkHash(context, 'carried', tensor, hash)) || tensor === 'rope_freqs.weight') continue;
    const name = checkpointName(tensor, config);
    if (name !== undefined) found.add(name);
    if (canonical) await compareCarried(context, canonical, tensor, name);
  }
  if (!canonical) {
    recorder.unproved.push('carried tensors and the model’s other files are proved by hashes in lpq.json only');
    return;
  }
  const left = Object.keys(canonical.manifest.carried).filter((name) => !found.has(name));
  if (left.length > 0)
    recorder.unproved.push(`${left.length} tensors have no place in GGUF: ${left.slice(0, 5).join(', ')}`);
}

async function compareCarried(
  { rt, recorder, file, config }: GgufContext,
  canonical: CanonicalCheckpoint,
  tensor: string,
  name: string | undefined,
): Promise<void> {
  const facts = { check: 'against', tensor } as const;
  if (name === undefined || !canonical.weights.has(name)) {
    recorder.check(false, { ...facts, message: `tensor '${tensor}' is none of ${canonical.dir}` });
    return;
  }
  const { type } = file.matrix(tensor);
  const { tensor: decoded } = await decodeValues(rt, file, tensor, config);
  const stored = canonical.weights.tensor(name);
  const [got, expected] = await Promise.all([wide(rt, decoded), wide(rt, stored)]);
  const lossless = type.block === 1;
  const error = got.length === expected.length ? relativeError(got, expected) : Number.POSITIVE_INFINITY;
  recorder.check(lossless ? error === 0 : error < OUTER_BOUND, {
    ...facts,
    got: error,
    expected: lossless ? 0 : OUTER_BOUND,
    message: `'${tensor}' does not hold '${name}' of ${canonical.dir}: their relative squared difference is ${error}`,
  });
}

/** As doubles' f32; disposes of the tensor. */
async function wide(rt: NativeRuntime, tensor: Tensor): Promise<Float32Array> {
  if (tensor.dtype === 'f32') return typed<Float32Array>(tensor);
  if (tensor.dtype === 'f64') return Float32Array.from(typed<Float64Array>(tensor));
  const out = allocate('f32', tensor.shape);
  ops.cast(rt, tensor, out);
  await rt.sync();
  return typed<Float32Array>(out);
}

function relativeError(got: Float32Array, expected: Float32Array): number {
  let [error, norm] = [0, 0];
  for (const [i, value] of expected.entries()) {
    error += ((got[i] as number) - value) ** 2;
    norm += value ** 2;
  }
  return error === 0 ? 0 : error / norm;
}

/** One module, from its tensor to what its blocks hold. */
export async function verifyGgufModule(
  context: GgufContext,
  name: string,
  module: PackedModule,
): Promise<ModuleReport> {
  const { recorder, file } = context;
  const started = performance.now();
  const before = recorder.failures.length;
  const [[tensor, hash] = ['', ''], ...more] = Object.entries(module.tensors);
  const problem = more.length > 0 || tensor === '' ? 'it has not one tensor' : layoutProblem(module);
  if (problem) recorder.check(false, { check: 'tensors', module: name, message: `module '${name}': ${problem}` });
  else if (await checkHash(context, 'tensors', tensor, hash)) {
    const { type, rows, columns } = file.matrix(tensor);
    const wanted = module.layout === 'dense' ? ['f32', 'f16', 'bf16'] : [module.layout.slice('gguf-'.length)];
    const fits = recorder.check(wanted.includes(type.name) && `${[rows, columns]}` === `${module.shape}`, {
      check: 'tensors',
      module: name,
      tensor,
      got: `${type.name} [${rows},${columns}]`,
      expected: `${wanted.join(' or ')} [${module.shape}]`,
      message: `'${tensor}' has another type or shape`,
    });
    if (fits) await (module.canonical.weight === undefined ? proveCodes : proveWeight)(context, name, tensor, module);
  }
  const { layout, type, shape } = module;
  const seconds = (performance.now() - started) / 1000;
  return { name, layout, type, shape, ok: recorder.failures.length === before, seconds };
}

function layoutProblem({ layout, canonical, shape, padded }: PackedModule): string | undefined {
  if (layout !== 'dense' && !/^gguf-q(4_0|4_1|5_0|5_1|8_0|[2-6]_k)$/.test(layout))
    return `'${layout}' is no layout of GGUF`;
  if (`${padded}` !== `${shape}`) return `a padded shape of [${padded}] does not suit [${shape}]`;
  if (canonical.weight === undefined && !/^gguf-q[458]_[01]$/.test(layout))
    return `layout ${layout} does not hold the codes, and there is no hash of the weight`;
  if (canonical.weight === undefined && (canonical.g_idx ?? canonical.permutation ?? canonical.mask) !== undefined)
    return `layout ${layout} has no order of columns and no mask`;
  return undefined;
}

/** The blocks are the canonical codes, scales and zero points. */
async function proveCodes(context: GgufContext, name: string, tensor: string, module: PackedModule): Promise<void> {
  const { rt, recorder, file, config, canonical } = context;
  const decoded = await decodeBlocks(rt, file, tensor, module, config);
  try {
    recorder.count('padding');
    for (const { wrong, what } of decoded.problems)
      recorder.failures.push({
        check: 'padding',
        module: name,
        tensor,
        ...{ row: wrong.row, column: wrong.column, got: wrong.got, expected: wrong.expected },
        message: `'${tensor}': ${what}, first at row ${wrong.row}, column ${wrong.column}`,
      });
    for (const [part, expected] of Object.entries(module.canonical)) {
      if (expected === undefined) continue;
      const found = decoded.parts.get(part as 'codes');
      const got = found ? await hashTensor(canonicalFacts(name, part as DecodedPart, found), found) : 'nothing';
      recorder.check(got === expected, {
        check: 'canonical',
        module: name,
        got,
        expected,
        message: `module '${name}': the ${part} that its blocks hold are not those that were quantized`,
      });
    }
    if (canonical) await compareModule(rt, recorder, canonical, name, module, decoded, 'gguf');
  } finally {
    disposeDecoded(decoded);
  }
}

/** The blocks (or plain values) mean the weight that the packer took them for; with a checkpoint, one near its own. */
async function proveWeight(context: GgufContext, name: string, tensor: string, module: PackedModule): Promise<void> {
  const { rt, recorder, file, config, canonical } = context;
  const { tensor: weight, wrong } = await decodeValues(rt, file, tensor, config);
  try {
    recorder.check(wrong === undefined, {
      check: 'padding',
      module: name,
      tensor,
      row: wrong?.row ?? 0,
      column: wrong?.column ?? 0,
      message: `'${tensor}' holds values that are NaN or infinite`,
    });
    const got = await hashTensor(canonicalFacts(name, 'weight', weight), weight);
    const expected = module.canonical.weight as string;
    const message = `module '${name}': what its blocks mean is not what they were packed for`;
    recorder.check(got === expected, { check: 'canonical', module: name, got, expected, message });
    if (!canonical?.moduleNames().includes(name)) return;
    if (module.layout === 'dense') {
      const parts = new Map([['weight' as const, weight.view(weight.shape)]]);
      await compareModule(rt, recorder, canonical, name, module, { parts, problems: [] }, 'gguf');
      return;
    }
    const { sha256: _, quality: __, ...entry } = canonical.module(name);
    const same = (['type', 'shape', 'granularity', 'scales', 'zeros'] as const).every((key) =>
      isDeepStrictEqual(module[key], entry[key]),
    );
    recorder.check(same, {
      check: 'against',
      module: name,
      message: `module '${name}' is another than in ${canonical.dir}`,
    });
    if (!same) return;
    const quantized = await dequantizeModule(rt, canonical, name);
    const error = relativeError(await wide(rt, weight), await wide(rt, quantized));
    recorder.check(error < SEARCHED_BOUND, {
      check: 'against',
      module: name,
      got: error,
      expected: SEARCHED_BOUND,
      message: `module '${name}': its blocks are far from the quantized weight`,
    });
  } finally {
    weight.dispose();
  }
}
