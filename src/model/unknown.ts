import { distance } from 'fastest-levenshtein';
import { LpqError } from '../core/error.js';
import { textOf } from '../core/text-of.js';
import type { Architecture } from './architecture.js';
import { planModel } from './plan.js';

type Json = Readonly<Record<string, unknown>>;

/** What the planner reads beside the keys that tables name. */
const PLANNED =
  /^(vocab_size|hidden_size|num_hidden_layers|num_attention_heads|num_key_value_heads|head_dim|max_position_embeddings|original_max_position_embeddings|rope_\w+|partial_rotary_factor|rotary_pct|sliding_window|layer_types|(q|kv)_lora_rank|(qk_(nope|rope)|v)_head_dim|qk_head_dim)$/;

/** What says nothing of a computation: names, versions, dtypes, training, tokens, towers. */
const BESIDE =
  /^(_.*|model_type|architectures|auto_map|transformers_version|(torch_)?dtype|use_cache|quantization_config|text_config|.*(_token_id|_token_index|_token_ids|dropout|loss_coef|_config)|initializer_range|output_router_logits|router_jitter_noise|pretraining_tp|ep_size|seq_aux|aux_loss_alpha|is_(encoder_)?decoder|num_nextn_predict_layers|max_window_layers)$/;

/** Share of letters that differ up to which two names are alike. */
const KIN = 0.34;

/** Most keys that a message lists. */
const LISTED = 6;

/** LPQ_ARCH_UNKNOWN: which table is nearest, and what config.json says that it does not read, or lacks. */
export function unknownArchitecture(config: Json, dir: string, tables: readonly Architecture[]): LpqError {
  const { model_type: type } = config;
  const classes = Array.isArray(config.architectures) ? config.architectures : [];
  const got = [type, ...classes]
    .filter((part) => part !== undefined)
    .map((part) => (typeof part === 'string' ? part : JSON.stringify(part)));
  const text = config.text_config as Json | null | undefined;
  const own = text && typeof text === 'object' ? text : config;
  const near = [own.model_type, type].find((name) => typeof name === 'string') as string | undefined;
  const [nearest] = tables
    .filter((table) => !table.text)
    .map((table) => compared(table, own, near ?? textOf(classes[0]), dir))
    .sort((a, b) => a.score - b.score);
  const differs = nearest && [
    ...(nearest.unread.length > 0 ? [`it does not read ${listed(nearest.unread)}`] : []),
    ...(nearest.problem === undefined ? [] : [nearest.problem]),
  ];
  return new LpqError('LPQ_ARCH_UNKNOWN', `${dir}/config.json names an architecture that lpq does not know`, {
    got: got.join(', ') || 'neither model_type nor architectures',
    expected: nearest?.kin
      ? `a known one; the nearest to config.json is ${nearest.table.modelType} (${nearest.table.className}): ${differs?.join('; ') || 'it reads every key'}`
      : tables.map((table) => `${table.modelType} (${table.className})`).join(', '),
    hint: 'If its class computes the same as the nearest, set "model_type" and "architectures" in a copy of config.json; otherwise add a table (CONTRIBUTING.md, "Adding an architecture").',
  });
}

interface Compared {
  readonly table: Architecture;
  /** Lower is nearer. */
  readonly score: number;
  readonly unread: readonly string[];
  readonly problem: string | undefined;
  /** Whether it is worth a word: its table fits, or it is called alike. */
  readonly kin: boolean;
}

function compared(table: Architecture, config: Json, name: string, dir: string): Compared {
  const read = new Set(strings(table));
  const unread = Object.entries(config)
    .filter(([key, value]) => value !== null && value !== false && !read.has(key))
    .map(([key]) => key)
    .filter((key) => !PLANNED.test(key) && !BESIDE.test(key));
  const problem = problemOf(table, config, dir);
  const apart = distance(name.toLowerCase(), table.modelType) / Math.max(name.length, table.modelType.length);
  // Some tables have a default for every size.
  const sized = (table.sizes?.hidden ?? ['hidden_size']).some((key) => key in config);
  const kin = (sized && problem === undefined) || apart <= KIN;
  return { table, unread, problem, kin, score: unread.length + 6 * apart + (problem === undefined ? 0 : 4) };
}

/** Why the table cannot be read together with this config.json. */
function problemOf(table: Architecture, config: Json, dir: string): string | undefined {
  try {
    planModel(table, config, dir);
    return undefined;
  } catch (error) {
    if (error instanceof LpqError) return error.message;
    throw error;
  }
}

/** Every string inside a table: the keys of config.json among them. */
function strings(value: unknown): string[] {
  if (typeof value === 'string') return [value];
  if (typeof value !== 'object' || value === null) return [];
  return Object.values(value).flatMap(strings);
}

function listed(keys: readonly string[]): string {
  const some = keys.slice(0, LISTED).map((key) => `'${key}'`);
  return keys.length > LISTED ? `${some.join(', ')} and ${keys.length - LISTED} more keys` : some.join(', ');
}
