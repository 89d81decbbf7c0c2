import type { Setting } from './config.js';
import type { RecurrentTable } from './mixers/table.js';
import type { CompressedTable } from './plan-compressed.js';
import type { HyperTable } from './plan-hyper.js';
import type { BlockIndexerTable, IndexerTable } from './plan-indexer.js';

/**
 * An architecture is this table and nothing else; plan.ts reads it together with a config.json. Names are module paths
 * without `.weight`; those of a block are relative to `names.block`, in which {layer} is replaced, as {expert} is in the
 * names of experts. Fields that are left out mean what Llama does.
 */
export interface Architecture {
  /** `model_type` of config.json, and the class in `architectures` that stands for it in files without one. */
  readonly modelType: string;
  readonly className: string;
  /** Keys of config.json that hold sizes, where the class has names of its own. */
  readonly sizes?: Partial<SizeKeys>;
  /**
   * How many blocks one layer of config.json is (1): names have the block's index for {part}, and the layer's for {layer}. The first
   * has the experts, whose sum is added behind the last; its MLP is their shared expert.
   */
  readonly parts?: number;
  /** Where config.json has the language model's settings, in models of more than text; `defaults` are its class's. */
  readonly text?: TextTable;
  readonly defaults?: Readonly<Record<string, unknown>>;
  readonly published?: PublishedKeys;
  /** Present where a block has one branch, with the names of attention, MLP and experts alike. */
  readonly single?: SingleBranch;
  /** Names in blocks, and what checkpoints without those have instead. */
  readonly respelled?: readonly (readonly [name: string, instead: string])[];
  /** Keys that change the computation in ways lpq does not know, with the only value it takes; absent and null pass. */
  readonly only?: Readonly<Record<string, unknown>>;
  readonly names: {
    /** Other spellings in published checkpoints. */
    readonly variants?: readonly NameVariant[];
    readonly embedding: string;
    /** Learned positions, added to the embedding. */
    readonly positions?: string;
    /** Linears between an embedding of another width and the blocks, and back before the head. */
    readonly projectIn?: string;
    readonly projectOut?: string;
    readonly finalNorm: string;
    readonly head: string;
    readonly block: string;
    /** Of PerLayerTable: the table of all blocks, the linear beside it, and the norm of what that makes. */
    readonly perLayer?: string;
    readonly perLayerLinear?: string;
    readonly perLayerNorm?: string;
    /** Of AltUpTable: linears that make stream {stream} of the embedding, and back behind the last block. */
    readonly streamIn?: string;
    readonly streamOut?: string;
  };
  /** True: lm_head shares the embedding's weight. */
  readonly tied: Setting<boolean>;
  /** True: lm_head has a bias. */
  readonly headBias?: Setting<boolean>;
  readonly norm: NormTable;
  readonly embedding?: EmbeddingTable;
  readonly residual?: ResidualTable;
  readonly logits?: LogitsTable;
  /** True: linears of blocks are stored as [K, N] (Conv1D). */
  readonly transposed?: boolean;
  readonly attention: AttentionTable;
  /** Present where attention is latent (MLA), in the place of `attention`. */
  readonly mla?: MlaTable;
  /** Present where attention reads entries of older tokens, in the place of `attention`. */
  readonly compressed?: CompressedTable;
  readonly hyper?: HyperTable;
  /** Present where (some) blocks have a recurrent layer in the place of attention. */
  readonly recurrent?: RecurrentTable;
  readonly mlp: MlpTable;
  /** Present where (some) blocks have a mixture of experts in the place of the MLP. */
  readonly experts?: ExpertsTable;
  readonly perLayer?: PerLayerTable;
  readonly altUp?: AltUpTable;
  /** A tensor [1] that multiplies what a block makes. */
  readonly blockScale?: string;
}

/**
 * Per-layer embeddings: every token has a vector of `size` numbers for each block i, p_i = (norm(linear(h)_i / sqrt(hidden)) +
 * table[id]_i * sqrt(size)) / sqrt(2) of the embedding h, and the block ends in h += postNorm(back(act(gate h) * p_i)). Names of the
 * block; those outside are among `names`. Size 0: none.
 */
export interface PerLayerTable {
  readonly size: Setting<number>;
  readonly vocab: Setting<number>;
  readonly gate: string;
  readonly back: string;
  readonly postNorm: string;
}

