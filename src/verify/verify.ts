import { existsSync } from 'node:fs';
import path from 'node:path';
import { type ArtifactManifest, artifactSchema } from '../../formats/artifact/schema.js';
import { CanonicalCheckpoint, readManifest } from '../../formats/canonical/read.js';
import { readRegularText } from '../../formats/directory/read-file.js';
import { Checkpoint, readConfig } from '../../formats/safetensors/checkpoint.js';
import { describeNotFinite, findNotFiniteStored } from '../../formats/safetensors/finite.js';
import { hashTensor } from '../../formats/safetensors/hash.js';
import type { NativeRuntime } from '../../native/binding.js';
import { tell } from '../core/activity.js';
import { multipliesCodes } from '../model/packed.js';
import { compareCarried, compareManifests, otherCheckpoint } from './against.js';
import { checkBeside, checkConfig } from './config.js';
import { checkFiles, checkSeal, checkTensorNames, compareFiles } from './files.js';
import { isGguf, verifyGguf } from './gguf.js';
import { checkKvScales } from './kv-scales.js';
import { modelLinears } from './linears.js';
import { type ModuleContext, verifyModule } from './module.js';
import { type CacheMakers, verifyPacked } from './packed-cache.js';
import { CHECKS, type ModuleReport, Recorder, type VerifyReport } from './report.js';
import { ArtifactShapes } from './shapes.js';
import { quantizesActivations, verifiedTarget } from './targets/index.js';

export interface VerifyOptions {
  /** A packed directory. */
  readonly dir: string;
  /** The quantized checkpoint that it was packed from: every byte is then compared, and values are named. */
  readonly against?: string | undefined;
  /** The same, open already: a view of another tool's (openQuantized). It is closed in the end. */
  readonly opened?: CanonicalCheckpoint | undefined;
  /** GGUF: the checkpoint whose weights its blocks were searched in. */
  readonly source?: string | undefined;
  /** The importance matrix of the search of GGUF blocks. */
  readonly importance?: string | undefined;
  /** Of the CPU: decodes and emulates. */
  readonly runtime: NativeRuntime;
  /** A device whose kernels multiply the packed bytes themselves; default: none. */
  readonly kernel?: NativeRuntime | undefined;
  /** lpq's packed caches, the reference's and the kernels', examined where lpq.json has a scheme; default: not examined. */
  readonly cache?: CacheMakers | undefined;
  /** Compares what the whole model computes, under the check end-to-end; what it returns goes into the report. Default: not asked for. */
  readonly endToEnd?: ((recorder: Recorder) => Promise<object>) | undefined;
  /** For the emulator's activations and sampled columns. Default 0. */
  readonly seed?: number | undefined;
  /** Default true. */
  readonly emulate?: boolean | undefined;
  readonly onModule?: ((module: ModuleReport, done: number, total: number) => void) | undefined;
}

/**
 * Proves a packed directory: what its bytes decode to is what was quantized. Differences are reported, never thrown;
 * docs/verification.md says what each check proves. Throws LPQ_ARTIFACT, LPQ_CONFIG, LPQ_SAFETENSORS,
 * LPQ_SAFETENSORS_INDEX or LPQ_FILE for a directory that cannot be read at all, LPQ_CANONICAL for such an `against`,
 * and LPQ_ABORTED.
 */
