import type { AttentionPlan, BlockPlan, LinearPlan, ModelPlan, NormPlan } from './plan.js';
import { type CompressedPlan, compressorReaders } from './plan-compressed.js';
import { type ExpertsPlan, expertInto, type SharedExpertPlan } from './plan-experts.js';
import { indexerReaders } from './plan-indexer.js';
import type { MlaPlan } from './plan-mla.js';
import { projections } from './projections.js';

/**
 * One axis of one tensor that lists the channels of a fold site: runs of `size` indices, one at each of `starts`, all of
 * which are permuted alike. Axis 0 is N of a linear's [N, K] (whichever way it is stored), rows of an embedding or a vector.
 */
export interface FoldAxis {
  readonly tensor: string;
  readonly axis: 0 | 1;
  readonly starts: readonly number[];
}

/** Where a feed of linears reads a site: its columns start .. start + size of each of `starts`. */
export interface FoldReader {
  /** Module paths. */
  readonly linears: readonly string[];
  readonly starts: readonly number[];
}

/**
 * A set of channels whose order means nothing: permuting every axis alike gives the same function. What makes it so:
 * residual: norms work channel by channel, and every linear and table that writes or reads the stream is among the axes;
 * value: attention weighs values row by row, so that the columns of v of one kv head may come in any order that o's columns
 * of the heads which share it follow; hidden: gates and activations work channel by channel; latent: as residual, of MLA's
 * compressed vectors.
 */
export interface FoldSite {
  readonly id: string;
  readonly kind: 'residual' | 'value' | 'hidden' | 'latent';
  readonly size: number;
  readonly axes: readonly FoldAxis[];
  readonly readers: readonly FoldReader[];
}

/** Every site of a model; the axes of different sites permute different indices. */
export function foldSites(plan: ModelPlan): FoldSite[] {
  return [
    // Streams are mixed by linears of their own.
    ...(plan.streams || plan.hyper ? [] : [residualSite(plan)]),
    ...plan.blocks.flatMap((block, index) => [...attentionSites(block, index), ...mlpSites(block, index)]),
  ];
}

/**
 * Channels that may be multiplied by anything, if what reads them divides by it: `raise` lists what is multiplied (vectors
 * and rows), `lower` the columns that are divided.
 */
export interface ScaleSite {
  readonly id: string;
  readonly size: number;
  readonly raise: readonly FoldAxis[];
  readonly lower: readonly FoldAxis[];
  readonly readers: readonly FoldReader[];
}

/**
 * Every such set: the output of a norm before a branch (no offset is added to its weight); what a gated MLP's up makes, which
 * only multiplies; the values of a kv head. Not: GPT-OSS's clamped gates, MLPs without a gate, a norm that idle experts read.
 */
export function scaleSites(plan: ModelPlan): ScaleSite[] {
  return plan.blocks.flatMap((block, index) => [...normSites(block, index), ...upSites(block, index)]);
}

/** Norms that two branches share count once, with the readers of both. */
function normSites(block: BlockPlan, index: number): ScaleSite[] {
  const { attention, mlp } = block;
  const { feeds } = streamLinears(block);
  const beside = mlp.kind === 'experts' ? besideExperts(mlp) : [];
  const mixers = (attention.kind === 'nothing' ? 0 : 1) + (block.beside ? 1 : 0);
  const [first, rest] = [feeds.slice(0, mixers), feeds.slice(mixers)];
  const kept = keptOf(attention);
  const branches: [NormPlan | undefined, LinearPlan[][], LinearPlan[]][] = [
    // LAuReL reads the same, and adds it.
    [block.altUp ? undefined : attention.norm, first, [...kept]],
    // Experts apart read other norms, which nothing scales.
    [mlp.kind === 'experts' && mlp.apart ? undefined : mlp.norm, rest, beside],
  ];
  const sites = new Map<string, ScaleSite>();
  for (const [norm, read, more] of branches) {
    if (norm?.weight === undefined || norm.offset !== 0) continue;
    // Idle experts hand on what the norm makes.
    if (norm === mlp.norm && mlp.kind === 'experts' && mlp.router.n > mlp.experts.length) continue;
    const before = sites.get(norm.weight);
    sites.set(norm.weight, {
      id: `blocks.${index}.${norm === attention.norm ? 'attention' : 'mlp'}.norm`,
      size: norm.size,
      raise: normAxes(norm),
      lower: [...(before?.lower ?? []), ...[...read.flat(), ...more].map((linear) => columnsOf(linear))],
      readers: [...(before?.readers ?? []), ...read.map((feed) => reader(feed))],
    });
  }
  return [...sites.values()];
}

