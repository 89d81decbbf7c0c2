import { createHash } from 'node:crypto';
import type { NativeRuntime } from '../../native/binding.js';
import { LpqError } from '../core/error.js';
import type { FoldReader, FoldSite } from '../model/fold-axes.js';
import { foldRewrite, permuted, refusedSites, scaleRewrite, type TensorRewrite } from '../model/folded.js';
import { foldSites } from '../model/folds.js';
import { planSource } from '../model/graph.js';
import type { ModelGraph } from '../model/program.js';
import { scaleSites } from '../model/scale-sites.js';
import type { ActivationForm, WeightSource } from '../model/source.js';
import type { QuantScheme } from '../quantize/scheme.js';
import { disposeFeeds, type ObservedFeed, observeFeeds } from './observe.js';
import { BLOCK, type FmpqOptions } from './options.js';
import { choosePrecision, type OrderedFeed, type Precision } from './precision.js';
import { balance, scaledFeeds } from './scale.js';
import { type Allowance, type Reading, searchOrder } from './search.js';

/** What became of one set of channels. */
export interface SiteRecord {
  readonly site: string;
  readonly done: 'folded' | 'gathered' | 'kept';
  /** The objective of src/fmpq/search.ts before and after. */
  readonly before: number;
  readonly after: number;
  readonly reason?: string;
}

/** Everything that is decided before weights are quantized. */
export interface FmpqPlan {
  /** Folds the permutations into the model, and puts the columns of gathered linears in order. */
  readonly rewrite: TensorRewrite;
  /** By linear. */
  readonly forms: ReadonlyMap<string, ActivationForm>;
  readonly sites: readonly SiteRecord[];
  /** Sets of channels that were multiplied by powers of two. */
  readonly scaled: number;
  readonly share: Precision['share'];
  readonly error: Precision['error'];
  /** Of every permutation, precision and clip. */
  readonly sha256: string;
}

/** A stored gather must lower the objective at least so far: it costs run time, a fold does not. */
const GATHER_GAIN = 0.9;

export interface FmpqProgress {
  readonly onObserve?: (block: number) => void;
  readonly onSite?: (done: number, total: number) => void;
}

/**
 * Decides permutations, precisions and clips for the linears of `schemes`. Throws LPQ_USAGE, LPQ_GROUP_SIZE where a module
 * cannot be multiplied in W4Ax, and what observeFeeds throws.
 */
export async function planFmpq(
  rt: NativeRuntime,
  source: WeightSource,
  graph: ModelGraph,
  schemes: ReadonlyMap<string, { readonly scheme: QuantScheme; readonly linear: { readonly k: number } }>,
  sequences: readonly Int32Array[],
  options: FmpqOptions,
  progress: FmpqProgress = {},
): Promise<FmpqPlan> {
  for (const [name, { scheme, linear }] of schemes) checkModule(name, scheme, linear.k);
  const wanted = new Set(schemes.keys());
  const feeds = await observeFeeds(rt, source, graph, sequences, wanted, options.rows, progress.onObserve);
  try {
    return await decidePlan(rt, source, graph, feeds, options, progress);
  } finally {
    disposeFeeds(feeds);
  }
}

/** The same from what was observed before. */
export async function decidePlan(
  rt: NativeRuntime,
  source: WeightSource,
  graph: ModelGraph,
  observed: readonly ObservedFeed[],
  options: FmpqOptions,
  progress: FmpqProgress = {},
): Promise<FmpqPlan> {
  const scaling = scaleSites(planSource(source));
  const feedOf = feedsByLinear(observed);
  const powers = new Map<string, Int32Array>();
  if (options.scale > 0)
    for (const site of scaling) {
      const readings = readingsOf(site, feedOf);
      const by = readings.length > 0 ? balance(readings, site.size, options.scale) : undefined;
      if (by) powers.set(site.id, by);
    }
  const feeds = scaledFeeds(observed, scaling, powers);
  try {
    const scale = scaleRewrite(scaling, powers, graph.transposed);
    const plan = await decideOrders(rt, source, graph, feeds, options, progress);
    const hash = createHash('sha256').update(plan.sha256);
    for (const [id, by] of powers) hash.update(`${id};`).update(by);
    return { ...plan, rewrite: both(scale, plan.rewrite), scaled: powers.size, sha256: hash.digest('hex') };
  } finally {
    disposeFeeds(feeds.filter((feed) => !observed.includes(feed)));
  }
}