export async function verifyArtifact(options: VerifyOptions): Promise<VerifyReport> {
  const { dir, runtime, kernel, seed = 0, emulate = true } = options;
  const started = performance.now();
  const manifest = readManifest(dir, artifactSchema, 'LPQ_ARTIFACT');
  const canonical =
    options.opened ?? (options.against === undefined ? undefined : CanonicalCheckpoint.open(options.against));
  const other = canonical && otherCheckpoint(canonical, manifest, options.opened !== undefined);
  if (canonical && other) {
    canonical.close();
    // Everything differs then: one sentence, and nothing else is looked at.
    const recorder = new Recorder();
    recorder.check(false, other);
    for (const check of CHECKS) if (check !== 'against') recorder.detail(check, 'not looked at');
    return recorder.report(options, manifest.target, [], started);
  }
  if (isGguf(manifest)) return verifyGguf({ ...options, opened: canonical }, manifest);
  let weights: Checkpoint | undefined;
  try {
    const config = readConfig(dir);
    weights = Checkpoint.open(dir);
    const recorder = new Recorder();
    checkSeal(recorder, dir, manifest);
    await checkFiles(recorder, dir, manifest, weights);
    checkTensorNames(recorder, manifest, weights);
    const shapes = new ArtifactShapes(dir, config, manifest, weights);
    checkConfig(recorder, manifest, config, readMirror(dir), modelLinears(recorder, shapes, weights, canonical));
    checkBeside(recorder, dir, manifest.target, config);
    if (canonical) {
      compareManifests(recorder, canonical, manifest);
      const made = [
        ...weights.files.map((file) => path.relative(dir, file.path)),
        ...(verifiedTarget(manifest.target)?.files ?? []),
      ];
      await compareFiles(recorder, dir, config, canonical.dir, canonical.config, made);
    } else recorder.detail('against', 'no quantized checkpoint was given');
    const dynamic = kernel !== undefined && multipliesCodes(kernel) && quantizesActivations(manifest.target);
    const context = { runtime, kernel, dynamic, weights, recorder, canonical, emulate, seed, target: manifest.target };
    await checkCarried(context, manifest);
    checkCache(recorder, manifest);
    await checkKvScales(recorder, manifest, weights, shapes);
    if (manifest.kvScales)
      recorder.detail('kv', 'FP8, one scale for the keys and one for the values of each attention');
    else if (!manifest.kv) recorder.detail('kv', 'lpq.json has no KV cache scheme');
    else if (!('form' in manifest.kv)) recorder.detail('kv', 'it is simulated (docs/fmpq.md), not packed');
    else if (!options.cache) recorder.detail('kv', 'not requested');
    else await verifyPacked({ runtime, kernel, recorder, seed }, options.cache, manifest.kv, shapes);
    const modules: ModuleReport[] = [];
    const names = Object.keys(manifest.modules);
    for (const name of names) {
      tell(`verifying ${name}`, modules.length, names.length);
      const report = await verifyModule(context, name, manifest.modules[name]!);
      modules.push(report);
      options.onModule?.(report, modules.length, names.length);
    }
    if (!emulate) recorder.detail('emulator', 'not requested');
    else if (!modules.some(({ emulatorRatio }) => emulatorRatio !== undefined))
      recorder.detail('emulator', `no module of target ${manifest.target} has an fp16 kernel to emulate`);
    if (!kernel) recorder.detail('kernel', 'no device was requested, or there is none');
    else if (!modules.some(({ kernelRatio }) => kernelRatio !== undefined))
      recorder.detail('kernel', `lpq has no kernel for the modules of target ${manifest.target}`);
    const endToEnd = await options.endToEnd?.(recorder);
    if (!endToEnd) recorder.detail('end-to-end', 'not requested');
    return recorder.report(options, manifest.target, modules, started, endToEnd);
  } finally {
    weights?.close();
    canonical?.close();
  }
}

/** The options of the quantization are the manifest's own word that there is a packed cache. */
function checkCache(recorder: Recorder, { kv, provenance }: ArtifactManifest): void {
  if (provenance.options.kv === undefined) return;
  recorder.check(kv !== undefined, {
    check: 'kv',
    message: `the model was quantized with --kv ${provenance.options.kv}, but lpq.json has lost its KV cache scheme`,
  });
}

async function checkCarried(ctx: ModuleContext, manifest: ArtifactManifest): Promise<void> {
  const { recorder, weights, canonical, runtime } = ctx;
  const names = Object.keys(manifest.carried);
  for (const [i, name] of names.entries()) {
    tell(`hashing ${name}`, i, names.length);
    const present = weights.has(name);
    if (!present) {
      recorder.check(false, { check: 'carried', tensor: name, message: `tensor '${name}' is not in the shards` });
      continue;
    }
    const tensor = weights.tensor(name);
    const got = await hashTensor(weights.spec(name), tensor);
    const expected = manifest.carried[name]!;
    const message = `the carried tensor '${name}' differs from that of the quantized checkpoint in its bytes, dtype or shape`;
    recorder.check(got === expected, { check: 'carried', tensor: name, got, expected, message });
    const broken = await findNotFiniteStored(tensor, weights.dtype(name));
    const facts = { check: 'carried', tensor: name, expected: 'finite numbers' } as const;
    const found = broken && { got: describeNotFinite(broken, weights.shape(name)) };
    const notFinite = `the carried tensor '${name}' holds NaN or infinity`;
    recorder.check(broken === undefined, { ...facts, ...found, message: notFinite });
    if (canonical) await compareCarried(runtime, recorder, canonical, name, tensor, weights.dtype(name));
    tensor.dispose();
    weights.advise(name, 'dontneed');
  }
  if (!canonical && names.length > 0)
    recorder.unproved.push(
      `${names.length} carried tensors and the model's other files are proved only by hashes in lpq.json`,
    );
}

function readMirror(dir: string): unknown {
  const file = path.join(dir, 'quantize_config.json');
  if (!existsSync(file)) return undefined;
  try {
    return JSON.parse(readRegularText(file));
  } catch {
    return null; // never equal to quantization_config: checkConfig reports it
  }
}
