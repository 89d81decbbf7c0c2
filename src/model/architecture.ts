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
}

/** y = down(act(gate x) * up x). */
export interface GatedMlpTable {
  readonly names: { readonly norm: string; readonly gate: string; readonly up: string; readonly down: string };
  readonly bias: Setting<boolean>;
  readonly activation: { readonly keys: readonly string[]; readonly otherwise: string };
  readonly intermediate: readonly string[];
}

/** A softmax router that sends each token to its top k of E gated MLPs. */
export interface ExpertsTable {
  readonly names: { readonly router: string; readonly gate: string; readonly up: string; readonly down: string };
  /** Keys of config.json: E, k and the experts' intermediate size. */
  readonly count: readonly string[];
  readonly perToken: readonly string[];
  readonly intermediate: readonly string[];
  /** Whether the k weights are divided by their sum. */
  readonly normalize: Setting<boolean>;
  /** Blocks with (index + 1) divisible by this have experts, unless the list under `denseBlocks` has the index. */
  readonly every: Setting<number>;
  readonly denseBlocks: string;
}