/** One rewrite after another; what stands between them is disposed of. */
function both(first: TensorRewrite, second: TensorRewrite): TensorRewrite {
  return (name, tensor) => {
    const between = first(name, tensor);
    const made = second(name, between);
    if (between !== tensor && between !== made) between.dispose();
    return made;
  };
}

function feedsByLinear(feeds: readonly ObservedFeed[]): Map<string, ObservedFeed> {
  return new Map(feeds.flatMap((feed) => feed.linears.map(({ name }) => [name, feed] as const)));
}

async function decideOrders(
  rt: NativeRuntime,
  source: WeightSource,
  graph: ModelGraph,
  feeds: readonly ObservedFeed[],
  options: FmpqOptions,
  { onSite }: FmpqProgress,
): Promise<Omit<FmpqPlan, 'scaled'>> {
  const sites = foldSites(planSource(source));
  const refused = refusedSites(source, graph, sites);
  const allowance: Allowance =
    options.threshold === undefined ? { share: options.share } : { threshold: options.threshold };
  const feedOf = feedsByLinear(feeds);
  const records: SiteRecord[] = [];
  const folds = new Map<string, Int32Array>();
  /** Feeds whose blocks a fold orders. */
  const reached = new Set<ObservedFeed>();
  for (const [index, site] of sites.entries()) {
    onSite?.(index, sites.length);
    const readings = readingsOf(site, feedOf);
    const reason = refused.get(site.id) ?? unsuited(site, readings);
    if (reason !== undefined || options.search === 'none') {
      if (refused.has(site.id))
        records.push({ site: site.id, done: 'kept', before: 0, after: 0, reason: reason ?? '' });
      continue;
    }
    const before = (await searchOrder(rt, readings, site.size, 'none', allowance, 0)).cost;
    const { order, cost: after } = await searchOrder(
      rt,
      readings,
      site.size,
      options.search,
      allowance,
      options.seed + index,
    );
    for (const { feed } of readings) reached.add(feed);
    const better = after < before;
    if (better) folds.set(site.id, order);
    records.push({ site: site.id, done: better ? 'folded' : 'kept', before, after });
  }
  const gathers = new Map<ObservedFeed, Int32Array>();
  if (options.gather && options.search !== 'none')
    for (const [index, feed] of feeds.entries()) {
      if (reached.has(feed) || feed.k < 2 * BLOCK || feed.rows.shape[0] === 0) continue;
      const readings = [{ feed, start: 0 }];
      const before = (await searchOrder(rt, readings, feed.k, 'none', allowance, 0)).cost;
      const found = await searchOrder(rt, readings, feed.k, options.search, allowance, options.seed + index);
      const names = feed.linears.map(({ name }) => name).join(', ');
      const pays = found.cost < GATHER_GAIN * before;
      if (pays) gathers.set(feed, found.order);
      records.push({ site: names, done: pays ? 'gathered' : 'kept', before, after: found.cost });
    }
  const ordered = feeds.map(
    (feed): OrderedFeed => ({ feed, order: gathers.get(feed) ?? foldedOrder(feed, sites, folds) }),
  );
  const precision = await choosePrecision(rt, ordered, options);
  return assemble(graph, sites, folds, gathers, feeds, precision, records);
}

/** Columns of feeds that a site orders. */
function readingsOf(
  site: { readonly readers: readonly FoldReader[] },
  feedOf: ReadonlyMap<string, ObservedFeed>,
): Reading[] {
  const seen = new Set<string>();
  return site.readers.flatMap(({ linears, starts }) => {
    const feed = linears.map((name) => feedOf.get(name)).find((found) => found !== undefined);
    if (!feed || feed.rows.shape[0] === 0) return [];
    return starts.flatMap((start) => {
      const key = `${feed.linears[0]?.name} ${start}`;
      if (seen.has(key)) return [];
      seen.add(key);
      return [{ feed, start }];
    });
  });
}

