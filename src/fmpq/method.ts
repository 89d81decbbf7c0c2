import { LpqError } from '../core/error.js';
import { gptq } from '../gptq/method.js';
import type { Method, Preparation } from '../quantize/method.js';
import type { OptionValues } from '../quantize/option.js';
import { BLOCK, FMPQ_DEFAULTS, type FmpqOptions, type SearchKind } from './options.js';

/** Tokens that share a scale in a channel of the cache. */
const KV_GROUP = 64;

/** The settings of the command line that are its own; none has a default there. */
interface Given {
  readonly actInt4Share?: number;
  readonly actThreshold?: number;
  readonly actSearch?: SearchKind;
  readonly actGather?: boolean;
  readonly actScale?: number;
  readonly actKv?: number;
  readonly seed: number;
}

/** Activations of 4 and 8 bits, and weights that GPTQ solves for them (docs/fmpq.md). */
export const fmpq: Method = {
  name: 'fmpq',
  summary: 'activations of 4 and 8 bits',
  needs: 'activations',
  options: [
    // Training on the model's end does not know of codes that linears read.
    ...gptq.options.filter(({ field }) => field !== 'tuneScales'),
    {
      field: 'actInt4Share',
      flags: '--act-int4-share <share>',
      help: 'fmpq: share of the multiplications with 4-bit activations (default: 0.84)',
      takes: { least: 0, most: 1 },
    },
    {
      field: 'actThreshold',
      flags: '--act-threshold <error>',
      help: 'fmpq: the relative squared error that 4 bits may add in a block, instead of a share',
      takes: { above: 0 },
    },
    {
      field: 'actSearch',
      flags: '--act-search <kind>',
      help: 'fmpq: order of channels: swap, error, absmax or none (default: swap)',
      takes: ['swap', 'error', 'absmax', 'none'],
    },
    {
      field: 'actGather',
      flags: '--no-act-gather',
      help: 'fmpq: store no permutation that cannot be folded',
      takes: 'switch',
    },
    {
      field: 'actScale',
      flags: '--act-scale <alpha>',
      help: 'fmpq: balance between channels of activations and weights; 0 turns it off (default: 0.5)',
      takes: { least: 0, most: 1 },
    },
    {
      field: 'actKv',
      flags: '--act-kv <bits>',
      help: 'fmpq: bits of keys and values, channel by channel (default: none)',
      takes: { least: 2, most: 8, integer: true },
    },
  ],
  codes: { block: BLOCK },

  check({ actInt4Share, actThreshold, actKv, kv, mtp }) {
    if (mtp)
      throw new LpqError(
        'LPQ_USAGE',
        '--mtp does not go with --method fmpq, whose orders are those of the blocks alone',
        {
          hint: 'Leave --mtp out, or use --method gptq.',
        },
      );
    if (kv !== undefined && actKv !== undefined)
      throw new LpqError('LPQ_USAGE', '--kv and --act-kv exclude each other', {
        hint: '--kv packs the cache for attention kernels; --act-kv is the simulation that FMPQ calibrates with.',
      });
    if (actInt4Share !== undefined && actThreshold !== undefined)
      throw new LpqError('LPQ_USAGE', '--act-int4-share and --act-threshold exclude each other', {
        hint: 'A share sets how many blocks have 4 bits, a threshold sets which; give one of them.',
      });
  },

  async checkPlan(source, { actKv }, plan) {
    const { checkModule } = await import('./plan.js');
    const { planSource } = await import('../model/graph.js');
    for (const [name, { scheme, linear }] of plan) checkModule(name, scheme, linear.k);
    if (actKv === undefined) return;
    const latent = planSource(source).blocks.findIndex(({ attention }) => attention.kind === 'mla');
    if (latent >= 0)
      throw new LpqError(
        'LPQ_USAGE',
        `--act-kv is for keys and values; block ${latent} caches latent vectors instead`,
        { hint: 'Leave the option out for this model.' },
      );
  },

  quantizer: (settings) => gptq.quantizer(settings),
  extraNeeds: async (graph, plan, modules, settings) => {
    const { passOperations } = await import('../quantize/estimate-time.js');
    const needs = await gptq.extraNeeds?.(graph, plan, modules, settings);
    const observed = passOperations(graph, plan.blocks, Number(settings.samples) * Number(settings.seqLen));
    return { beside: needs?.beside ?? 0, after: needs?.after ?? 0, operations: observed + (needs?.operations ?? 0) };
  },
  prepare,
};

function optionsOf(settings: OptionValues): FmpqOptions {
  const { actInt4Share, actThreshold, actSearch, actGather, actScale, seed } = settings as unknown as Given;
  return {
    ...FMPQ_DEFAULTS,
    seed,
    ...(actInt4Share !== undefined && { share: actInt4Share }),
    ...(actThreshold !== undefined && { threshold: actThreshold }),
    ...(actSearch !== undefined && { search: actSearch }),
    ...(actGather !== undefined && { gather: actGather }),
    ...(actScale !== undefined && { scale: actScale }),
  };
}

/** Plans permutations and precisions. */
async function prepare({ rt, source, request, settings, calibration, quantizer, events }: Preparation) {
  const { openModel } = await import('../model/graph.js');
  const { planQuantization } = await import('../quantize/plan.js');
  const { planFmpq } = await import('./plan.js');
  const { fmpqQuantizer } = await import('./quantizer.js');
  const graph = openModel(source);
  const schemes = planQuantization(graph, request);
  const options = optionsOf(settings);
  const task = events.task('observe', graph.blocks.length);
  const plan = await planFmpq(rt, source, graph, schemes, calibration.sequences, options, {
    onObserve: (block) => {
      events.check();
      task.update(block, `block ${block + 1}/${graph.blocks.length}`);
    },
    onSite: () => events.check(),
  });
  task.end();
  const { share, error, sites } = plan;
  const [folded, gathered] = ['folded', 'gathered'].map((done) => sites.filter((site) => site.done === done).length);
  const percent = (part: number) => `${(100 * part).toFixed(1)} %`;
  const short = (value: number) => String(Number(value.toPrecision(3)));
  events.event(
    'activations',
    { share, error, folded, gathered, sites },
    `activations: ${percent(share.macs)} of the multiplications and ${percent(share.blocks)} of the blocks have 4 bits, the others 8; ${folded} permutations folded, ${gathered} stored; relative error ${short(error.chosen)} (all 4 bits ${short(error.all4)}, all 8 bits ${short(error.all8)})`,
  );
  for (const { site, reason } of sites)
    if (reason !== undefined) events.warn(`${site} keeps its order of channels: ${reason}`, { site, reason });
  const { actKv: bits } = settings as unknown as Given;
  return {
    quantizer: fmpqQuantizer(quantizer, options, plan),
    rewrite: plan.rewrite,
    activations: plan.forms,
    ...(bits !== undefined && { kv: { bits, group: KV_GROUP, clip: true as const } }),
  };
}
