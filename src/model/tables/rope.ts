import type { Setting } from '../config.js';

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
