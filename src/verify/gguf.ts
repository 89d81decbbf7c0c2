import path from 'node:path';
import type { ArtifactManifest, PackedModule } from '../../formats/artifact/schema.js';
import { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import { GgufFile } from '../../formats/gguf/read.js';
import { readConfig } from '../../formats/safetensors/checkpoint.js';
import { typed } from '../../native/binding.js';
import { compareManifests } from './against.js';
import { checkListed, checkSeal, compareFiles } from './files.js';
import { checkCarried, GGUF_FILE, type GgufContext, verifyGgufModule } from './gguf-modules.js';
import { checkpointName, expectedMetadata, expectedRopeFactors } from './gguf-tables.js';
import { type ModuleReport, Recorder, type VerifyReport } from './report.js';
import type { VerifyOptions } from './verify.js';

export function isGguf({ target }: ArtifactManifest): boolean {
  return target === 'gguf' || target.startsWith('gguf-');
}

/** verifyArtifact for a directory with model.gguf. Throws as it does, LPQ_ARTIFACT for a file that cannot be read. */
export async function verifyGguf(options: VerifyOptions, manifest: ArtifactManifest): Promise<VerifyReport> {
  const { dir, runtime: rt, seed = 0 } = options;
  const started = performance.now();
  const config = readConfig(dir);
  const file = GgufFile.open(path.join(dir, GGUF_FILE));
  let canonical: CanonicalCheckpoint | undefined;
  try {
    canonical =
      options.opened ?? (options.against === undefined ? undefined : CanonicalCheckpoint.open(options.against));
    const recorder = new Recorder();
    const context: GgufContext = { rt, recorder, file, config, canonical };
    checkSeal(recorder, dir, manifest);
    await checkListed(recorder, dir, manifest, [GGUF_FILE], []);
    checkPlain(recorder, config, manifest);
    checkMetadata(context);
    checkNames(context, manifest);
    if (canonical) {
      // Carried tensors have other names here, and are compared one by one.
      compareManifests(recorder, canonical, { ...manifest, carried: canonical.manifest.carried });
      await compareFiles(recorder, dir, config, canonical.dir, canonical.config, [GGUF_FILE]);
    } else recorder.detail('against', 'no quantized checkpoint was given');
    await checkCarried(context, manifest);
    const modules: ModuleReport[] = [];
    const names = Object.keys(manifest.modules);
    for (const name of names) {
      modules.push(await verifyGgufModule(context, name, manifest.modules[name] as PackedModule));
      options.onModule?.(modules.at(-1) as ModuleReport, modules.length, names.length);
    }
    for (const check of ['emulator', 'kernel'] as const)
      recorder.detail(check, 'lpq has no kernel for the blocks of GGUF');
    recorder.detail('end-to-end', 'blocks of GGUF may hold other numbers than those quantized; lpq eval compares them');
    return {
      ok: recorder.failures.length === 0,
      dir,
      against: canonical?.dir ?? null,
      target: manifest.target,
      seed,
      checks: recorder.checks(),
      failures: recorder.failures,
      modules,
      unproved: recorder.unproved,
      notes: recorder.notes,
      seconds: (performance.now() - started) / 1000,
    };
  } finally {
    file.close();
    canonical?.close();
  }
}

/** Loaders of safetensors read config.json: it says nothing of a quantization, for there are no tensors of one beside it. */
function checkPlain(recorder: Recorder, config: GgufContext['config'], { kv }: ArtifactManifest): void {
  recorder.check(config.quantization_config === undefined, {
    check: 'config',
    message: 'config.json states a quantization_config, which no artifact for gguf has',
  });
  recorder.check(kv === undefined, {
    check: 'config',
    message: 'lpq.json has a scheme for a cache, which GGUF has no place for',
  });
}

function checkMetadata({ recorder, file, config }: GgufContext): void {
  const differ = (key: string, got: unknown, expected: unknown): void => {
    recorder.check(false, {
      check: 'config',
      got: String(got ?? 'nothing'),
      expected: String(expected),
      message: `${key} of ${GGUF_FILE} is not what config.json says`,
    });
  };
  for (const [key, expected] of expectedMetadata(config)) {
    recorder.count('config');
    const got = file.metadata.get(key)?.value;
    const same = typeof expected === 'number' ? Math.fround(Number(got)) === Math.fround(expected) : got === expected;
    if (!same) differ(key, got, expected);
  }
  const factors = expectedRopeFactors(config);
  recorder.count('config');
  if (file.has('rope_freqs.weight') !== (factors !== undefined))
    differ('rope_freqs.weight', file.has('rope_freqs.weight') ? 'there' : 'nothing', factors ? 'factors' : 'nothing');
  else if (factors) {
    const stored = file.tensor('rope_freqs.weight');
    // Two orders of the same few products and powers in doubles: some units of 2^-53, far below f32's 2^-24.
    const at = typed<Float32Array>(stored).findIndex(
      (value, i) => !(Math.abs(value / (factors[i] as number) - 1) < 2 ** -22),
    );
    if (at >= 0) differ(`rope_freqs.weight[${at}]`, typed<Float32Array>(stored)[at], factors[at]);
    stored.dispose();
  }
  const tokens = file.metadata.get('tokenizer.ggml.tokens')?.value;
  if (Array.isArray(tokens) && tokens.length !== config.vocab_size)
    differ('tokenizer.ggml.tokens', tokens.length, config.vocab_size);
}

function checkNames({ recorder, file, config }: GgufContext, manifest: ArtifactManifest): void {
  const owners = new Map<string, string>();
  for (const [module, { tensors }] of Object.entries(manifest.modules))
    for (const tensor of Object.keys(tensors)) {
      recorder.check(!owners.has(tensor), { check: 'tensors', tensor, message: `'${tensor}' is listed twice` });
      owners.set(tensor, module);
      const meant = checkpointName(tensor, config);
      recorder.check(meant === `${module}.weight`, {
        check: 'tensors',
        module,
        tensor,
        got: meant ?? 'nothing',
        expected: `${module}.weight`,
        message: `'${tensor}' is another tensor of the model than the one of module '${module}'`,
      });
    }
  for (const tensor of Object.keys(manifest.carried)) owners.set(tensor, 'carried');
  for (const tensor of file.names())
    recorder.check(owners.has(tensor), {
      check: 'tensors',
      tensor,
      message: `tensor '${tensor}' is in ${GGUF_FILE} but not in lpq.json`,
    });
}
