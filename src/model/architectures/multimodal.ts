import type { Architecture } from '../architecture.js';
import type { NameVariant } from '../tables/names.js';
import { deepseekV3, kimiK2 } from './deepseek_v3.js';
import { gemma3Text } from './gemma3.js';
import { gemma3nText } from './gemma3n.js';
import { gemma4Text } from './gemma4.js';
import { glm4v } from './glm4.js';
import { llama4Text } from './llama4.js';
import { minimaxM3Text } from './minimax_m3.js';
import { ministral3 } from './ministral3.js';
import { mistral } from './mistral.js';
import { qwen25Vl } from './qwen2.js';
import { qwen3 } from './qwen3.js';
import { qwen35, qwen35Moe } from './qwen3_next.js';
import { qwen3VlMoe } from './qwen3-moe.js';

/**
 * A model of more than text: its language model is that of a table for text, below another path and with its settings inside
 * `text_config`. Everything else (towers for images, projectors) is carried through as it is.
 *
 * Positions of several axes (M-RoPE: time, height, width) are equal in text, and the shares of a head that turn by each of them
 * then turn by the same angles as RoPE's: the table for text holds.
 */
interface Multimodal {
  readonly modelType: string;
  readonly className: string;
  /** The table of the language model, by the model_type of `text_config`; the first where that names none. */
  readonly language: Readonly<Record<string, Architecture>>;
  /** Other places of the language model in published checkpoints than PLACE. */
  readonly published: readonly Place[];
  /** Older files have the language model's settings in config.json itself. */
  readonly flat?: true;
  /** Whether the head shares the embedding's weight where config.json does not say. */
  readonly tied: boolean;
  readonly defaults?: Readonly<Record<string, unknown>>;
}

/** Where a checkpoint has the base language model and the head. */
interface Place {
  readonly base: string;
  readonly head: string;
  /** What it calls the list of blocks. */
  readonly blocks?: string;
}

/** The paths inside the classes of transformers 5. */
const PLACE: Place = { base: 'model.language_model.', head: 'lm_head' };
/** What wraps a whole language model. */
const WRAPPED: Place = { base: 'language_model.model.', head: 'language_model.lm_head' };
/** Towers beside the language model's own paths. */
const PLAIN: Place = { base: 'model.', head: 'lm_head' };

const MULTIMODAL: readonly Multimodal[] = [
  {
    modelType: 'gemma3',
    className: 'Gemma3ForConditionalGeneration',
    language: { gemma3_text: gemma3Text },
    published: [WRAPPED],
    tied: true,
    // Published files leave most sizes to the class.
    defaults: {
      vocab_size: 262_208,
      hidden_size: 2304,
      intermediate_size: 9216,
      num_hidden_layers: 26,
      num_attention_heads: 8,
      num_key_value_heads: 4,
    },
  },
  {
    modelType: 'gemma3n',
    className: 'Gemma3nForConditionalGeneration',
    language: { gemma3n_text: gemma3nText },
    published: [],
    tied: true,
  },
  {
    modelType: 'gemma4',
    className: 'Gemma4ForConditionalGeneration',
    language: { gemma4_text: gemma4Text },
    published: [],
    tied: true,
  },
  {
    modelType: 'glm4v',
    className: 'Glm4vForConditionalGeneration',
    language: { glm4v_text: glm4v },
    published: [],
    flat: true,
    tied: false,
  },
  {
    modelType: 'kimi_k25',
    className: 'Kimi_K25ForConditionalGeneration',
    language: { deepseek_v3: deepseekV3, kimi_k2: kimiK2 },
    // transformers 5 writes 'blocks' when it saves: it renames what its vision tower is made of, and the language model with it.
    published: [WRAPPED, { ...WRAPPED, blocks: 'blocks' }],
    tied: true,
  },
  {
    modelType: 'llama4',
    className: 'Llama4ForConditionalGeneration',
    language: { llama4_text: llama4Text },
    published: [WRAPPED],
    tied: false,
  },
  {
    modelType: 'minimax_m3_vl',
    className: 'MiniMaxM3SparseForConditionalGeneration',
    language: { minimax_m3_vl_text: minimaxM3Text, minimax_m3_text: minimaxM3Text },
    published: [WRAPPED],
    tied: false,
  },
  {
    modelType: 'mistral3',
    className: 'Mistral3ForConditionalGeneration',
    language: { mistral, ministral3 },
    published: [WRAPPED],
    tied: true,
  },
  {
    modelType: 'qwen2_5_vl',
    className: 'Qwen2_5_VLForConditionalGeneration',
    language: { qwen2_5_vl_text: qwen25Vl },
    published: [PLAIN],
    flat: true,
    tied: false,
  },
  {
    modelType: 'qwen3_5',
    className: 'Qwen3_5ForConditionalGeneration',
    language: { qwen3_5_text: qwen35 },
    published: [],
    tied: false,
  },
  {
    modelType: 'qwen3_5_moe',
    className: 'Qwen3_5MoeForConditionalGeneration',
    language: { qwen3_5_moe_text: qwen35Moe },
    published: [],
    tied: false,
  },
  {
    modelType: 'qwen3_vl',
    className: 'Qwen3VLForConditionalGeneration',
    language: { qwen3_vl_text: qwen3 },
    published: [],
    tied: false,
  },
  {
    modelType: 'qwen3_vl_moe',
    className: 'Qwen3VLMoeForConditionalGeneration',
    language: { qwen3_vl_moe_text: qwen3VlMoe },
    published: [],
    tied: false,
  },
];

/** Tables of whole models: one for each kind of language model that a class may hold, the one meant without a name first. */
export const MULTIMODAL_TABLES: readonly (Architecture & { readonly text: NonNullable<Architecture['text']> })[] =
  MULTIMODAL.flatMap((model) =>
    Object.entries(model.language).map(([type, table]) => {
      const names = moved(table, PLACE);
      return {
        ...table,
        modelType: model.modelType,
        className: model.className,
        text: { key: 'text_config', modelType: type, ...(model.flat && { flat: true as const }) },
        ...(model.defaults && { defaults: { ...table.defaults, ...model.defaults } }),
        tied: { keys: ['tie_word_embeddings'], otherwise: model.tied },
        names: { ...names, variants: model.published.map((place): NameVariant => variant(table, place)) },
      };
    }),
  );

function moved({ names }: Architecture, { base, head, blocks }: Place): Architecture['names'] {
  const { variants: _, ...own } = names;
  const at = (path: string) => path.replace(/^model\./, base);
  const block = blocks === undefined ? own.block : own.block.replace('layers', blocks);
  const all = Object.entries({ ...own, block }).map(([key, path]) => [key, at(path)]);
  return { ...(Object.fromEntries(all) as typeof own), head };
}

function variant(table: Architecture, place: Place): NameVariant {
  const { block, head } = moved(table, place);
  return { prefix: PLACE.base, instead: place.base, block, head };
}
