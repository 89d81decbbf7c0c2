import { isDeepStrictEqual } from 'node:util';
import type { ArtifactManifest, PackedModule } from '../../formats/artifact/schema.js';
import type { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import type { CanonicalModule } from '../../formats/canonical/schema.js';
import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { quantType } from '../core/quant-type.js';
import type { Decoded } from './decode.js';
import { quantizedWeight } from './dequantize.js';
import { compare, placeOf, settle, transpose } from './native.js';
import type { Recorder, VerifyFailure } from './report.js';
import { cacheOf, verifiedTarget } from './targets/index.js';

/** The canonical checkpoint of --against. */
export type CanonicalSide = CanonicalCheckpoint;

const DTYPE_BITS: Readonly<Record<string, number>> = { f64: 64, i64: 64, f32: 32, i32: 32, f16: 16, bf16: 16, i16: 16 };

/** An artifact of another checkpoint differs in everything; the one sentence that says so, or undefined where it is of this one. */
export function otherCheckpoint(
  canonical: CanonicalSide,
  { provenance }: ArtifactManifest,
  foreign: boolean,
): VerifyFailure | undefined {
  const ours = flat(provenance);
  const theirs = flat(canonical.manifest.provenance);
  // Another tool's checkpoint is called after its directory, which may have moved.
  const keys = [...new Set([...ours.keys(), ...theirs.keys()])].filter((key) => !(foreign && key === 'source.name'));
  const other = keys.filter((key) => ours.get(key) !== theirs.get(key));
  const [first] = other;
  if (first === undefined) return undefined;
  const { source, method } = provenance;
  return {
    check: 'against',
    got: `${first} ${ours.get(first) ?? 'nothing'}`,
    expected: `${first} ${theirs.get(first) ?? 'nothing'}`,
    message: `it was not packed from ${canonical.dir}: their provenance differs in ${other.join(', ')}`,
    hint: `Give --against the checkpoint that it was packed from: ${source.name}${source.revision === null ? '' : `@${source.revision}`}, fingerprint ${source.fingerprint.slice(0, 12)}, --method ${method}.`,
  };
}

/** Leaves of a record by their paths, as JSON. */
function flat(value: unknown, path = ''): Map<string, string> {
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    return new Map([[path, JSON.stringify(value)]]);
  return new Map(Object.entries(value).flatMap(([key, each]) => [...flat(each, path ? `${path}.${key}` : key)]));
}

/** The manifest's own statements against the canonical manifest: modules, carried tensors, the cache's scheme. */
export function compareManifests(recorder: Recorder, canonical: CanonicalSide, manifest: ArtifactManifest): void {
  const check = 'against';
  const ours = new Set(Object.keys(manifest.modules));
  for (const module of canonical.moduleNames()) {
    const message = `module '${module}' of ${canonical.dir} is not in the artifact`;
    recorder.check(ours.delete(module), { check, module, message });
  }
  for (const module of ours)
    recorder.check(false, { check, module, message: `module '${module}' of the artifact is not in ${canonical.dir}` });
  const carried = new Set(Object.keys(manifest.carried));
  for (const [tensor, expected] of Object.entries(canonical.manifest.carried)) {
    const got = manifest.carried[tensor];
    const message =
      got === undefined
        ? `tensor '${tensor}' of ${canonical.dir} is missing from the artifact`
        : `the carried tensor '${tensor}' has changed since ${canonical.dir} was written`;
    recorder.check(carried.delete(tensor) && got === expected, { check, tensor, got, expected, message });
  }
  for (const tensor of carried)
    recorder.check(false, { check, tensor, message: `tensor '${tensor}' of the artifact is not in ${canonical.dir}` });
  const cache = cacheOf(canonical.manifest.kv, manifest.target);
  recorder.check(isDeepStrictEqual(manifest.kv, cache), {
    ...{ check, got: JSON.stringify(manifest.kv) ?? 'none', expected: JSON.stringify(cache) ?? 'none' },
    message: 'the KV cache scheme in lpq.json differs from that of the quantized checkpoint',
  });
  const most = verifiedTarget(manifest.target)?.kvScale ? canonical.manifest.kvMost : undefined;
  recorder.check(isDeepStrictEqual(manifest.kvScales?.most, most), {
    ...{ check, got: JSON.stringify(manifest.kvScales?.most) ?? 'none', expected: JSON.stringify(most) ?? 'none' },
    message: 'the largest keys and values in lpq.json differ from those of the quantized checkpoint',
  });
}

/** One module: what the two manifests say of it, then every decoded part byte by byte. */
export async function compareModule(
  rt: NativeRuntime,
  recorder: Recorder,
  canonical: CanonicalSide,
  name: string,
  module: PackedModule,
  decoded: Decoded,
  target: string,
): Promise<void> {
  if (!canonical.moduleNames().includes(name)) return; // compareManifests has said so
  const entry = canonical.module(name);
  if (!compareEntries(recorder, name, module, entry, target)) return;
  if (module.layout === 'dense') {
    await compareDense(rt, recorder, canonical, name, module, decoded.parts.get('weight') as Tensor);
    return;
  }
  for (const part of ['codes', 'scales', 'zeros', 'global_scale', 'g_idx', 'permutation', 'mask'] as const) {
    const expected = canonical.part(name, part);
    const got = decoded.parts.get(part);
    if (expected && got) {
      const bits = part === 'codes' ? quantType(module.type).bits : part === 'mask' ? 1 : elementBits(expected);
      await compareTensors(rt, recorder, name, part, got, expected, bits);
    } else if (expected || got) {
      const lost = expected
        ? `its ${part} are lost in the artifact`
        : `it has ${part} that the quantized checkpoint lacks`;
      recorder.check(false, { check: 'against', module: name, message: `module '${name}': ${lost}` });
    }
    expected?.dispose();
  }
}

/** What the two manifests say of a module. */
export function compareEntries(
  recorder: Recorder,
  name: string,
  module: PackedModule,
  entry: CanonicalModule,
  target: string,
): boolean {
  const same = (what: string, ours: unknown, theirs: unknown, plural = true): boolean =>
    recorder.check(isDeepStrictEqual(ours, theirs), {
      ...{ check: 'against', module: name, got: JSON.stringify(ours), expected: JSON.stringify(theirs) },
      message: `module '${name}': its ${what} ${plural ? 'are' : 'is'} not that of the quantized checkpoint`,
    });
  const keys = ['type', 'shape', 'granularity', 'scales', 'zeros', 'transposed'] as const;
  const found = keys.map((key) => same(key, module[key], entry[key], key.endsWith('s')));
  // Targets that pack weights alone leave out what they would have multiplied.
  if (verifiedTarget(target)?.activations === 'blocks' || module.activations)
    found.push(same('precisions of activations', module.activations, entry.activations));
  if (module.inputMost !== undefined) found.push(same('largest input', module.inputMost, entry.inputMost, false));
  const { weight: _, ...hashes } = module.canonical;
  const message = `module '${name}': the canonical hashes in lpq.json differ from those of the quantized checkpoint`;
  recorder.check(isDeepStrictEqual({ ...hashes }, { ...entry.sha256 }), { check: 'against', module: name, message });
  return found.every((ok) => ok);
}

async function compareDense(
  rt: NativeRuntime,
  recorder: Recorder,
  canonical: CanonicalSide,
  name: string,
  module: PackedModule,
  got: Tensor,
): Promise<void> {
  const { sourceDtype } = canonical.module(name);
  const message = `'${name}.weight' does not have the dtype of the source`;
  const dtypes = { got: got.dtype, expected: sourceDtype };
  const known = recorder.check(got.dtype === sourceDtype.toLowerCase(), {
    ...{ check: 'against', module: name, ...dtypes, message },
  });
  if (!known) return;
  const expected = await quantizedWeight(rt, canonical, name, got.dtype as 'f32' | 'f16' | 'bf16');
  const stored = module.transposed ? transpose(rt, expected) : expected.view(expected.shape);
  await settle(rt);
  await compareTensors(rt, recorder, name, 'weight', got, stored, elementBits(stored));
  for (const tensor of [expected, stored]) tensor.dispose();
}

async function compareTensors(
  rt: NativeRuntime,
  recorder: Recorder,
  module: string,
  part: string,
  got: Tensor,
  expected: Tensor,
  bits: number,
): Promise<void> {
  recorder.count('against');
  const matrix = expected.shape.length === 2;
  const wrong = await compare(rt, got, expected, { rows: matrix ? (expected.shape[0] as number) : 1, bits });
  if (wrong.count === 0) return;
  const column = part === 'codes' || part === 'weight' || !matrix ? 'column' : 'group';
  const where = `${wrong.count} of its ${part} differ, first at row ${wrong.row}, ${column} ${wrong.column}`;
  const values = `got ${hex(wrong.got, bits)}, expected ${hex(wrong.expected, bits)}`;
  const message = `module '${module}': ${where}: ${values}`;
  recorder.failures.push({ check: 'against', module, ...placeOf(wrong), message });
}

/** Carried tensors, byte by byte. */
export async function compareCarried(
  rt: NativeRuntime,
  recorder: Recorder,
  canonical: CanonicalSide,
  name: string,
  got: Tensor,
  dtype: string,
): Promise<void> {
  if (!canonical.weights.has(name)) return; // compareManifests has said so
  const spec = canonical.weights.spec(name);
  const facts = { check: 'against', tensor: name } as const;
  const same = recorder.check(spec.dtype === dtype && `${spec.shape}` === `${got.shape}`, {
    ...{ ...facts, got: `${dtype} [${got.shape}]`, expected: `${spec.dtype} [${spec.shape}]` },
    message: `the carried tensor '${name}' differs in dtype or shape from the quantized checkpoint`,
  });
  if (!same || got.byteLength === 0) return;
  const expected = canonical.weights.tensor(name);
  const rows = expected.shape.length === 2 ? (expected.shape[0] as number) : 1;
  const wrong = await compare(rt, got, expected, { rows, bits: elementBits(expected) });
  expected.dispose();
  const where = `differs in ${wrong.count} values, first at row ${wrong.row}, column ${wrong.column}`;
  const message = `the carried tensor '${name}' ${where}`;
  recorder.check(wrong.count === 0, { ...facts, ...placeOf(wrong), message });
}

function elementBits(tensor: Tensor): number {
  return DTYPE_BITS[tensor.dtype] ?? 8;
}

function hex(value: number, bits: number): string {
  return bits <= 8 ? String(value) : `0x${(value < 0 ? value + 2 ** 32 : value).toString(16)}`;
}
