import { SourceCheckpoint } from '../../../formats/canonical/source.js';
import type { NativeRuntime } from '../../../native/binding.js';
import type { Calibration } from '../../calibrate/text.js';
import { LpqError } from '../../core/error.js';
import { FMPQ_DEFAULTS, type FmpqOptions } from '../../fmpq/options.js';
import { checkModule, planFmpq } from '../../fmpq/plan.js';
import { fmpqQuantizer } from '../../fmpq/quantizer.js';
import { openModel, planSource } from '../../model/graph.js';
import type { KvForm, WeightSource } from '../../model/source.js';
import { planQuantization } from '../../quantize/plan.js';
import type { Quantizer } from '../../quantize/quantizer.js';
import type { QuantizeRequest } from '../../quantize/run.js';
import type { Run } from '../run.js';
import { significant } from '../terminal/units.js';
import type { FullSettings } from './settings.js';

/** Tokens that share a scale in a channel of the cache. */
const KV_GROUP = 64;

function optionsOf(settings: FullSettings): FmpqOptions {
  const { actInt4Share, actThreshold, actSearch, actGather, actScale, seed } = settings;
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

/** As planQuantization; a module that groups do not divide has no shorter ones to fall back to here. */
export function planForFmpq(...request: Parameters<typeof planQuantization>): ReturnType<typeof planQuantization> {
  try {
    return planQuantization(...request);
  } catch (error) {
    if (!(error instanceof LpqError) || error.code !== 'LPQ_GROUP_SIZE') throw error;
    throw new LpqError(error.code, error.message, {
      got: error.got,
      expected:
        'input features that blocks of 128 divide: --method fmpq has one scale of weights and activations for each',
      hint: 'Leave such modules out with a rule of a recipe (skip), or use --method gptq.',
      cause: error,
    });
  }
}

/** Refuses what cannot be multiplied in W4Ax, before anything is computed. Throws LPQ_USAGE, LPQ_GROUP_SIZE. */
export function checkFmpq(
  source: WeightSource,
  settings: FullSettings,
  plan: ReturnType<typeof planQuantization>,
): void {
  for (const [name, { scheme, linear }] of plan) checkModule(name, scheme, linear.k);
  if (settings.actKv === undefined) return;
  const latent = planSource(source).blocks.findIndex(({ attention }) => attention.kind === 'mla');
  if (latent >= 0)
    throw new LpqError('LPQ_USAGE', `--act-kv is for keys and values; block ${latent} caches latent vectors instead`, {
      hint: 'Leave the option out for this model.',
    });
}

/** Plans permutations and precisions; what the plan adds to the request. */
export async function prepareFmpq(
  request: Pick<QuantizeRequest, 'source' | 'scheme' | 'rules' | 'lmHead'>,
  settings: FullSettings,
  quantizer: Quantizer,
  calibration: Calibration,
  rts: readonly NativeRuntime[],
  run: Run,
): Promise<Pick<QuantizeRequest, 'quantizer' | 'rewrite' | 'activations' | 'kv'>> {
  const source = SourceCheckpoint.open(request.source);
  try {
    const graph = openModel(source);
    const schemes = planQuantization(graph, request);
    const options = optionsOf(settings);
    const task = run.report.task('observe', graph.blocks.length);
    const plan = await planFmpq(rts[0] as NativeRuntime, source, graph, schemes, calibration.sequences, options, {
      onObserve: (block) => {
        run.interrupt.check();
        task.update(block, `block ${block + 1}/${graph.blocks.length}`);
      },
      onSite: () => run.interrupt.check(),
    });
    task.end();
    const count = (done: string) => plan.sites.filter((site) => site.done === done).length;
    const kept = plan.sites.filter(({ reason }) => reason !== undefined);
    const percent = (share: number) => `${(100 * share).toFixed(1)} %`;
    run.report.event(
      'activations',
      { share: plan.share, error: plan.error, folded: count('folded'), gathered: count('gathered'), sites: plan.sites },
      `activations: ${percent(plan.share.macs)} of the multiplications and ${percent(plan.share.blocks)} of the blocks with 4 bits, the others with 8; ${count('folded')} permutations folded, ${count('gathered')} stored; relative error ${significant(plan.error.chosen)} (all 4 bits ${significant(plan.error.all4)}, all 8 bits ${significant(plan.error.all8)})`,
    );
    for (const { site, reason } of kept)
      run.report.warn(`${site} keeps its order of channels: ${reason}`, { site, reason });
    const kv: KvForm | undefined =
      settings.actKv === undefined ? undefined : { bits: settings.actKv, group: KV_GROUP, clip: true };
    return {
      quantizer: fmpqQuantizer(quantizer, options, plan),
      rewrite: plan.rewrite,
      activations: plan.forms,
      ...(kv && { kv }),
    };
  } finally {
    source.close();
  }
}
