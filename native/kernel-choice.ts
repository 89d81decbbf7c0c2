/** A product y [M,N] = x [M,K] Wᵀ, and the device: an ordinal, or h200, h100, a100, rtx4090, rtx3090 without one. */
export interface KernelQuestion {
  readonly device: number | string;
  readonly layout: string;
  readonly type: string;
  readonly m: number;
  readonly n: number;
  readonly k: number;
  /** 32, 64, 128; 0: one scale a row. */
  readonly group: number;
  readonly activations: 'f16' | 'bf16';
  readonly scales?: 'f16' | 'bf16' | 'u8';
  readonly zeros?: 'u8' | 'f16' | 'i32';
  readonly zero?: number;
  readonly bias?: boolean;
}

export interface KernelChoice {
  readonly device: string;
  /** Settings that were timed decided. */
  readonly tuned: boolean;
  /** Bytes of scratch. */
  readonly workspace: number;
  readonly launches: readonly {
    readonly kernel: string;
    readonly grid: number;
    readonly threads: number;
    readonly shared: number;
    readonly cluster: number;
    readonly text: string;
  }[];
  /** A sentence each. */
  readonly reasons: readonly string[];
}
