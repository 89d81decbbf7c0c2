import type { Json } from '../model.js';
import { harmlessManifest, harmlessQuantization, harmlessTarget } from './harmless.js';
import { jsonChanges } from './json.js';
import type { Artifact } from './open.js';
import { isObject } from './rehash.js';
import type { Kind, Site } from './site.js';

export const MIRRORS = ['quantize_config.json', 'quant_config.json'];
const INDEX = 'model.safetensors.index.json';

/** Every value of every JSON file but lpq.json. */
export function* jsonSites(artifact: Artifact): Iterable<Site> {
  for (const name of artifact.files.keys()) {
    if (!name.endsWith('.json')) continue;
    for (const { path, what, apply } of jsonChanges(read(artifact, name))) {
      const quantization = name === 'config.json' && /^quantization_config(\.|$)/.test(path);
      const harmless = quantization ? harmlessQuantization(path, what, groupsOf(artifact)) : undefined;
      yield {
        ...(harmless !== undefined && { harmless }),
        kind: quantization ? 'quantization_config' : kindOf(name),
        what: `${name}: ${path}: ${what}`,
        apply(copy) {
          const value = read(copy, name);
          apply(value);
          write(copy, name, value);
          if (!quantization) return;
          // Loaders find the same in its mirror.
          const own = (value as Json).quantization_config;
          for (const mirror of MIRRORS) if (copy.files.has(mirror) && isObject(own)) write(copy, mirror, own);
        },
      };
    }
  }
}

function groupsOf(artifact: Artifact): number {
  const { quantization_config: own } = read(artifact, 'config.json') as Json;
  return isObject(own) && isObject(own.config_groups) ? Object.keys(own.config_groups).length : 0;
}

function kindOf(name: string): Kind {
  if (name === 'config.json') return 'config.json';
  if (name === INDEX) return 'index';
  if (MIRRORS.includes(name)) return 'its mirror';
  return /^(tokenizer|special_tokens|added_tokens|vocab)/.test(name) ? 'tokenizer' : 'other JSON';
}

/** Every value of lpq.json. */
export function* manifestSites({ manifest }: Artifact): Iterable<Site> {
  const { files: _files, seal: _seal, ...rest } = manifest;
  for (const { path, what, apply } of jsonChanges(rest)) {
    const harmless = harmlessManifest(path);
    yield {
      kind: path.startsWith('modules.') ? 'manifest, modules' : 'manifest',
      what: `lpq.json: ${path}: ${what}`,
      ...(harmless !== undefined && { harmless }),
      apply: (copy) => apply(copy.manifest),
    };
  }
  yield { kind: 'manifest', what: 'lpq.json: seal removed', harmless: 'said aloud', unsealed: true, apply: () => {} };
  const kv = { form: 'turbomind', keys: { bits: 2, granularity: 'token', group: 64 }, values: { bits: 2, group: 64 } };
  yield {
    kind: 'manifest',
    what: 'lpq.json: kv: another scheme',
    apply: (copy) => (copy.manifest.kv = { ...kv, residual: 0 }),
  };
  yield {
    kind: 'manifest',
    what: 'lpq.json: kv: a simulated scheme',
    apply: (copy) => (copy.manifest.kv = { bits: 3, group: 32 }),
  };
}

/** The target renamed, with quantization_config saying so in what it repeats. */
export function* targetSites(artifact: Artifact, targets: readonly string[]): Iterable<Site> {
  const { manifest } = artifact;
  for (const target of targets) {
    if (target === manifest.target) continue;
    const stated = artifact.gguf === undefined;
    const harmless = harmlessTarget(String(manifest.target), target);
    for (const format of stated ? [undefined, 'gptq', 'gptq_v2'] : [undefined])
      yield {
        kind: 'manifest',
        what: `lpq.json: target: ${manifest.target} → ${target}${format ? ` and checkpoint_format: ${format}` : ''}`,
        ...(harmless !== undefined && !format && { harmless }),
        apply(copy) {
          copy.manifest.target = target;
          const config = read(copy, 'config.json') as Json;
          const own = config.quantization_config;
          if (!isObject(own)) return;
          if (own.target !== undefined) own.target = target;
          if (format) own.checkpoint_format = format;
          write(copy, 'config.json', config);
          for (const mirror of MIRRORS) if (copy.files.has(mirror)) write(copy, mirror, own);
        },
      };
  }
}

export function read({ files }: Artifact, name: string): unknown {
  return JSON.parse((files.get(name) as Buffer).toString('utf8'));
}

export function write({ files }: Artifact, name: string, value: unknown): void {
  files.set(name, Buffer.from(`${JSON.stringify(value, null, 2)}\n`));
}
