import { columnsOf, type FoldAxis, type FoldSite, normAxes, reader, rowsOf } from './fold-axes.js';
import type { AttentionPlan, BlockPlan, LinearPlan, ModelPlan, NormPlan } from './plan.js';
import type { CompressedPlan } from './plan-compressed.js';
import { expertInto, type SharedExpertPlan } from './plan-experts.js';
import type { MlaPlan } from './plan-mla.js';
import { apartNorms, streamLinears } from './stream-linears.js';

/** Every site of a model; the axes of different sites permute different indices. */
export function foldSites(plan: ModelPlan): FoldSite[] {
  return [
    // Streams are mixed by linears of their own; layers of multi-token prediction read the stream beside embeddings.
    ...(plan.streams || plan.hyper || plan.predictions.length > 0 ? [] : [residualSite(plan)]),
    ...plan.blocks.flatMap((block, index) => [...attentionSites(block, index), ...mlpSites(block, index)]),
  ];
}

/** Keys are values, too, and turn: only the compressed queries list channels in any order. */
function compressedSites({ qA, qNorm, qB, chooser }: CompressedPlan, index: number): FoldSite[] {
  return [
    {
      id: `blocks.${index}.query`,
      kind: 'latent',
      size: qA.n,
      axes: [...rowsOf(qA), ...normAxes(qNorm), columnsOf(qB), ...(chooser ? [columnsOf(chooser.q)] : [])],
      readers: [reader([qB])],
    },
  ];
}

function residualSite(plan: ModelPlan): FoldSite {
  const { embedding, hidden, finalNorm, projectOut, head } = plan;
  const streams = plan.blocks.map(streamLinears);
  // Between an embedding of another width and the stream stands a linear, which writes it.
  const first = embedding.project
    ? rowsOf(embedding.project)
    : [{ tensor: embedding.weight, axis: 1 as const, starts: [0] }];
  const last = projectOut ?? head;
  const norms = plan.blocks.flatMap(({ attention, mlp, perLayer }) => [
    perLayer?.postNorm,
    ...[attention.norm, attention.postNorm, attention.residualNorm, mlp.norm],
    ...(mlp.kind === 'experts' ? apartNorms(mlp) : [mlp.postNorm, mlp.residualNorm]),
  ]);
  const axes = [
    ...first,
    ...(embedding.positions ? [{ tensor: embedding.positions.weight, axis: 1 as const, starts: [0] }] : []),
    ...[...norms, finalNorm].flatMap(normAxes),
    ...streams.flatMap(({ feeds, beside }) => [...feeds.flat(), ...beside].map((linear) => columnsOf(linear))),
    ...streams.flatMap(({ writers }) => writers.flatMap((linear) => rowsOf(linear))),
    ...(plan.perLayer ? [columnsOf(plan.perLayer.linear)] : []),
    columnsOf(last),
  ];
  const readers = [...streams.flatMap(({ feeds }) => feeds.map((feed) => reader(feed))), reader([last])];
  return { id: 'residual', kind: 'residual', size: hidden, axes: once(axes), readers };
}

/** Each axis once: a tied head is the embedding, blocks side by side share a norm. */
function once(axes: readonly FoldAxis[]): FoldAxis[] {
  return [...new Map(axes.map((axis) => [`${axis.tensor} ${axis.axis}`, axis])).values()];
}

function attentionSites({ attention }: BlockPlan, index: number): FoldSite[] {
  // Channels of a recurrence are tied to those of its convolution, its state and its gates.
  if (attention.kind === 'recurrent' || attention.kind === 'nothing') return [];
  if (attention.kind === 'compressed') return compressedSites(attention, index);
  return attention.kind === 'mla' ? latentSites(attention, index) : valueSites(attention, index);
}

/** One site a kv head, unless values are normalised or read elsewhere, too: its rows of v, and the columns of o of every head that reads it. */
export function valueSites(attention: AttentionPlan, index: number): FoldSite[] {
  // A gate multiplies channel by channel.
  if (attention.outputGate) return [];
  const { heads, kvHeads, headDim, valueDim, fused, v, o } = attention;
  if (attention.vNorm || attention.reads !== undefined || attention.kept !== undefined) return [];
  const group = heads / kvHeads;
  return Array.from({ length: kvHeads }, (_, kv): FoldSite => {
    const columns = Array.from({ length: group }, (_, i) => (kv * group + i) * valueDim);
    const row = !fused
      ? kv * valueDim
      : fused.order === 'parts'
        ? (heads + kvHeads) * headDim + kv * valueDim
        : (kv * (group + 2) + group + 1) * headDim;
    return {
      id: `blocks.${index}.value.${kv}`,
      kind: 'value',
      size: valueDim,
      axes: [...rowsOf(fused?.linear ?? v, [row]), columnsOf(o, columns)],
      readers: [reader([o], columns)],
    };
  });
}

function latentSites(
  { query, kvA, kvNorm, kvB, o, heads, latent, plain, value, indexer }: MlaPlan,
  index: number,
): FoldSite[] {
  const id = (name: string) => `blocks.${index}.${name}`;
  const chooser = indexer?.kind === 'own' ? [columnsOf(indexer.q)] : [];
  const compressed = (
    name: string,
    a: LinearPlan,
    norm: NormPlan,
    b: LinearPlan,
    size: number,
    more: readonly FoldAxis[] = [],
  ): FoldSite => ({
    id: id(name),
    kind: 'latent',
    size,
    axes: [...rowsOf(a), ...normAxes(norm), columnsOf(b), ...more],
    readers: [reader([b])],
  });
  return [
    ...(query.kind === 'latent' ? [compressed('query', query.a, query.norm, query.b, query.a.n, chooser)] : []),
    compressed('latent', kvA, kvNorm, kvB, latent),
    ...Array.from({ length: heads }, (_, h): FoldSite => {
      const columns = [h * value];
      return {
        id: id(`value.${h}`),
        kind: 'value',
        size: value,
        axes: [...rowsOf(kvB, [h * (plain + value) + plain]), columnsOf(o, columns)],
        readers: [reader([o], columns)],
      };
    }),
  ];
}

function mlpSites({ mlp }: BlockPlan, index: number): FoldSite[] {
  if (mlp.kind === 'nothing') return [];
  const hidden = (name: string, into: readonly LinearPlan[], down: LinearPlan, starts = [0]): FoldSite => ({
    id: `blocks.${index}.${name}`,
    kind: 'hidden',
    size: down.k,
    axes: [...into.flatMap((linear) => rowsOf(linear, starts)), columnsOf(down)],
    readers: [reader([down])],
  });
  const sharedHidden = (shared: SharedExpertPlan): FoldSite =>
    hidden('shared.hidden', expertInto(shared), shared.down, shared.gateUp ? [0, shared.down.k] : [0]);
  if (mlp.kind === 'experts')
    return [
      ...mlp.experts.map((expert, e) => hidden(`experts.${e}.hidden`, expertInto(expert), expert.down)),
      ...(mlp.shared ? [sharedHidden(mlp.shared)] : []),
    ];
  if (mlp.kind === 'fused') return [hidden('hidden', [mlp.gateUp], mlp.down, [0, mlp.down.k])];
  return [hidden('hidden', mlp.kind === 'gated' ? [mlp.gate, mlp.up] : [mlp.up], mlp.down)];
}