/** Why an order of the site's channels would change no block. */
function unsuited({ size }: FoldSite, readings: readonly Reading[]): string | undefined {
  if (readings.length === 0) return 'no quantized module reads it';
  if (size < 2 * BLOCK) return `its ${size} channels lie in one block`;
  if (size % BLOCK !== 0 || readings.some(({ start }) => start % BLOCK !== 0))
    return `its ${size} channels do not begin and end with blocks`;
  return undefined;
}

/** The order of a feed's channels, in terms of the source, that folds lead to. */
function foldedOrder(
  feed: ObservedFeed,
  sites: readonly FoldSite[],
  folds: ReadonlyMap<string, Int32Array>,
): Int32Array {
  const order = Int32Array.from({ length: feed.k }, (_, i) => i);
  const names = new Set(feed.linears.map(({ name }) => name));
  for (const { id, readers } of sites) {
    const fold = folds.get(id);
    const reader = fold && readers.find(({ linears }) => linears.some((name) => names.has(name)));
    if (!fold || !reader) continue;
    for (const start of reader.starts) for (const [j, from] of fold.entries()) order[start + j] = start + from;
  }
  return order;
}

function assemble(
  graph: ModelGraph,
  sites: readonly FoldSite[],
  folds: ReadonlyMap<string, Int32Array>,
  gathers: ReadonlyMap<ObservedFeed, Int32Array>,
  feeds: readonly ObservedFeed[],
  { forms: chosen, share, error }: Precision,
  records: readonly SiteRecord[],
): Omit<FmpqPlan, 'scaled'> {
  const forms = new Map<string, ActivationForm>();
  const hash = createHash('sha256');
  for (const [site, order] of folds) hash.update(`${site};`).update(order);
  for (const [index, feed] of feeds.entries()) {
    const order = gathers.get(feed);
    const blocks = chosen[index] as Precision['forms'][number];
    for (const { name } of feed.linears) {
      forms.set(name, { ...(order && { order }), blocks });
      hash.update(`${name};`).update(blocks.bits).update(new Uint8Array(blocks.clip.slice().buffer));
      if (order) hash.update(order);
    }
  }
  const fold = foldRewrite(sites, folds, graph.transposed);
  const rewrite: TensorRewrite = (name, tensor) => {
    const folded = fold(name, tensor);
    const order = name.endsWith('.weight') ? forms.get(name.slice(0, -'.weight'.length))?.order : undefined;
    if (!order) return folded;
    const turned = graph.transposed.has(name);
    const gathered = permuted(folded, turned ? order : undefined, turned ? undefined : order);
    if (folded !== tensor) folded.dispose();
    return gathered;
  };
  return { rewrite, forms, sites: records, share, error, sha256: hash.digest('hex') };
}

/** Throws LPQ_USAGE, LPQ_GROUP_SIZE unless the module's weights can be multiplied block by block in integers. */
export function checkModule(name: string, scheme: QuantScheme, k: number): void {
  const { type, granularity, symmetric, globalScale, sparsity } = scheme;
  const hint = 'Skip this module with a recipe rule, or use --method gptq.';
  if (k % BLOCK !== 0)
    throw new LpqError('LPQ_GROUP_SIZE', `${name} has input features that blocks of ${BLOCK} do not divide`, {
      got: k,
      expected: `a multiple of ${BLOCK}`,
      hint,
    });
  if (sparsity)
    throw new LpqError('LPQ_USAGE', `--method fmpq has no 2:4 weights, and ${name} is to be ${sparsity}`, { hint });
  if (type.kind !== 'int' || !type.signed || !symmetric || globalScale)
    throw new LpqError('LPQ_USAGE', `--method fmpq multiplies ${name} in integers, with symmetric weights only`, {
      got: `${type.name}${symmetric ? '' : ' asymmetric'}`,
      expected: '--bits 2 to 8, symmetric',
      hint,
    });
  if (granularity.kind !== 'group' || granularity.size !== BLOCK)
    throw new LpqError('LPQ_USAGE', `--method fmpq needs one weight scale per block of ${BLOCK} channels of ${name}`, {
      got: granularity.kind === 'group' ? `--group-size ${granularity.size}` : '--group-size channel',
      expected: `--group-size ${BLOCK}`,
      hint,
    });
}
