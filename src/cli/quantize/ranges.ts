import type { SourceCheckpoint } from '../../../formats/canonical/source.js';
import type { NativeRuntime } from '../../../native/binding.js';
import type { Calibration } from '../../calibrate/text.js';
import type { QuantizeRequest } from '../../quantize/run.js';
import { openRuntime, type Run } from '../run.js';
import type { FullSettings } from './settings.js';

/** The ranges for --input-scales and --kv-scales, from a forward pass on the CPU; empty without these options. */
export async function rangesOf(
  source: SourceCheckpoint,
  request: Pick<QuantizeRequest, 'scheme' | 'rules' | 'lmHead'>,
  { settings, calibration }: { readonly settings: FullSettings; readonly calibration: Calibration },
  rts: readonly NativeRuntime[],
  run: Run,
): Promise<Pick<QuantizeRequest, 'ranges'>> {
  const { inputScales, kvScales: cache = false } = settings;
  if (!inputScales && !cache) return {};
  const { openModel } = await import('../../model/graph.js');
  const { planQuantization } = await import('../../quantize/plan.js');
  const { observeRanges } = await import('../../quantize/ranges.js');
  const cpu = rts.find(({ device }) => device === 'cpu') ?? openRuntime(run, { device: 'cpu' });
  const graph = openModel(source);
  const inputs = inputScales ? new Set(planQuantization(graph, request).keys()) : undefined;
  const task = run.report.task('ranges', graph.blocks.length);
  const ranges = await observeRanges(cpu, source, graph, {
    ...{ sequences: calibration.sequences, cache },
    ...(inputs && { inputs }),
    onBlock: (block) => {
      run.interrupt.check();
      task.update(block, `block ${block + 1}/${graph.blocks.length}`);
    },
  });
  task.end();
  return { ranges };
}

/** What linears read with --input-dtype; empty without it. Throws LPQ_GROUP_SIZE. */
export async function inputsOf(
  source: SourceCheckpoint,
  request: Pick<QuantizeRequest, 'scheme' | 'rules' | 'lmHead'>,
  { inputDtype }: Pick<FullSettings, 'inputDtype'>,
  { ranges }: Pick<QuantizeRequest, 'ranges'>,
): Promise<Pick<QuantizeRequest, 'activations'>> {
  if (inputDtype === undefined) return {};
  const { openBlocks } = await import('../../model/graph.js');
  const { planQuantization } = await import('../../quantize/plan.js');
  const { roundedInputs } = await import('../../quantize/rounded-inputs.js');
  return { activations: roundedInputs(planQuantization(openBlocks(source), request), inputDtype, ranges?.inputs) };
}