function upSites({ attention, mlp }: BlockPlan, index: number): ScaleSite[] {
  const site = (name: string, up: LinearPlan, down: LinearPlan, start = 0): ScaleSite => ({
    id: `blocks.${index}.${name}`,
    size: down.k,
    raise: rowsOf(up, [start]),
    lower: [columnsOf(down)],
    readers: [reader([down])],
  });
  const values =
    attention.kind !== 'attention'
      ? []
      : valueSites(attention, index).map(({ id, size, axes, readers }): ScaleSite => {
          const last = axes.length - 1; // the columns of o
          return { id, size, raise: axes.slice(0, last), lower: axes.slice(last), readers };
        });
  if (mlp.kind === 'gated') return [...values, site('up', mlp.up, mlp.down)];
  if (mlp.kind === 'fused') return mlp.clamped ? values : [...values, site('up', mlp.gateUp, mlp.down, mlp.down.k)];
  if (mlp.kind !== 'experts' || mlp.gate.kind !== 'gated') return values;
  const shared = mlp.shared ? [sharedSite(mlp.shared, site)] : [];
  return [...values, ...mlp.experts.map(({ up, down }, e) => site(`experts.${e}.up`, up, down)), ...shared];
}

function sharedSite(
  { up, down, gateUp }: SharedExpertPlan,
  site: (name: string, up: LinearPlan, down: LinearPlan, start?: number) => ScaleSite,
): ScaleSite {
  return gateUp ? site('shared.up', gateUp, down, down.k) : site('shared.up', up, down);
}

const rowsOf = (linear: LinearPlan, starts: readonly number[] = [0]): FoldAxis[] => [
  { tensor: `${linear.name}.weight`, axis: 0, starts },
  ...(linear.bias ? [{ tensor: `${linear.name}.bias`, axis: 0 as const, starts }] : []),
];
const columnsOf = (linear: LinearPlan, starts: readonly number[] = [0]): FoldAxis => ({
  tensor: `${linear.name}.weight`,
  axis: 1,
  starts,
});
const normAxes = (norm: NormPlan | undefined): FoldAxis[] =>
  [norm?.weight, norm?.bias].flatMap((tensor) => (tensor === undefined ? [] : [{ tensor, axis: 0, starts: [0] }]));
const reader = (linears: readonly LinearPlan[], starts: readonly number[] = [0]): FoldReader => ({
  linears: linears.map(({ name }) => name),
  starts,
});

/** The linears of a block that read the residual stream, feed by feed, those that are no feed, and those that write it. */
function streamLinears({ attention, beside: also, mlp, perLayer }: BlockPlan): {
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
function keptOf(attention: BlockPlan['attention']): readonly LinearPlan[] {
  if (attention.kind === 'recurrent') return attention.kept;
  return attention.kind === 'compressed' ? compressorReaders(attention) : indexerReaders(attention);
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

function apartNorms({ apart }: ExpertsPlan): NormPlan[] {
  return apart ? [apart.norm, apart.postNorm, apart.sharedPostNorm, apart.sumNorm, apart.routerNorm] : [];
}

/** What reads the input of a mixture and is no feed. */
function besideExperts({ router, shared, latent }: ExpertsPlan): LinearPlan[] {
  return [router, ...(latent ? [latent.into] : []), ...(shared?.outputGate ? [shared.outputGate] : [])];
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
function valueSites(attention: AttentionPlan, index: number): FoldSite[] {
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
