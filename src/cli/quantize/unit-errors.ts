import type { NativeRuntime } from '../../../native/binding.js';
import { LpqError } from '../../core/error.js';
import { planSource } from '../../model/graph.js';
import type { ModelGraph } from '../../model/program.js';
import type { WeightSource } from '../../model/source.js';
import type { DivergenceRequest } from '../../quantize/divergences.js';
import { unitCosts } from '../../quantize/sensitivity.js';
import type { Run } from '../run.js';

/** What errors of units are measured by: gradients of the loss at the model's end, or local errors and one divergence a unit. */
export type ChooseBy = 'loss' | 'error';

/** What a model is measured on. */
export interface MeasuredModel {
  readonly rts: readonly NativeRuntime[];
  readonly source: WeightSource;
  readonly graph: ModelGraph;
  /** Whether shards of the source come and go (--stream). */
  readonly streamed: boolean;
}

/** What every scheme does to the loss of every unit, nats a token, and its bits; by unit, in the order of schemes. */
export interface UnitErrors {
  readonly errors: readonly (readonly number[])[];
  readonly costs: readonly (readonly number[])[];
}

/** Measures units. */
export async function unitErrors(request: DivergenceRequest, by: ChooseBy, run: Run): Promise<UnitErrors> {
  const { rts, source, graph, units, schemes, sequences } = request;
  const costs = units.map((unit) => unitCosts(unit, schemes));
  const count = units.reduce((sum, { linears }) => sum + linears.length, 0);
  const task = run.report.task('measure', count);
  const onLinear = (done: number, name: string) => {
    run.interrupt.check();
    task.update(done, name);
  };
  try {
    const check = () => run.interrupt.check();
    if (by === 'error') {
      const { measureDivergences } = await import('../../quantize/divergences.js');
      return { costs, errors: await measureDivergences(request, { onLinear, check }) };
    }
    const { measureLosses } = await import('../../tune/choice/losses.js');
    const plan = planSource(source);
    const model = { rt: rts[0] as NativeRuntime, source, graph, plan, units, schemes, sequences };
    return { costs, errors: await measureLosses(model, { onLinear, check }) };
  } finally {
    task.end();
  }
}

/**
 * What a model is measured by: local errors, or gradients where the user asked for them. Throws LPQ_USAGE and LPQ_DEVICE where there are
 * none.
 */
export async function measureFor(
  { rts, source, graph, streamed }: MeasuredModel,
  wish: ChooseBy | undefined,
): Promise<ChooseBy> {
  if (wish !== 'loss') return 'error';
  const { withoutGradient } = await import('../../tune/block.js');
  const device = rts[0]?.device;
  if (device !== undefined && device !== 'cpu')
    throw new LpqError('LPQ_DEVICE', '--choose-by loss computes on the CPU only', {
      got: device,
      expected: 'cpu',
      hint: 'Use --device cpu, or --choose-by error.',
    });
  const { blocks } = planSource(source);
  const index = blocks.findIndex((block) => withoutGradient(block) !== undefined);
  const lacking = blocks[index] && withoutGradient(blocks[index]);
  const why =
    lacking !== undefined
      ? `block ${index} has ${lacking}`
      : graph.blocks.some(({ predicts }) => predicts)
        ? 'its loss does not read layers of multi-token prediction (--mtp)'
        : streamed
          ? 'going back needs all shards again (--stream)'
          : undefined;
  if (why === undefined) return 'loss';
  throw new LpqError('LPQ_USAGE', `--choose-by loss cannot measure ${source.dir}: ${why}`, {
    expected: 'a model whose operations all have gradients (docs/methods.md)',
    hint: 'Use --choose-by error.',
  });
}