/** An object in config.json, with the model_type inside it that the table is for; `flat`: older files have its keys outside. */
export interface TextTable {
  readonly key: string;
  readonly modelType: string;
  readonly flat?: true;
}

/** The types that `layer_types` gives to blocks of one branch, beside those of recurrent layers. */
export interface SingleBranch {
  readonly attention: readonly string[];
  readonly mlp: readonly string[];
  readonly experts: readonly string[];
}

/** What the authors' config.json calls otherwise than the class does. */
export interface PublishedKeys {
  /** A list of numbers under `key`: the class's list `as`, of the names at those indices. */
  readonly lists: readonly { readonly key: string; readonly as: string; readonly of: readonly string[] }[];
  /** Keys that say again what another does, or so many times that. */
  readonly same: Readonly<Record<string, { readonly as: string; readonly times?: number }>>;
  /** The key of the theta of blocks with a window, beside rope_theta and partial_rotary_factor. */
  readonly rope?: { readonly local: string };
  /** What gives layer_types and their number: a list of types, or a string with a letter for each. */
  readonly blockTypes?: {
    readonly list: string;
    readonly pattern: string;
    readonly letters: Readonly<Record<string, string>>;
  };
  /** An object whose settings the class has outside, by its keys; `blocks`: lists of blocks, counted from 1, that are each of a type. */
  readonly within?: {
    readonly key: string;
    readonly settings: Readonly<Record<string, string>>;
    readonly blocks: { readonly as: string; readonly types: Readonly<Record<string, string>> };
  };
}

/** A prefix spelled in another way: '' for the path of the base model, which checkpoints saved from its class leave out. */
export interface NameVariant {
  readonly prefix: string;
  readonly instead: string;
  /** Names that differ by more; the head's only where the checkpoint has it. */
  readonly block?: string;
  readonly head?: string;
}

export interface SizeKeys {
  readonly hidden: readonly string[];
  readonly layers: readonly string[];
  readonly heads: readonly string[];
  readonly kvHeads: readonly string[];
  readonly positions: readonly string[];
}

/** rms: x / rms(x) * (weight + offset). layer: (x - mean) / deviation * weight + bias. */
export interface NormTable {
  readonly kind: 'rms' | 'layer';
  readonly epsilon: Setting<number>;
  /** Added to the stored weight (Gemma, Nemotron: 1). */
  readonly offset?: number;
  /** Of LayerNorms: whether they have a bias, and whether they have a weight at all. */
  readonly bias?: Setting<boolean>;
  readonly affine?: Setting<boolean>;
}

export interface EmbeddingTable {
  /** Multiplies embeddings; the square root of hidden_size, or a number. */
  readonly scale?: 'root-hidden' | Setting<number>;
  /** Keys of the embedding's width where it may differ from the hidden size. */
  readonly width?: readonly string[];
  /** Row of the learned positions that position 0 reads; so many rows come before the first. */
  readonly firstPosition?: number;
}

/** How branches (attention, MLP) come back into the residual stream h. */
export interface ResidualTable {
  /** h += multiplier * branch(h). */
  readonly multiplier?: Setting<number>;
  /** Of attention and of a recurrent layer beside it, where they have their own. */
  readonly mixers?: { readonly attention: Setting<number>; readonly recurrent: Setting<number> };
  /** True: attention and MLP both read the h that entered the block. */
  readonly parallel?: Setting<boolean>;
  /** True: side by side, the MLP reads what attention's norm makes; otherwise it has a norm of its own all the same. */
  readonly sharedNorm?: true;
  /** False: `norm` of each branch stands after the sum, h = norm(h + branch(h)), and there is no final norm. */
  readonly normFirst?: Setting<boolean>;
  /** True: no final norm, although norms come first. */
  readonly withoutFinalNorm?: Setting<boolean>;
}

/** logits = softCap(head(x) * multiply / divide), softCap c: c * tanh(. / c). */
export interface LogitsTable {
  readonly multiply?: Setting<number>;
  readonly divide?: Setting<number>;
  readonly softCap?: Setting<number>;
}

/** One linear each for q, k and v, or one for all: 'parts' has the rows of q, k and v one after another, 'heads' those of each head. */
type ProjectionNames =
  | { readonly q: string; readonly k: string; readonly v: string }
  | { readonly qkv: string; readonly order: 'parts' | 'heads' };

