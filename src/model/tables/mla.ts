import type { Setting } from '../config.js';
import type { IndexerTable } from '../plan-indexer.js';

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
