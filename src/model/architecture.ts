import type { Setting } from './config.js';

/**
 * An architecture is this table and nothing else; plan.ts reads it together with a config.json. Names are module paths
 * without `.weight`; those of a block are relative to `names.block`, in which {layer} is replaced, as {expert} is in the
 * names of experts.
 */
export interface Architecture {
  /** `model_type` of config.json, and the class in `architectures` that stands for it in files without one. */
  readonly modelType: string;
  readonly className: string;
  readonly names: {
    readonly embedding: string;
    readonly finalNorm: string;
    readonly head: string;
    readonly block: string;
  };
  /** True: lm_head shares the embedding's weight. */
  readonly tied: Setting<boolean>;
  readonly norm: { readonly kind: 'rms'; readonly epsilon: Setting<number> };
  readonly attention: AttentionTable;
  /** Present where attention is latent (MLA): `attention` then says nothing but the rotary theta and the norm's name. */
  readonly mla?: MlaTable;
  readonly mlp: GatedMlpTable;
  /** Present where (some) blocks have a mixture of experts in the place of the MLP. */
  readonly experts?: ExpertsTable;
}

/** Grouped-query attention with rotary positions. */
export interface AttentionTable {
  readonly names: {
    readonly norm: string;
    readonly q: string;
    readonly k: string;
    readonly v: string;
    readonly o: string;
    /** RMS norms over the dimensions of each head, applied before the rotation. */
    readonly qNorm?: string;
    readonly kNorm?: string;
    /** A tensor [heads] of logits that take part in each head's softmax without a value. */
    readonly sinks?: string;
  };
  readonly bias: {
    readonly q: Setting<boolean>;
    readonly k: Setting<boolean>;
    readonly v: Setting<boolean>;
    readonly o: Setting<boolean>;
  };
  /** Dimensions of a head where the config does not say: a number, or hidden_size / num_attention_heads. */
  readonly headDim: number | 'hidden/heads';
  readonly rope: { readonly style: 'half' | 'interleaved'; readonly theta: number };
  readonly window: WindowTable;
}

/** Which blocks see only a sliding window of `sliding_window` tokens, the own one included. */
export interface WindowTable {
  /** False: no block, whatever `sliding_window` says. */
  readonly enabled: Setting<boolean>;
  /** The size where the key is absent; an explicit null or 0 means none. */
  readonly otherwise: number | null;
  /** The first blocks, this many, have no window. */
  readonly fullBlocks: Setting<number>;
  /** True: `layer_types` (sliding_attention, full_attention), where present, decides block by block. */
  readonly layerTypes: boolean;
  /** Where `layer_types` does not decide: every second block has the window, the first one included, up to so many blocks. */
  readonly alternateUpTo?: Setting<number>;
}

/** y = down(act(gate x) * up x). */
export interface GatedMlpTable {
  readonly names: { readonly norm: string; readonly gate: string; readonly up: string; readonly down: string };
  readonly bias: Setting<boolean>;
  readonly activation: { readonly keys: readonly string[]; readonly otherwise: string };
  readonly intermediate: readonly string[];
}

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
  /** Of qA, kvA and o; the others have none. */
  readonly bias: Setting<boolean>;
  /** Of the norms of compressed vectors, whatever the model's other norms say. */
  readonly epsilon: number;
  /** Whether rotated pairs are neighbours. */
  readonly interleaved: Setting<boolean>;
  /** Whether YaRN's `mscale_all_dim` also multiplies the scores, squared. */
  readonly scaleScores: boolean;
}

/** A router that sends each token to its top k of E gated MLPs. */
export interface ExpertsTable {
  readonly names: {
    readonly router: string;
    readonly gate: string;
    readonly up: string;
    readonly down: string;
    /** A tensor [E] that is added to the shares when experts are chosen, and not to their weights. */
    readonly choiceBias?: string;
  };
  /** Keys of config.json: E, k and the experts' intermediate size. */
  readonly count: readonly string[];
  readonly perToken: readonly string[];
  readonly intermediate: readonly string[];
  /** Biases of the router and of the experts' linears. */
  readonly bias?: { readonly router: boolean; readonly experts: boolean };
  /** Shares: a softmax over all experts (default), or a sigmoid each. */
  readonly scoring?: Setting<string>;
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
  readonly gate?: { readonly alpha: Setting<number>; readonly limit: Setting<number> };
  /** An MLP that every token goes through beside its experts. */
  readonly shared?: SharedExpertTable;
  /** Blocks with (index + 1) divisible by this have experts, unless the list under `denseBlocks` has the index. */
  readonly every: Setting<number>;
  readonly denseBlocks: string;
  /** Key of how many blocks come first without experts, and of the step between blocks with experts (by index). */
  readonly firstDense?: string;
  readonly frequency?: string;
  /** Tensors that hold the linears of all experts of a block: src/model/fused-experts.ts reads them one by one. */
  readonly fused?: readonly FusedExpertsTable[];
}

export interface SharedExpertTable {
  readonly names: { readonly gate: string; readonly up: string; readonly down: string };
  /** Its intermediate size: a key of its own, or so many times the experts'. */
  readonly intermediate: { readonly keys: readonly string[] } | { readonly timesKey: string };
  /** A linear to one number, whose sigmoid multiplies the output. */
  readonly outputGate?: string;
}

/** One tensor [E, K, parts * N], i.e. transposed: each expert's linears of `parts`, their columns taking turns. */
export interface FusedExpertsTable {
  readonly tensor: string;
  /** [E, parts * N]. */
  readonly bias: string;
  readonly parts: readonly ('gate' | 'up' | 'down')[];
}