/** Grouped-query attention. */
export interface AttentionTable {
  readonly names: ProjectionNames & {
    /** Before the projections; none where only the branch's output is normalised. */
    readonly norm?: string;
    /** Of the branch's output, before it is added. */
    readonly postNorm?: string;
    readonly o: string;
    /** Norms of q and k, applied before the rotation. */
    readonly qNorm?: string;
    readonly kNorm?: string;
    /** A tensor [heads] of logits that take part in each head's softmax without a value. */
    readonly sinks?: string;
  };
  /** True: only blocks with a window have sinks. */
  readonly slidingSinks?: true;
  /** How many times as many heads of keys and values blocks with a window have. */
  readonly slidingKvHeads?: number;
  /** Keys of the dimensions of a head's value, where they may differ from those of its key. */
  readonly valueDim?: readonly string[];
  /** Blocks without a window have sizes of their own. */
  readonly full?: FullAttentionTable;
  /** True: values go through an RMS norm of each head without a weight. */
  readonly valueNorm?: true;
  /** Key of how many blocks come last that read the keys and values of the last block before them with (or without) a window. */
  readonly sharedKv?: Setting<number>;
  /** True: q has, head by head, as many rows more, whose sigmoid multiplies what attention makes. */
  readonly outputGate?: true;
  /** Multiplies values; an explicit null is 1. */
  readonly valueScale?: Setting<number>;
  readonly headNorm?: HeadNormTable;
  readonly bias: {
    readonly q: Setting<boolean>;
    readonly k: Setting<boolean>;
    readonly v: Setting<boolean>;
    readonly o: Setting<boolean>;
  };
  /** Dimensions of a head where the config does not say (null: always the quotient): a number, or hidden_size / num_attention_heads. */
  readonly headDim: number | 'hidden/heads';
  readonly scale?: ScaleTable;
  /** c: scores are c * tanh(score / c); an explicit null is none. */
  readonly softCap?: Setting<number>;
  /** None: positions are learned, or not told. */
  readonly rope?: RopeTable;
  readonly window: WindowTable;
  /** Queries that grow with their position. */
  readonly temperature?: TemperatureTable;
  /** Present where tokens of some blocks see only runs of keys that an indexer chooses. */
  readonly indexer?: BlockIndexerTable;
  /** Blocks that see only their chunk of so many tokens: those of chunked_attention in layer_types, without it those that rotate. */
  readonly chunk?: Setting<number>;
}

/**
 * Alternating updates (AltUp, arXiv:2301.13310) as Gemma 3n has them: `inputs` streams, of which a block computes the first alone. With
 * m = tanh(router(norm(x) / hidden)) of the first stream x: the block predicts every stream, s_b + sum over a of predict(m)[b * inputs + a]
 * * s_a, computes on the first, and corrects each by (correct(m) + 1) times what it computed less what was predicted, m then of what it
 * computed. Per-layer embeddings add to all streams but the first, their input being that times `outputScale` [hidden]. LAuReL
 * (arXiv:2411.07501): x + norm(right(left x)) of attention's input joins what attention leaves, both over sqrt(2).
 */
export interface AltUpTable {
  readonly inputs: Setting<number>;
  readonly routerNorm: string;
  readonly router: string;
  readonly predict: string;
  readonly correct: string;
  readonly outputScale: string;
  readonly scaled: Setting<boolean>;
  readonly laurel: {
    readonly left: string;
    readonly right: string;
    readonly norm: string;
    readonly rank: Setting<number>;
  };
}

/** Sizes of blocks without a window. */
export interface FullAttentionTable {
  /** Key of an object of settings by block index, which counts alone where it is present; head_dim and num_key_value_heads are read. */
  readonly byBlock: string;
  readonly headDim: Setting<number>;
  /** A key that counts where `keysAsValues` holds. */
  readonly kvHeads: string;
  /** True: no linear makes values, which are what that of keys made, before its norm. */
  readonly keysAsValues: Setting<boolean>;
}

/** Norms of q and k. */
export interface HeadNormTable {
  /**
   * What they run over: each head with one weight [headDim] (the default), each head with weights of its own [heads, headDim], or a
   * tensor each where the name holds {head}, or all heads together [heads * headDim].
   */
  readonly over?: 'head' | 'own-head' | 'all';
  readonly enabled?: Setting<boolean>;
  /** False: LayerNorms without a bias, whatever the model's norms have. */
  readonly bias?: false;
  /** True: applied after the rotation. */
  readonly afterRotation?: true;
  /** True: RMS norms without a weight, of the blocks that rotate. */
  readonly bare?: true;
}

