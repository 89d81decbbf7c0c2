import { type Tensor, typed } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import {
  type ForeignContext,
  type ForeignModule,
  type ForeignModules,
  foreign,
  inPlace,
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

/** Linears that share a fused tensor, by its last part: their output features take turns. */
const TURNS: Readonly<Record<string, readonly string[]>> = { gate_up_proj: ['gate_proj', 'up_proj'] };

/**
 * The experts as linears of their own, PREFIX.EXPERT.PROJECTION: model.layers.0.mlp.experts.3.gate_proj, up_proj and
 * down_proj. Two codes lie in a byte as in the canonical stream, so a row of codes is a run of the file's bytes.
 */
export function mxfp4Modules(ctx: ForeignContext): ForeignModules {
  const names = [...ctx.weights.names()].filter((name) => name.endsWith(BLOCKS));
  const modules: ForeignModule[] = [];
  const problems: LpqError[] = [];
  for (const blocks of names) {
    const found = readEach([blocks.slice(0, -BLOCKS.length)], (name) => {
      const all = fused(ctx, name);
      const dot = name.lastIndexOf('.') + 1;
      const parts = TURNS[name.slice(dot)] ?? [name.slice(dot)];
      if (all.n % parts.length !== 0)
        foreign(`tensor '${name}_blocks' of ${ctx.dir} has an odd number of output features`, { got: all.n });
      for (let expert = 0; expert < all.experts; expert++)
        for (const [turn, part] of parts.entries())
          modules.push(
            expertModule(ctx, all, `${name.slice(0, dot)}${expert}.${part}`, { expert, turn, of: parts.length }),
          );
      return undefined;
    });
    problems.push(...found.problems);
  }
  return { modules, problems };
}

/** Every `of`th row of an expert, beginning with `turn`. */
interface Share {
  readonly expert: number;
  readonly turn: number;
  readonly of: number;
}

function expertModule(ctx: ForeignContext, fused: FusedExperts, module: string, share: Share): ForeignModule {
  const { name, k } = fused;
  const n = fused.n / share.of;
  return {
    name: module,
    declaration: {
      type: 'f4e2m1',
      shape: [n, k],
      granularity: { kind: 'group', size: BLOCK },
      scales: { dtype: 'f8_e8m0', block: [1, BLOCK], global: false },
      zeros: { kind: 'none' },
      ...inPlace(ctx),
    },
    tensors: [`${name}_blocks`, `${name}_scales`],
    notes: [],
    decode(part): ArrayBufferView {
      if (part === 'codes') return shareOf(ctx, `${name}_blocks`, share, fused.n, k / 2);
      if (part === 'scales') return shareOf(ctx, `${name}_scales`, share, fused.n, k / BLOCK);
      throw new LpqError('LPQ_INTERNAL', `an MXFP4 module has no ${part}`);
    },
  };
}

function shareOf(ctx: ForeignContext, name: string, { expert, turn, of }: Share, n: number, row: number): Uint8Array {
  const all = expertBytes(ctx, name, expert, n * row);
  if (of === 1) return all;
  const own = new Uint8Array((n / of) * row);
  for (let i = 0; i < n / of; i++) own.set(all.subarray((i * of + turn) * row, (i * of + turn + 1) * row), i * row);
  return own;
}

/** One expert's run of bytes. All experts together may be more than a typed array of one mapping takes. */
export function expertBytes(ctx: ForeignContext, name: string, expert: number, bytes: number): Uint8Array {
  const all: Tensor = ctx.weights.tensor(name, 'u8');
  const own = all.view([bytes], expert * bytes);
  all.dispose();
  return typed<Uint8Array>(own);
}
