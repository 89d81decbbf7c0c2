import path from 'node:path';
import type { ArtifactManifest, PackedModule } from '../../formats/artifact/schema.js';
import { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import { openSource } from '../../formats/canonical/source.js';
import { GgufFile } from '../../formats/gguf/read.js';
import { readImportance } from '../../formats/imatrix/read.js';
import { readConfig } from '../../formats/safetensors/checkpoint.js';
import { tell } from '../core/activity.js';
import { LpqError } from '../core/error.js';
import { carriedOf } from '../model/gguf/carried.js';
import { type GgufModel, ggufModel, namesOf } from '../model/gguf/model.js';
import type { WeightSource } from '../model/source.js';
import { compareManifests } from './against.js';
import { checkListed, checkSeal, compareFiles } from './files.js';
import { checkContainer } from './gguf-container.js';
import { GGUF_FILE, type GgufContext, type GgufExpectation } from './gguf-context.js';
import { isBlocks } from './gguf-header.js';
import { type GivenImportance, importanceEntries, isWeighed } from './gguf-importance.js';
import { type BlocksFrom, expectedEntries } from './gguf-metadata.js';
import { checkCarried, verifyGgufModule } from './gguf-modules.js';
import { type ExpectedTensors, expectedTensors, headerTensors } from './gguf-plan.js';
import { checkModel, checkRope } from './gguf-read-back.js';
import { expectedScalars } from './gguf-scalars.js';
import { expectedRope, fixOf } from './gguf-tables.js';
import { type ModuleReport, Recorder, type VerifyReport } from './report.js';
import type { VerifyOptions } from './verify.js';

type Json = Readonly<Record<string, unknown>>;

const TARGET = /^gguf(-q(8_0|[2-6]_k))?$/;

export function isGguf({ target }: ArtifactManifest): boolean {
  return target === 'gguf' || target.startsWith('gguf-');
}

/** verifyArtifact for a directory with model.gguf. Throws as it does, LPQ_ARTIFACT for a file that cannot be read. */
export async function verifyGguf(options: VerifyOptions, manifest: ArtifactManifest): Promise<VerifyReport> {
  const { dir, runtime: rt } = options;
  const started = performance.now();
  const config = readConfig(dir);
  const file = GgufFile.open(path.join(dir, GGUF_FILE));
  let canonical: CanonicalCheckpoint | undefined;
  let source: (WeightSource & { close(): void }) | undefined;
  try {
    canonical =
      options.opened ?? (options.against === undefined ? undefined : CanonicalCheckpoint.open(options.against));
    source = options.source === undefined ? undefined : openSource(options.source, rt);
    const recorder = new Recorder();
    checkSeal(recorder, dir, manifest);
    await checkListed(recorder, dir, manifest, [GGUF_FILE], []);
    checkPlain(recorder, config, manifest);
    const model = modelOf(recorder, dir, config, manifest);
    if (!model) return recorder.report({ ...options, opened: canonical }, manifest.target, [], started);
    const carried = canonical && carriedOf(canonical, Object.keys(canonical.manifest.carried));
    const context: GgufContext = { rt, recorder, file, model, canonical, carried };
    if (canonical) {
      // Carried tensors have other names here, and are compared one by one.
      compareManifests(recorder, canonical, { ...manifest, carried: canonical.manifest.carried });
      await compareFiles(recorder, dir, config, canonical.dir, canonical.config, [GGUF_FILE]);
    } else recorder.detail('against', 'no quantized checkpoint was given');
    const from = blocksFrom(context, manifest);
    const given =
      options.importance === undefined
        ? undefined
        : { file: options.importance, importance: await readImportance(options.importance) };
    const expected = await checkWhole(context, dir, config, manifest, from, given);
    await checkCarried(context, manifest);
    const modules: ModuleReport[] = [];
    const names = Object.keys(manifest.modules);
    for (const name of names) {
      tell(`verifying ${name}`, modules.length, names.length);
      const shared: GgufExpectation = { ...context, from, source, given };
      modules.push(await verifyGgufModule(shared, name, manifest.modules[name] as PackedModule));
      options.onModule?.(modules.at(-1) as ModuleReport, modules.length, names.length);
    }
    tellUnproved(context, expected, from, source);
    if (isWeighed(context) && !given)
      recorder.unproved.push('an importance matrix weighed the search of blocks; --imatrix FILE proves their scales');
    if (source && from !== 'source')
      recorder.detail('against', '--source was not read: no block was searched for in it');
    for (const check of ['emulator', 'kernel'] as const)
      recorder.detail(check, 'lpq has no kernel for the blocks of GGUF');
    recorder.detail(
      'end-to-end',
      'blocks of GGUF may hold other numbers than the quantized ones; lpq eval compares them',
    );
    return recorder.report({ ...options, opened: canonical }, manifest.target, modules, started);
  } finally {
    file.close();
    canonical?.close();
    source?.close();
  }
}

/** What config.json says, in GGUF's words; what is wrong with it is recorded. */
function modelOf(
  recorder: Recorder,
  dir: string,
  config: Json,
  { modules, carried }: ArtifactManifest,
): GgufModel | undefined {
  try {
    return ggufModel(dir, config, namesOf(Object.keys(modules), 'output.weight' in carried));
  } catch (error) {
    if (!(error instanceof LpqError)) throw error;
    const message = `${dir}: lpq cannot derive ${GGUF_FILE}: ${error.message}`;
    recorder.check(false, { check: 'config', message });
    return undefined;
  }
}

/** Loaders of safetensors read config.json: it says nothing of a quantization, for there are no tensors of one beside it. */
function checkPlain(recorder: Recorder, config: Json, { kv }: ArtifactManifest): void {
  const stated = 'config.json has a quantization_config, but an artifact for gguf has none';
  recorder.check(config.quantization_config === undefined, { check: 'config', message: stated });
  const cached = 'lpq.json has a KV cache scheme, but GGUF has no place for one';
  recorder.check(kv === undefined, { check: 'config', message: cached });
}

/** What the blocks of modules were made from: a searched target says it in the file. */
function blocksFrom({ recorder, file }: GgufContext, { target }: ArtifactManifest): BlocksFrom {
  recorder.check(TARGET.test(target), {
    check: 'tensors',
    got: target,
    message: `'${target}' is not a target of GGUF`,
  });
  if (target === 'gguf') return 'codes';
  return file.metadata.get('lpq.blocks_from')?.value === 'source' ? 'source' : 'quantized';
}

/** Derives what the whole file must be, and compares everything but the tensors' values. */
async function checkWhole(
  context: GgufContext,
  dir: string,
  config: Json,
  manifest: ArtifactManifest,
  from: BlocksFrom,
  given: GivenImportance | undefined,
): Promise<ExpectedTensors | undefined> {
  const { recorder, file, model, canonical, carried } = context;
  try {
    const expected = expectedTensors(model, manifest, canonical && carried && { canonical, carried }, file);
    for (const message of expected.problems) recorder.check(false, { check: 'tensors', message });
    const tensors = headerTensors(model, expected, file);
    checkManifest(context, manifest, expected);
    const scalars = await expectedScalars(context);
    checkContainer(
      context,
      path.join(dir, GGUF_FILE),
      expectedEntries(dir, config, model, manifest, tensors, from, importanceEntries(context, given), scalars),
      tensors,
    );
    checkRope(context);
    checkModel(context, path.join(dir, GGUF_FILE));
    return expected;
  } catch (error) {
    if (!(error instanceof LpqError || error instanceof SyntaxError || error instanceof TypeError)) throw error;
    const message = `${dir}: lpq cannot derive ${GGUF_FILE}: ${error.message}`;
    recorder.check(false, { check: 'config', message });
    return undefined;
  }
}

/** lpq.json lists exactly the expected tensors, each under its module and in its layout. */
function checkManifest(
  { recorder, model }: GgufContext,
  manifest: ArtifactManifest,
  { weights }: ExpectedTensors,
): void {
  const carried = new Set(expectedRope(model).keys());
  for (const { stored, module, types } of weights.values()) {
    if (module === undefined) {
      for (const half of stored.split('+')) carried.add(half);
      continue;
    }
    const entry = Object.hasOwn(manifest.modules, module) ? (manifest.modules[module] as PackedModule) : undefined;
    if (!entry) continue; // compareManifests has said so
    const { tensors, layout, ranks, packing, transposed, activations } = entry;
    const layouts = types.map((type) => (isBlocks(type) ? `gguf-${type}` : 'dense'));
    const listed = Object.keys(tensors).join('+');
    const [got, expected] = [`${listed} as ${layout}`, `${stored} as ${layouts[0]}`];
    recorder.check(layouts.includes(layout) && listed === stored, {
      ...{ check: 'tensors', module, got, expected },
      message: `module '${module}' is listed with a tensor or layout that differs from the file`,
    });
    const facts = `module '${module}': lpq.json says more about it than GGUF holds`;
    const turned = fixOf(model, stored) === 'turned' || undefined;
    const plain = (ranks ?? packing ?? activations) === undefined && transposed === turned;
    recorder.check(plain, { check: 'tensors', module, message: facts });
  }
  for (const tensor of new Set([...carried, ...Object.keys(manifest.carried)])) {
    const own = carried.has(tensor);
    const message = `tensor '${tensor}' is ${own ? 'not among' : 'none of'} the carried ones of lpq.json`;
    recorder.check(own && Object.hasOwn(manifest.carried, tensor), { check: 'tensors', tensor, message });
  }
}

function tellUnproved(
  { recorder, canonical }: GgufContext,
  expected: ExpectedTensors | undefined,
  from: BlocksFrom,
  source: WeightSource | undefined,
): void {
  if (!canonical) return;
  if (from === 'source' && !source)
    recorder.unproved.push(
      'blocks were searched from the weights of the source and are near the quantized ones; --source MODEL proves them',
    );
  const searched = [...(expected?.weights.values() ?? [])].some(
    ({ types, module }) => isBlocks(types[0] as string) && (module === undefined || from !== 'codes'),
  );
  if (searched)
    recorder.unproved.push(
      'scales of searched blocks may be others that fit the weights equally well; everything else follows from them',
    );
}
