import { type Tensor, typed } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import {
  type ForeignContext,
  type ForeignModule,
  type ForeignModules,
  readEach,
  required,
  requireShape,
} from '../foreign/module.js';

/** A fused tensor of all experts as GPT-OSS publishes it: NAME_blocks and NAME_scales stand for NAME [E, K, N]. */
export interface FusedExperts {
  /** model.layers.0.mlp.experts.gate_up_proj */
  readonly name: string;
  readonly experts: number;
  /** Output features of an expert. */
  readonly n: number;
  readonly k: number;
}

const BLOCKS = '_blocks';
/** Weights of a block: 16 bytes, one scale. */
const BLOCK = 32;

/** Every fused tensor, its two halves checked against each other. Throws LPQ_FOREIGN. */
export function fusedExperts(ctx: ForeignContext): FusedExperts[] {
  return [...ctx.weights.names()]
    .filter((name) => name.endsWith(BLOCKS))
    .map((name) => fused(ctx, name.slice(0, -BLOCKS.length)));
}

function fused(ctx: ForeignContext, name: string): FusedExperts {
  const blocks = required(ctx, `${name}_blocks`, ['U8'], 4);
  const scales = required(ctx, `${name}_scales`, ['U8', 'F8_E8M0'], 3);
  const [experts, n, count] = blocks.shape as [number, number, number, number];
  requireShape(ctx, blocks, [experts, n, count, BLOCK / 2], `blocks of ${BLOCK / 2} bytes`);
  requireShape(ctx, scales, [experts, n, count], 'a scale for each block');
  return { name, experts, n, k: count * BLOCK };
}

/**
 * The experts as modules of their own, `PREFIX.EXPERT.PROJECTION` (model.layers.0.mlp.experts.3.gate_up_proj): codes and
 * scales are runs of the file's bytes, for two codes lie in a byte as in the canonical stream.
 */
export function mxfp4Modules(ctx: ForeignContext): ForeignModules {
  const names = [...ctx.weights.names()].filter((name) => name.endsWith(BLOCKS));
  const modules: ForeignModule[] = [];
  const problems: LpqError[] = [];
  for (const blocks of names) {
    const found = readEach([blocks.slice(0, -BLOCKS.length)], (name) => {
      const all = fused(ctx, name);
      for (let expert = 0; expert < all.experts; expert++) modules.push(expertModule(ctx, all, expert));
      return undefined;
    });
    problems.push(...found.problems);
  }
  return { modules, problems };
}

function expertModule(ctx: ForeignContext, { name, n, k }: FusedExperts, expert: number): ForeignModule {
  const dot = name.lastIndexOf('.');
  return {
    name: `${name.slice(0, dot)}.${expert}${name.slice(dot)}`,
    declaration: {
      type: 'f4e2m1',
      shape: [n, k],
      granularity: { kind: 'group', size: BLOCK },
      scales: { dtype: 'f8_e8m0', block: [1, BLOCK], global: false },
      zeros: { kind: 'none' },
      groupIndex: false,
      permutation: false,
      sparsity: 'none',
      sourceDtype: ctx.modelDtype,
    },
    tensors: [`${name}_blocks`, `${name}_scales`],
    notes: [],
    decode(part): ArrayBufferView {
      if (part === 'codes') return expertBytes(ctx, `${name}_blocks`, expert, (n * k) / 2);
      if (part === 'scales') return expertBytes(ctx, `${name}_scales`, expert, (n * k) / BLOCK);
      throw new LpqError('LPQ_INTERNAL', `an MXFP4 module has no ${part}`);
    },
  };
}

/** One expert's run of bytes. All experts together may be more than a typed array of one mapping takes. */
export function expertBytes(ctx: ForeignContext, name: string, expert: number, bytes: number): Uint8Array {
  const all: Tensor = ctx.weights.tensor(name, 'u8');
  const own = all.view([bytes], expert * bytes);
  all.dispose();
  return typed<Uint8Array>(own);
}