/** A query at position p is multiplied by 1 + beta * ln(1 + floor((p + offset) / length)); no beta: by nothing. */
export interface TemperatureTable {
  /** 'rope': the keys stand in rope_parameters. */
  readonly from?: 'rope';
  /** False: none. Numbers count as true, but for 0. */
  readonly enabled?: { readonly keys: readonly string[]; readonly otherwise: boolean };
  /** True: only in blocks that rotate nothing. */
  readonly unrotated?: true;
  readonly beta: Setting<number>;
  readonly length: Setting<number>;
  readonly offset: number;
}

/** What multiplies q kᵀ: 1 / sqrt(headDim) unless this says otherwise. */
export interface ScaleTable {
  /** 1 / sqrt of this number. */
  readonly rootOf?: Setting<number>;
  /** This number itself. */
  readonly factor?: Setting<number>;
  /** More factors. */
  readonly times?: readonly Setting<number>[];
  /** False: 1. */
  readonly enabled?: Setting<boolean>;
  /** True: divided by the index of the block, counted from 1. */
  readonly byLayer?: Setting<boolean>;
}

export interface RopeTable {
  readonly style: 'half' | 'interleaved';
  /** Defaults of the class. */
  readonly theta: number;
  readonly share?: number;
  /** True: the class rotates only the first `partial_rotary_factor` of a head. Others read no such key. */
  readonly partial?: boolean;
  /** Nothing is rotated unless a key has this value. */
  readonly when?: { readonly key: string; readonly is: string };
  /** True: with an explicit null as theta nothing is rotated. */
  readonly nullable?: true;
  /** Blocks without a window rotate nothing: always, or only where `sliding_window` says that there are windows. */
  readonly slidingOnly?: 'always' | 'if-windowed';
  /** Blocks that rotate nothing: those of 0 in the list under `list`, where absent every so-many-th. */
  readonly skip?: { readonly list: string; readonly every: Setting<number> };
  /** Older keys, beside rope_theta and partial_rotary_factor. */
  readonly thetaKeys?: readonly string[];
  readonly shareKeys?: readonly string[];
  /** A key of older files, those without rope_parameters: how many dimensions of a head turn. */
  readonly dimensions?: string;
  /** The theta of blocks with a window, which take no scaling. */
  readonly local?: Setting<number>;
  /** The trained length where LongRoPE's files do not state it. */
  readonly original?: number;
  /** True: 'dynamic' with `alpha` is theta * alpha^(d / (d - 2)) for every length (Hunyuan). */
  readonly alpha?: true;
  /** What rope_parameters are where the file has neither these nor rope_scaling. */
  readonly parameters?: Readonly<Record<string, unknown>>;
  /** True: LongRoPE's `short_mscale` and `long_mscale` multiply cos and sin. */
  readonly mscales?: true;
  /** Other names of scalings in older files. */
  readonly kinds?: Readonly<Record<string, string>>;
}

/** Which blocks see only a sliding window of `sliding_window` tokens, the own one included. */
export interface WindowTable {
  /** False: no block, whatever `sliding_window` says. */
  readonly enabled: Setting<boolean>;
  /** The size where the key is absent; an explicit null or 0 means none. */
  readonly otherwise: number | null;
  /** The first blocks, this many, have no window. */
  readonly fullBlocks: Setting<number>;
  /** Every so-many-th block has no window. */
  readonly fullEvery?: Setting<number>;
  /** True: `layer_types` (sliding_attention, full_attention), where present, decides block by block. */
  readonly layerTypes: boolean;
  /** Where `layer_types` does not decide: every second block has the window, the first one included, up to so many blocks. */
  readonly alternateUpTo?: Setting<number>;
  /** True: the last block has none, whatever `layer_types` says. */
  readonly lastFull?: true;
  /** True: where `layer_types` does not decide, the blocks that rotate nothing have the window, and no other. */
  readonly unrotated?: true;
}

