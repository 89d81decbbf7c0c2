import type { Setting } from '../config.js';
import type { ClampTable } from './mlp.js';

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
