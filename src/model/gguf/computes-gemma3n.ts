import type { BlockPlan, ModelPlan } from '../plan.js';
import { type Computes, rootHidden } from './computes.js';
import { near } from './differs.js';

/** What llama.cpp's source has in the place of keys: AltUp's streams, LAuReL's rank, numbers of a block's vector. */
const [STREAMS, RANK, VECTOR] = [4, 64, 256];
/** How many blocks cut their gates, by so many standard deviations (a share of 0.95); and have keys and values of their own. */
const [SPARSE, DEVIATIONS, OWN] = [10, 1.6448533535003662, 20];

/** What of a block is not as llama.cpp has it. */
function ofBlock({ attention, mlp, altUp }: BlockPlan, index: number, width: number): string | undefined {
  if (mlp.kind !== 'gated') return `it has gated MLPs, and block ${index} has another`;
  if (mlp.down.k !== width)
    return `its MLPs are of one width, and here block 0 has ${width} and block ${index} ${mlp.down.k}`;
  const { deviations = 0 } = mlp;
  if (index < SPARSE ? !near(deviations, DEVIATIONS) : deviations !== 0)
    return `it cuts 95 % of the gates of the first ${SPARSE} blocks alone (activation_sparsity_pattern), and block ${index} is no such block`;
  if (altUp && altUp.outputScale === undefined) return 'it scales what per-layer embeddings read (altup_correct_scale)';
  if (attention.kind !== 'attention') return undefined;
  const from = index < OWN ? undefined : OWN - (attention.window > 0 ? 2 : 1);
  if (attention.reads === from) return undefined;
  const told = (block: number | undefined) => (block === undefined ? 'its own' : `those of block ${block}`);
  return `keys and values of block ${index} are ${told(from)} there, and ${told(attention.reads)} here (num_kv_shared_layers, layer_types)`;
}

/** Sizes and shares that it has no keys for. */
function but({ blocks, streams, perLayer }: ModelPlan): string | undefined {
  const [first] = blocks;
  const rank = first?.altUp?.laurel.left.n;
  if (streams?.inputs !== STREAMS)
    return `it has ${STREAMS} streams (altup_num_inputs), and this one ${streams?.inputs}`;
  if (rank !== RANK) return `it has a laurel_rank of ${RANK}, and this one ${rank}`;
  if (perLayer?.size !== VECTOR)
    return `it has a hidden_size_per_layer_input of ${VECTOR}, and this one ${perLayer?.size}`;
  const width = first?.mlp.kind === 'gated' ? first.mlp.down.k : 0;
  for (const [index, block] of blocks.entries()) {
    const found = ofBlock(block, index, width);
    if (found !== undefined) return found;
  }
  return undefined;
}

/** What llama.cpp computes for Gemma 3n. */
export const GEMMA_3N: Computes = {
  pairs: 'halves',
  activation: ['gelu_tanh'],
  reads: ['windows', 'local-theta', 'per-layer', 'shared-kv', 'streams'],
  scale: () => 1,
  embeddingScale: rootHidden,
  valueNorm: true,
  logitCap: 30,
  but,
};
