/**
 * Layers of multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2). Layer k reads, at a token, the states that the layer
 * before it makes there (the model's own for the first) and the embedding of the token k + 1 further on: both normed, side by side,
 * the embedding first, through a linear; then a block of attention follows as the model's are. Names have the layer's number for {layer}.
 */
export interface PredictionTable {
  /** Prefix of a layer's block. */
  readonly block: string;
  /** Whether {layer} goes on from the model's blocks, or begins at 0. */
  readonly numbered: 'on' | 'anew';
  /** What every name of such a layer begins with, and nothing else does. */
  readonly root: string;
  readonly names: {
    readonly embeddingNorm: string;
    readonly hiddenNorm: string;
    readonly projection: string;
    /** The norm of the head's input, if the layer has a separate one. */
    readonly finalNorm?: string;
  };
  /** Keys of config.json with the number of layers, for a config without weights. */
  readonly count: readonly string[];
  /** Attention is that of the model's first block, or of its first block with a window; absent: that of a block after its last. */
  readonly like?: 'first' | 'sliding';
  /** The norm before the MLP, if that of blocks differs. */
  readonly mlpNorm?: string;
  /** The MLP is that of blocks without experts; absent: that of the last block. */
  readonly dense?: true;
  /** The prefix of the block in vLLM, if its path differs there; {layer} continues the numbers of the model's blocks. */
  readonly vllmBlock?: string;
  /** Whether the next layer reads states behind finalNorm. */
  readonly normed: boolean;
  /** What vLLM calls a module otherwise, within the root, when it looks for it among those that are not quantized. */
  readonly aliases: Readonly<Record<string, string>>;
  /** What of such layers is never quantized, with the reason. */
  readonly carried: Readonly<Record<string, string>>;
}

export const PROJECTIONS_STAY =
  'one linear of a layer, of two inputs of different kinds; engines read it in 16 bits whatever the layer has';

/** As DeepSeek publishes them: blocks behind the last. */
export const FOLLOWING_BLOCKS: PredictionTable = {
  block: 'model.layers.{layer}.',
  numbered: 'on',
  root: 'model.layers.{layer}.',
  names: {
    embeddingNorm: 'model.layers.{layer}.enorm',
    hiddenNorm: 'model.layers.{layer}.hnorm',
    projection: 'model.layers.{layer}.eh_proj',
    finalNorm: 'model.layers.{layer}.shared_head.norm',
  },
  count: ['num_nextn_predict_layers'],
  normed: false,
  aliases: { 'shared_head.head': 'head' },
  carried: { 'projections of multi-token prediction': PROJECTIONS_STAY },
};

/** As Qwen publishes them: a model of their own, with one projection. */
export const OWN_MODEL: PredictionTable = {
  block: 'mtp.layers.{layer}.',
  numbered: 'anew',
  root: 'mtp.',
  names: {
    embeddingNorm: 'mtp.pre_fc_norm_embedding',
    hiddenNorm: 'mtp.pre_fc_norm_hidden',
    projection: 'mtp.fc',
    finalNorm: 'mtp.norm',
  },
  count: ['mtp_num_hidden_layers', 'num_nextn_predict_layers'],
  normed: true,
  aliases: {},
  carried: { 'projections of multi-token prediction': PROJECTIONS_STAY },
};
