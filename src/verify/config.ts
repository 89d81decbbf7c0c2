import path from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import type { ArtifactManifest } from '../../formats/artifact/schema.js';
import { readRegularText } from '../../formats/directory/read-file.js';
import { LpqError } from '../core/error.js';
import { expectation } from './expectation.js';
import { asObject, checkKeys, type Fail, type Json, Maybe } from './keys.js';
import { isPacked } from './layouts/index.js';
import type { Linear, ModelLinears } from './linears.js';
import type { Recorder } from './report.js';
import type { LoaderConfig, Reading, Scheme, VerifiedTarget } from './target.js';
import { verifiedTarget } from './targets/index.js';

/**
 * quantization_config (and quantize_config.json, `mirror`): every key is one that the modules explain, every packed module is
 * claimed as what it is, and every other linear of the model is left out.
 */
export function checkConfig(
  recorder: Recorder,
  manifest: ArtifactManifest,
  config: Json,
  mirror: unknown | undefined,
  model: ModelLinears,
): void {
  const { target } = manifest;
  const fail: Fail = (message, got, expected, module) => {
    recorder.check(false, {
      check: 'config',
      ...(module !== undefined && { module }),
      ...(got !== undefined && { got: show(got) }),
      ...(expected !== undefined && { expected: show(expected) }),
      message,
    });
  };
  recorder.count('config');
  const facts = verifiedTarget(target);
  if (!facts) {
    fail(`lpq.json names '${target}', which is not a target of lpq`, target);
    return;
  }
  checkLayouts(fail, manifest, facts);
  const quantization = asObject(config.quantization_config);
  if (!quantization) {
    fail(`config.json has no quantization_config, which a loader of ${target} needs`);
    return;
  }
  const mirrored = facts.files.includes('quantize_config.json');
  if (mirrored ? !isDeepStrictEqual(mirror, config.quantization_config) : mirror !== undefined)
    fail(
      mirrored
        ? 'quantize_config.json is not the quantization_config of config.json'
        : `quantize_config.json exists, but an artifact for ${target} has none`,
    );
  if (!facts.config) {
    checkOwn(fail, quantization, manifest);
    return;
  }
  try {
    checkLinears(recorder, fail, quantization, manifest, model, facts.config);
  } catch (error) {
    if (!(error instanceof LpqError)) throw error;
    // A rule that cannot be followed says nothing about any module.
    fail(error.message, error.got);
  }
}

/** What a target states in a file beside config.json is the same. */
export function checkBeside(recorder: Recorder, dir: string, target: string, config: Json): void {
  const beside = verifiedTarget(target)?.beside;
  const stated = asObject(config.quantization_config);
  if (!beside || !stated) return;
  let found: unknown;
  try {
    found = JSON.parse(readRegularText(path.join(dir, beside.file)));
  } catch {
    found = undefined; // missing or no JSON: as wrong as another statement
  }
  const message = `${beside.file} differs from quantization_config of config.json`;
  recorder.check(isDeepStrictEqual(found, beside.says(stated)), { check: 'config', message });
}

/** Of a config that an engine reads: what it believes of every linear. Throws LPQ_CONFIG, LPQ_BUDGET about its rules. */
function checkLinears(
  recorder: Recorder,
  fail: Fail,
  quantization: Json,
  manifest: ArtifactManifest,
  model: ModelLinears,
  loader: LoaderConfig,
): void {
  const reading = loader.read(fail, quantization, manifest, model);
  for (const linear of model.linears.values()) checkLinear(recorder, fail, loader, reading, linear);
  for (const name of model.others) {
    recorder.count('config');
    if (reading.byName(name)) fail(`quantization_config claims that '${name}' is quantized, but it is not a linear`);
  }
}

/** Each module is in a layout of the target, or left as the target leaves modules. */
function checkLayouts(fail: Fail, { modules, target }: ArtifactManifest, { layouts, left }: VerifiedTarget): void {
  for (const [name, { layout }] of Object.entries(modules))
    if (!layouts.includes(layout) && layout !== left)
      fail(
        `module '${name}' has layout ${layout}, which an artifact for ${target} cannot have`,
        layout,
        [...layouts, left].join(', '),
        name,
      );
}

/** The configuration of lpq's own artifacts: lpq.json says the rest. */
function checkOwn(fail: Fail, config: Json, { target, modules }: ArtifactManifest): void {
  const counts = new Set(Object.values(modules).flatMap(({ ranks }) => (ranks ? [ranks.count] : [])));
  if (counts.size > 1) fail('modules are split over different numbers of ranks', [...counts].join(', '));
  const [count] = counts;
  const { tensor_parallel: stated } = config;
  // Where every rank has every module whole, nothing but this key tells how many there are.
  const free = count === undefined && Number.isSafeInteger(stated) && (stated as number) > 1;
  checkKeys(fail, 'quantization_config', config, {
    quant_method: 'lpq',
    format: 'lpq-artifact',
    version: 1,
    target,
    manifest: 'lpq.json',
    ...(count !== undefined && { tensor_parallel: count }),
    ...(free && { tensor_parallel: new Maybe(stated) }),
  });
}

function checkLinear(recorder: Recorder, fail: Fail, loader: LoaderConfig, reading: Reading, linear: Linear): void {
  const { name, module } = linear;
  if (module && expectation(name, module).problems.length > 0) return; // told with the tensors
  recorder.count('config');
  const stated = reading.scheme(linear);
  if (!module || !isPacked(module.layout)) {
    if (stated)
      fail(
        `quantization_config claims that ${module ? 'the dense module' : 'the plain linear'} '${name}' is quantized`,
        undefined,
        undefined,
        name,
      );
    return;
  }
  if (!stated) {
    fail(`quantization_config leaves out module '${name}', which is packed`, undefined, undefined, name);
    return;
  }
  const actual = loader.scheme(module);
  for (const key of Object.keys(actual) as (keyof Scheme)[])
    if (stated[key] !== actual[key])
      fail(`quantization_config states another ${WORD[key]} for module '${name}'`, stated[key], actual[key], name);
}

const WORD: Readonly<Record<keyof Scheme, string>> = {
  bits: 'number of bits',
  group: 'group size',
  sym: 'symmetry',
  order: 'activation order',
  type: 'kind of number',
  format: 'storage form',
  activations: 'treatment of activations',
};

function show(value: unknown): string {
  return typeof value === 'string' ? value : (JSON.stringify(value) ?? 'nothing');
}
