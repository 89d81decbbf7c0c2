import { LpqError } from '../core/error.js';
import { isPlain } from './name.js';

/** What lpq takes of a repository. */
export interface Selection {
  /** The index over the shards; it must be read before they are known. */
  readonly index: string | undefined;
  /** Files in one piece; without the shards of an index. */
  readonly files: readonly string[];
}

/** Configurations, tokenizers, templates, code, licences: what is small, and belongs to the model. */
const SMALL = /\.(json|jinja|txt|model|tiktoken|py|ya?ml)$|^(LICEN[CS]E|NOTICE|USE_POLICY|README)(\.(md|txt))?$/i;
const TEMPLATES = /^additional_chat_templates\/[^/]+\.jinja$/;
const INDEX = '.safetensors.index.json';
const WEIGHTS = '.safetensors';
const PICKLES = /\.(bin|pt|pth|ckpt|pkl|pickle)$/i;

/**
 * Chooses among the files of a repository as the checkpoint reader would among those of a directory: model.safetensors, else
 * the shards of the index, else the only .safetensors file; and the small files beside them. Nothing of subdirectories,
 * whose weights are other copies, but chat templates; no pickles, no other formats. Throws LPQ_HUB_PICKLE for a
 * repository that has its weights only pickled, LPQ_HUB_NOT_FOUND for one without weights.
 */
export function selectFiles(id: string, paths: readonly string[]): Selection {
  const top = paths.filter((name) => !name.includes('/') && !name.startsWith('.'));
  const small = top.filter((name) => SMALL.test(name) && !/\.index\.json$/i.test(name));
  const templates = paths.filter((name) => TEMPLATES.test(name));
  const files = [...small, ...templates];
  if (top.includes(`model${WEIGHTS}`)) return { index: undefined, files: [...files, `model${WEIGHTS}`] };
  const indices = top.filter((name) => name.endsWith(INDEX));
  const usual = `model${INDEX}`;
  const index = indices.includes(usual) ? usual : indices.length === 1 ? indices[0] : undefined;
  if (index !== undefined) return { index, files: [...files, index] };
  const single = top.filter((name) => name.endsWith(WEIGHTS));
  if (single.length === 1) return { index: undefined, files: [...files, single[0] as string] };
  // What lpq packed for llama.cpp has its weights in one file of another kind.
  const packed = top.includes('lpq.json') ? top.filter((name) => name.endsWith('.gguf')) : [];
  if (packed.length === 1) return { index: undefined, files: [...files, packed[0] as string] };
  throw noWeights(id, paths, single);
}

/** Whether a chosen file has weights, and not what describes them. */
export function isWeights(file: string): boolean {
  return file.endsWith(WEIGHTS) || file.endsWith('.gguf');
}

/**
 * The shards that an index names, all of them among `paths`. Throws LPQ_SAFETENSORS_INDEX. What else an index may do wrong
 * the checkpoint reader tells.
 */
export function shardsOf(id: string, index: string, text: string, paths: ReadonlySet<string>): string[] {
  const lies = (what: string, got?: string): never => {
    throw new LpqError('LPQ_SAFETENSORS_INDEX', `${index} of ${id} ${what}`, {
      got,
      hint: 'The repository is incomplete or damaged: use another revision or another copy of the model.',
    });
  };
  let value: { weight_map?: unknown } | null = null;
  try {
    value = JSON.parse(text) as { weight_map?: unknown } | null;
  } catch (cause) {
    lies(`is not valid JSON: ${(cause as Error).message}`);
  }
  const map = value?.weight_map;
  if (typeof map !== 'object' || map === null || Array.isArray(map)) return lies('has no weight_map');
  const shards = [...new Set(Object.values(map as Record<string, unknown>))];
  if (shards.length === 0) lies('names no shards');
  for (const shard of shards)
    if (typeof shard !== 'string' || !isPlain(shard) || shard.includes('/') || !shard.endsWith(WEIGHTS))
      lies('names a shard that is not a .safetensors file beside it', JSON.stringify(shard));
  const missing = (shards as string[]).filter((shard) => !paths.has(shard));
  if (missing.length > 0) lies('names shards that the repository does not have', missing.slice(0, 5).join(', '));
  return (shards as string[]).sort();
}

function noWeights(id: string, paths: readonly string[], single: readonly string[]): LpqError {
  const top = paths.filter((name) => !name.includes('/'));
  const pickled = top.filter(
    (name) => PICKLES.test(name) && !/^(training_args|optimizer|scheduler|rng_state)/.test(name),
  );
  if (single.length === 0 && pickled.length > 0)
    return new LpqError('LPQ_HUB_PICKLE', `${id} has only pickled weights, which lpq never opens`, {
      got: pickled.slice(0, 3).join(', ') + (pickled.length > 3 ? `, and ${pickled.length - 3} more` : ''),
      expected: 'model.safetensors, or model.safetensors.index.json with its shards',
      hint: `Look for a revision that has safetensors (often ${id}@refs/pr/N, opened by the Hub's converter: https://huggingface.co/spaces/safetensors/convert), or convert it with save_pretrained(safe_serialization=True) if you trust the file.`,
    });
  const gguf = top.filter((name) => name.endsWith('.gguf'));
  return new LpqError('LPQ_HUB_NOT_FOUND', `${id} has no safetensors checkpoint at its top level`, {
    got:
      single.length > 0
        ? `${single.length} .safetensors files and no index`
        : (gguf[0] ?? `${paths.length} files, none of them weights that lpq reads`),
    expected: 'model.safetensors, or model.safetensors.index.json with its shards',
    hint: 'Give the repository of the original model.',
  });
}
