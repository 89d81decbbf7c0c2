import type { BlockPlan, LinearPlan, NormPlan } from './plan.js';
import { compressorReaders } from './plan-compressed.js';
import { type ExpertsPlan, expertInto } from './plan-experts.js';
import { indexerReaders } from './plan-indexer.js';
import { projections } from './projections.js';

/** The linears of a block that read the residual stream, feed by feed, those that are no feed, and those that write it. */
export function streamLinears({ attention, beside: also, mlp, perLayer }: BlockPlan): {
  feeds: LinearPlan[][];
  beside: LinearPlan[];
  writers: LinearPlan[];
} {
  const feeds: LinearPlan[][] = [];
  const beside: LinearPlan[] = perLayer ? [perLayer.gate] : [];
  const mixed = [...(attention.kind === 'nothing' ? [] : [attention.o]), ...(also ? [also.o] : [])];
  const writers: LinearPlan[] = perLayer ? [...mixed, perLayer.back] : mixed;
  if (attention.kind === 'recurrent') {
    feeds.push([...attention.feed]);
  } else if (attention.kind === 'mla') {
    const { query, kvA } = attention;
    feeds.push([query.kind === 'direct' ? query.linear : query.a, kvA]);
  } else if (attention.kind === 'compressed') {
    feeds.push([attention.qA, attention.kv]);
  } else if (attention.kind === 'attention') feeds.push(projections(attention));
  beside.push(...keptOf(attention));
  if (also) {
    feeds.push([...also.feed]);
    beside.push(...also.kept);
  }
  if (mlp.kind === 'experts') {
    const { experts, shared } = mlp;
    // Experts behind a latent vector neither read the stream nor write it.
    const all = [...(mlp.latent ? [] : experts), ...(shared ? [shared] : [])];
    if (mlp.latent) writers.push(mlp.latent.back);
    feeds.push(...all.map(expertInto));
    writers.push(...all.map(({ down }) => down));
    beside.push(...besideExperts(mlp));
  } else if (mlp.kind !== 'nothing') {
    feeds.push(mlp.kind === 'gated' ? [mlp.gate, mlp.up] : [mlp.kind === 'fused' ? mlp.gateUp : mlp.up]);
    writers.push(mlp.down);
  }
  return { feeds, beside, writers };
}

/** Linears that read the input of attention and stay in 16 bits. */
export function keptOf(attention: BlockPlan['attention']): readonly LinearPlan[] {
  if (attention.kind === 'recurrent') return attention.kept;
  return attention.kind === 'compressed' ? compressorReaders(attention) : indexerReaders(attention);
}

export function apartNorms({ apart }: ExpertsPlan): NormPlan[] {
  return apart ? [apart.norm, apart.postNorm, apart.sharedPostNorm, apart.sumNorm, apart.routerNorm] : [];
}

/** What reads the input of a mixture and is no feed. */
export function besideExperts({ router, shared, latent }: ExpertsPlan): LinearPlan[] {
  return [router, ...(latent ? [latent.into] : []), ...(shared?.outputGate ? [shared.outputGate] : [])];
}