interface MlpCommon {
  readonly bias: Setting<boolean>;
  readonly activation: { readonly keys: readonly string[]; readonly otherwise: string };
  readonly intermediate: readonly string[];
  /** The size where none of the keys is set: so many times the hidden size. */
  readonly widening?: number;
  /**
   * Key of the share of what `gate` makes, block by block, that is set to 0; where it is absent `otherwise` in the first `blocks` blocks
   * of models of more.
   */
  readonly sparsity?: { readonly list: string; readonly otherwise: number; readonly blocks: number };
  /** Key of a pair of numbers: what multiplies what gate makes, and what multiplies the output. */
  readonly multipliers?: string;
  /** Whether blocks that read another block's keys and values have twice the size. */
  readonly doubledShared?: Setting<boolean>;
  /** Where `enabled`, the size is two thirds of what the keys say, times `times`, rounded up to a multiple (LFM2). */
  readonly adjusted?: {
    readonly enabled: Setting<boolean>;
    readonly times: Setting<number>;
    readonly multiple: Setting<number>;
  };
}

interface MlpNorms {
  readonly norm?: string;
  readonly postNorm?: string;
}

/** y = down(act(gate x) * up x). */
export interface GatedMlpTable extends MlpCommon {
  readonly kind?: 'gated';
  readonly names: MlpNorms & { readonly gate: string; readonly up: string; readonly down: string };
}

/** The same with one linear for gate and up: the rows of gate, then those of up. */
export interface FusedMlpTable extends MlpCommon {
  readonly kind: 'fused';
  readonly names: MlpNorms & { readonly gateUp: string; readonly down: string };
  /** GPT-OSS's clamped gate in the place of the activation. */
  readonly gate?: ClampTable;
}

export interface ClampTable {
  readonly alpha: Setting<number>;
  readonly limit: Setting<number>;
}

/** y = down(act(up x)). */
export interface PlainMlpTable extends MlpCommon {
  readonly kind: 'plain';
  /** `xielu`: the module of that activation's parameters alpha_p, alpha_n, beta and eps. */
  readonly names: MlpNorms & { readonly up: string; readonly down: string; readonly xielu?: string };
}

export type MlpTable = GatedMlpTable | FusedMlpTable | PlainMlpTable;

/**
 * Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): keys and values come from one compressed vector
 * a token, of `kv_lora_rank` dimensions, beside a rotary key that all heads share; queries likewise where `q_lora_rank` is
 * set. A head has `qk_nope_head_dim` + `qk_rope_head_dim` dimensions, its value `v_head_dim`.
 */
export interface MlaTable {
  readonly names: {
    readonly norm: string;
    /** Without compressed queries. */
    readonly q: string;
    readonly qA: string;
    readonly qNorm: string;
    readonly qB: string;
    readonly kvA: string;
    readonly kvNorm: string;
    readonly kvB: string;
    readonly o: string;
  };
  /** Rotary theta of the class; none: nothing is rotated. */
  readonly theta?: number;
  /** Of qA, kvA and o; the others have none. */
  readonly bias: Setting<boolean>;
  /** Of the norms of compressed vectors, whatever the model's other norms say. */
  readonly epsilon: number;
  /** Whether rotated pairs are neighbours. */
  readonly interleaved: Setting<boolean>;
  /** True: queries and the compressed vectors of keys and values are multiplied by the root of hidden / their rank. */
  readonly rankScales?: true;
  /** Whether YaRN's `mscale_all_dim` also multiplies the scores, squared. */
  readonly scaleScores: boolean;
  /** Present where each token sees only keys that an indexer chooses; those turn, as `theta` says. */
  readonly indexer?: IndexerTable;
}

