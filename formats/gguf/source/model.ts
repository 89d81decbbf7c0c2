import { LpqError } from '../../../src/core/error.js';
import type { GgufArchitecture, Shared } from '../architectures/architecture.js';
import { GGUF_ARCHITECTURES, GGUF_NAMES } from '../architectures/index.js';
import { GgufFacts } from './facts.js';
import { badGguf, type GgufModelFile } from './file.js';

/** What a file is as a checkpoint: the table of its architecture, and its config.json. */
export interface GgufSourceModel {
  readonly facts: GgufFacts;
  readonly architecture: GgufArchitecture;
  readonly shared: Shared;
  readonly kvHeads: number;
  readonly config: Readonly<Record<string, unknown>>;
}

/**
 * Reads the metadata of a model. Throws LPQ_ARCH_UNKNOWN for an architecture without a table, LPQ_GGUF for one that the file
 * does not describe whole, or describes in a way that config.json has no words for.
 */
export function ggufSourceModel(file: GgufModelFile): GgufSourceModel {
  const facts = new GgufFacts(file);
  const [modelType, architecture] = architectureOf(facts);
  const hidden = facts.number('embedding_length');
  const heads = facts.number('attention.head_count');
  const headDim = facts.optional('attention.key_length') ?? hidden / heads;
  const valueDim = facts.optional('attention.value_length') ?? headDim;
  if (!(heads > 0) || !Number.isInteger(headDim) || headDim < 1)
    badGguf(file.path, 'its heads do not divide its embeddings', { got: `${hidden} / ${heads}` });
  if (valueDim !== headDim && architecture.latent === undefined && !architecture.ownValues)
    badGguf(file.path, 'its keys and values differ in length', { got: `${headDim}, ${valueDim}` });
  const shared: Shared = { hidden, heads, headDim, layers: facts.number('block_count') };
  const [vocab = 0, columns = 0] = facts.shape('token_embd.weight');
  if (columns !== hidden)
    badGguf(file.path, "'token_embd.weight' is not as wide as the metadata says", { got: columns, expected: hidden });
  const config = {
    architectures: [architecture.className],
    model_type: architecture.readAs ?? modelType.replace(/ with experts$/, ''),
    vocab_size: vocab,
    ...architecture.config(facts, shared),
    tie_word_embeddings: !facts.has('output.weight'),
    ...tokenIds(facts),
    dtype: dtypeOf(file),
  };
  const stated = facts.isList('attention.head_count_kv')
    ? Math.max(...facts.each('attention.head_count_kv', shared.layers))
    : facts.optional('attention.head_count_kv');
  return { facts, architecture, shared, kvHeads: stated ?? heads, config };
}

/** The row of a file: the one that it names, or is of, or the usual one of its name. */
function architectureOf(facts: GgufFacts): [modelType: string, GgufArchitecture] {
  const rows = Object.entries(GGUF_ARCHITECTURES).filter(([, { name }]) => name === facts.architecture);
  const said = facts.text('lpq.model_type');
  const stated = rows.find(([type, { is }]) => type.startsWith(`${said} with `) && is?.(facts));
  const found =
    stated ??
    rows.find(([type]) => type === said) ??
    rows.find(([, { is }]) => is?.(facts)) ??
    rows.find(([, { is }]) => !is);
  if (found) return found;
  throw new LpqError('LPQ_ARCH_UNKNOWN', `${facts.file.path} has an architecture that lpq does not read from GGUF`, {
    got: facts.architecture,
    expected: GGUF_NAMES.join(', '),
    hint: 'Start from the safetensors that it was converted from.',
  });
}

function tokenIds(facts: GgufFacts): Record<string, number> {
  const ids: Record<string, number> = {};
  for (const [key, name] of [
    ['bos', 'bos_token_id'],
    ['eos', 'eos_token_id'],
    ['padding', 'pad_token_id'],
  ] as const) {
    const id = facts.optional(`tokenizer.ggml.${key}_token_id`);
    if (id !== undefined) ids[name] = id;
  }
  return ids;
}

/** In which dtype other programs are to compute: the one of the file's matrices, where they are floats of 16 bits. */
function dtypeOf(file: GgufModelFile): string {
  const matrices = [...file.tensors.values()].filter(({ shape }) => shape.length > 1);
  const has = (type: string) => matrices.some(({ type: { name } }) => name === type);
  return has('F16') && !has('BF16') ? 'float16' : 'bfloat16';
}
