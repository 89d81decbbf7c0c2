import type { Mamba2Table } from './mamba-table.js';

/** Names and keys of Mamba-2 that Falcon-H1 and Granite 4 share. */
export const MAMBA2 = {
  kind: 'mamba2',
  names: {
    input: 'mamba.in_proj',
    conv: 'mamba.conv1d',
    rate: 'mamba.A_log',
    bias: 'mamba.dt_bias',
    skip: 'mamba.D',
    norm: 'mamba.norm',
    output: 'mamba.out_proj',
  },
  heads: ['mamba_n_heads'],
  headDim: ['mamba_d_head'],
  groups: ['mamba_n_groups'],
  size: ['mamba_d_state'],
  taps: { keys: ['mamba_d_conv'], otherwise: 4 },
  expand: { keys: ['mamba_expand'], otherwise: 2 },
  convBias: { keys: ['mamba_conv_bias'], otherwise: true },
} as const satisfies Partial<Mamba2Table>;