/** A router that sends each token to its top k of E gated MLPs. */
export interface ExpertsTable {
  readonly names: {
    readonly router: string;
    /** None: y = down(act(up x)). */
    readonly gate?: string;
    readonly up: string;
    readonly down: string;
    /** A tensor [E] that is added to the shares when experts are chosen, and not to their weights. */
    readonly choiceBias?: string;
  };
  /** Keys of config.json: E, k and the experts' intermediate size. `noneUpTo`: with so many or fewer no block has any. */
  readonly noneUpTo?: number;
  readonly count: readonly string[];
  readonly perToken: readonly string[];
  readonly intermediate: readonly string[];
  /** Biases of the router and of the experts' linears. */
  readonly bias?: { readonly router: Setting<boolean>; readonly experts: boolean };
  /** Zero-computation experts (arXiv:2509.01322, section 2.1): so many more to choose from, which hand on what they read. */
  readonly idle?: Setting<number>;
  /** True: the tensor of `choiceBias` is [1, E]. */
  readonly choiceBiasRow?: true;
  /** Shares: a softmax over all experts (default), a sigmoid each, or the root of a softplus (sqrtsoftplus). */
  readonly scoring?: Setting<string>;
  /** SparseMixer's jitter (native/ops/routing.h), in the place of shares; 0: none. */
  readonly jitter?: Setting<number>;
  /** True: the weights multiply what experts read, not what they make. */
  readonly weighInput?: true;
  /** Whether the k weights are divided by their sum. */
  readonly normalize: Setting<boolean>;
  /** Multiplies the weights; default 1. */
  readonly scale?: Setting<number>;
  /** Only experts of the `top_k` best of `count` groups are chosen from; the score of a group is that of its best, or two best. */
  readonly groups?: {
    /** A key of config.json that must have one of the values `on`; absent: always. */
    readonly when?: { readonly key: string; readonly on: string; readonly off: string };
    readonly count: string;
    readonly top: string;
    readonly score: 'best' | 'two best';
  };
  /** act(gate) * up (default), or GPT-OSS's clamped gate. */
  readonly gate?: ClampTable;
  /** act(min(gate, limit)) * clamp(up, -limit, limit), the shared expert's, too. */
  readonly limit?: Setting<number>;
  /** Blocks of `type` in a list choose experts by a table [vocabulary, k] of the tokens' ids, and have no bias for the choice. */
  readonly hashed?: {
    readonly table: string;
    readonly list: string;
    readonly type: string;
    readonly others: readonly string[];
  };
  /** A key without whose true no block has experts: tables are found without them then. */
  readonly enabled?: { readonly key: string };
  /** Experts, the MLP beside them (`shared`) and the router have norms of their own: src/model/plan-experts-apart.ts. */
  readonly apart?: {
    readonly norm: string;
    readonly postNorm: string;
    readonly sharedPostNorm: string;
    /** Tensors: [hidden], the weight of the router's norm; [E], which multiplies the weights of chosen experts. */
    readonly routerScale: string;
    readonly expertScale: string;
  };
  /**
   * Experts read and write vectors of so many dimensions, which one linear makes of the input and another turns back; both stay in 16
   * bits. Without the key experts read the input itself.
   */
  readonly latent?: { readonly size: string; readonly into: string; readonly back: string };
  /** An MLP that every token goes through beside its experts. */
  readonly shared?: SharedExpertTable;
  /** Key of a list that says of each block whether it is 'sparse' or 'dense'; where it is absent the rest decides. */
  readonly blockTypes?: string;
  /** Blocks with (index + 1) divisible by this have experts, unless the list under `denseBlocks` has the index. */
  readonly every: Setting<number>;
  /** Which of so many it is, in the place of the last. */
  readonly offset?: Setting<number>;
  readonly denseBlocks: string;
  /** Key of the list of all blocks with experts; where it is absent the rest decides. */
  readonly sparseBlocks?: string;
  /** How many blocks come first without experts, the index of the last one with them (-1: the last of all). */
  readonly firstDense?: Setting<number>;
  readonly lastSparse?: Setting<number>;
  /** Key of the step between blocks with experts (by index). */
  readonly frequency?: string;
  /** Tensors that hold the linears of all experts of a block: src/model/fused-experts.ts reads them one by one. */
  readonly fused?: readonly FusedExpertsTable[];
  /**
   * Of `fused`: which programs also know each expert's linears by `names`, as quantized checkpoints have them. all: every one; some: not
   * transformers, which looks for the fused tensors alone.
   */
  readonly named?: 'all' | 'some';
}

export interface SharedExpertTable {
  /** gateUp: one linear with the rows of gate, then those of up. No gate: y = down(act(up x)). */
  readonly names: ({ readonly gate?: string; readonly up: string } | { readonly gateUp: string }) & {
    readonly down: string;
  };
  /** Its intermediate size: a key of its own, or so many times the experts'. */
  readonly intermediate: { readonly keys: readonly string[] } | { readonly times: Setting<number> };
  /** A linear to one number, whose sigmoid multiplies the output. */
  readonly outputGate?: string;
}

/** One tensor of the linears `parts` of all experts of a block. */
export interface FusedExpertsTable {
  readonly tensor: string;
  /** [E, parts * N]. */
  readonly bias?: string;
  readonly parts: readonly ('gate' | 'up' | 'down')[];
  /** True: output features of the parts take turns; otherwise those of one part come after another's. */
  readonly interleaved?: true;
  /** [E, K, parts * N] or [E, parts * N, K]; either: whichever has the sizes of config.json, the latter where both do. */
  readonly stored: 'in-out' | 'out-in' | 'either';
}
