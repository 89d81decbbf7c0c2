import path from 'node:path';
import { SourceCheckpoint } from '../../../formats/canonical/source.js';
import { directoryOrigin } from '../../../formats/directory/origin.js';
import type { Evaluation } from '../../../formats/report/schema.js';
import { streamOf } from '../../../formats/safetensors/stream.js';
import type { NativeRuntime } from '../../../native/binding.js';
import { openWeights } from '../../artifact/open.js';
import { shareDirectory } from '../../calibrate/bundled.js';
import { textDivergence } from '../../eval/divergence.js';
import { statedContext } from '../../model/context.js';
import { openModel } from '../../model/graph.js';
import { rateOf } from '../../quantize/estimate-time.js';
import { evaluationOf } from '../eval/evaluation.js';
import { progress, type Run } from '../run.js';
import { asLpqError } from '../terminal/failure.js';
import { line } from '../terminal/terminal.js';
import { duration } from '../terminal/units.js';
import type { QuantizeOptions } from './options.js';

/** Windows that are read at most, and their length. */
const [WINDOWS, LENGTH] = [8, 512];
/** Of the run's time, and at least so many seconds. */
const [SHARE, LEAST] = [0.1, 2];
/** What attention, norms and logits add to the products of linears. */
const OVERHEAD = 1.5;

/**
 * Perplexity before and after, and the divergence, on the first windows of a text: as many as a tenth of the run's time allows, where
 * nobody gave a text. Undefined, and told, where that is not enough or the model cannot be read. The output is complete by
 * then: only an interrupt ends the run.
 */
export async function measured(
  { source: dir, output, settings, evalText }: QuantizeOptions,
  rt: NativeRuntime,
  seconds: number,
  run: Run,
): Promise<Evaluation | undefined> {
  // Devices have no kernels for some forms of the cache (options/kv.ts).
  if (evalText === false || (settings.kv !== undefined && rt.device !== 'cpu')) return undefined;
  if (streamOf(dir)) {
    run.report.event(
      'unmeasured',
      { why: '--stream' },
      `quality not measured, because --stream would fetch all of ${directoryOrigin(dir).name} again: ${line`lpq eval ${output} --text FILE measures the result`}`,
    );
    return undefined;
  }
  const given = typeof evalText === 'string' ? evalText : undefined;
  const text = given ?? path.join(shareDirectory(), 'text', 'books-valid.txt');
  const again = line`lpq eval ${output} --text FILE --source ${dir} --report measures it`;
  const reference = SourceCheckpoint.open(dir);
  try {
    const ctx = Math.min(LENGTH, statedContext(reference).tokens);
    const each = given === undefined ? await windowSeconds(reference, ctx, rt) : 0;
    const windows = each > 0 ? Math.min(WINDOWS, Math.floor(Math.max(LEAST, SHARE * seconds) / each)) : WINDOWS;
    if (windows < 2) {
      const need = `about ${duration(WINDOWS * each)}`;
      run.report.event(
        'unmeasured',
        { seconds: WINDOWS * each },
        `quality not measured, because it takes ${need}: ${again}`,
      );
      return undefined;
    }
    const model = await openWeights(output, rt);
    const { step: onProgress, end } = progress(run, 'measure', false);
    try {
      const found = await textDivergence(rt, reference, model, text, { ctx, windows, bos: settings.bos, onProgress });
      const { ppl, referencePpl, kl } = found;
      if (![ppl, referencePpl, kl].every(({ mean }) => Number.isFinite(mean))) return undefined;
      return evaluationOf(found, directoryOrigin(dir).name);
    } finally {
      end();
      model.close();
    }
  } catch (thrown) {
    const error = asLpqError(thrown);
    if (error.code === 'LPQ_ABORTED') throw error;
    const why = error.message;
    if (given !== undefined) run.report.warn(`quality was not measured: ${why}`);
    else run.report.event('unmeasured', { why }, `quality not measured: ${why}`);
    return undefined;
  } finally {
    reference.close();
  }
}

/** Seconds that two models take for a window, by the rate of the device now. */
async function windowSeconds(source: SourceCheckpoint, ctx: number, rt: NativeRuntime): Promise<number> {
  const graph = openModel(source);
  const linears = graph.blocks.flatMap((block) => block.stages.flatMap((stage) => stage.feeds));
  const weights = linears.reduce((sum, feed) => sum + feed.linears.reduce((all, { n, k }) => all + n * k, 0), 0);
  const head = graph.vocab * graph.hidden;
  return (OVERHEAD * 2 * 2 * (weights + head) * ctx) / (await rateOf(rt));
}
