import type { SourceCheckpoint } from '../../../formats/canonical/source.js';
import type { OutputDirectory } from '../../../formats/directory/output-directory.js';
import type { SavedStatistics } from '../../../formats/statistics/read.js';
import type { NativeRuntime } from '../../../native/binding.js';
import { counted } from '../../core/words.js';
import type { Quantizer } from '../../quantize/quantizer.js';
import type { ModuleLine, QuantizeRequest, Resumption } from '../../quantize/run.js';
import { registerOutput } from '../options/run-output.js';
import type { Run } from '../run.js';
import { version } from '../version.js';
import { calibrate, saveStatistics } from './calibration.js';
import { CALIBRATION_FIELDS, TEXT_FIELDS } from './fields.js';
import { measured } from './measure.js';
import { prepared } from './method.js';
import { methodOf } from './methods.js';
import { modelSteps } from './model-steps.js';
import type { QuantizeOptions } from './options.js';
import { inputsOf, rangesOf } from './ranges.js';
import type { RecipeFile, RecipeRule } from './recipe.js';
import { resumable } from './resumable.js';
import type { RunReport } from './run-report.js';
import { readsText } from './settings.js';
import { blockFacts, blockLine, finished, moduleLine } from './summary.js';

/** Calibrates, quantizes and tells of it: what is left of `lpq quantize` when all that can be refused has been. */
export async function quantizeInto(
  options: QuantizeOptions,
  statistics: SavedStatistics | undefined,
  rts: readonly NativeRuntime[],
  run: Run,
  noted: RunReport | undefined,
): Promise<void> {
  const { quantizeCheckpoint } = await import('../../quantize/run.js');
  const { backendOf } = await import('../../quantize/identity.js');
  const { schemesFrom } = await import('./schemes.js');
  const { settings, source, output, rules } = options;
  const started = performance.now();
  const method = methodOf(settings);
  const { quantizer, close } = await starting(options, await method.quantizer(settings));
  const { clock } = noted ?? {};
  const calibrates = readsText(method, settings) && !statistics;
  clock?.enter(calibrates ? 'calibration text' : 'preflight');
  const calibration = calibrates ? await calibrate(options, run, method.further?.(settings)) : undefined;
  const { needsOfRun } = await import('./needs.js');
  const { preflight } = await import('../options/preflight.js');
  // What is read at the end is there at the beginning.
  if (typeof options.evalText === 'string')
    (await import('../../calibrate/read-text.js')).readTextFile(options.evalText);
  if (options.partial !== 'resume') {
    const needs = await needsOfRun(options, rts);
    // What is kept counts there as if it went through unquantized.
    preflight(output, options.redo ? { ...needs, output: undefined } : needs, run);
  }
  if (calibration && options.saveStats !== undefined) clock?.enter('statistics');
  if (calibration && options.saveStats !== undefined) await saveStatistics(options, calibration, rts, run);
  const request = { source, ...schemesFrom(settings, rules), lmHead: settings.lmHead };
  if (method.prepare) clock?.enter('activations');
  const decided = await withSource(source, (opened) =>
    decisions(opened, request, { settings, quantizer, calibration }, rts, run),
  );
  clock?.enter('reading the model');
  let task: ReturnType<typeof run.report.task> | undefined;
  let [done, stage, total, directory] = [0, '', 0, undefined as OutputDirectory | undefined];
  const model = modelSteps(run, clock, () => task?.end());
  const summary = await quantizeCheckpoint(
    rts,
    {
      ...request,
      output,
      quantizer,
      calibration,
      ...(statistics && { statistics }),
      ...decided,
      options: { ...recorded(options), backend: backendOf(rts) },
      version: version(),
      partial: options.partial,
      ...(options.shard && { shard: options.shard }),
      ...(options.redo && { redo: options.redo }),
    },
    {
      onPlan: ({ modules, weights, blocks, left }) => {
        run.report.event(
          'plan',
          { modules, weights, blocks, unused: left },
          `${modules} modules of ${weights.toLocaleString('en')} weights in ${blocks} blocks`,
        );
        if (left.length > 0)
          run.report.warn(`${left.length} tensors that the architecture does not use pass through unchanged`, {
            tensors: left,
          });
        total = modules;
        task = run.report.task('quantize', total);
      },
      onResume: (resumption) => {
        tellOfResumption(resumption, run);
        task = run.report.task('quantize', total - resumption.modules);
      },
      onStage: (block, blocks, name) => {
        run.interrupt.check();
        stage = `block ${block + 1}/${blocks} ${name}`;
        clock?.enter(`quantize ${name}`);
        task?.update(done, stage);
      },
      onModelStep: model.step,
      onWarning: (text, data) => run.report.warn(text, data),
      onSpan: (span, seconds) => noted?.span(span, seconds),
      onModule: (row) => {
        run.interrupt.check();
        clock?.sample();
        run.report.detail('module', row, moduleLine(row), row.note === undefined ? [] : [row.note]);
        task?.update(++done, stage);
      },
      onBlock: (block) => run.report.step('block', blockFacts(block), blockLine(block)),
    },
    (made) => {
      directory = made;
      registerOutput(made, run);
    },
  )
    .catch((error: unknown) => {
      throw resumable(error, directory);
    })
    .finally(close);
  task?.end();
  for (const rt of rts) rt.products = 'f32'; // what follows measures and proves
  const seconds = (performance.now() - started) / 1000;
  model.tell(summary.scaleTraining);
  tellOfIdle(summary.modules, run);
  const peak = process.resourceUsage().maxRSS * 1024; // the measure has memory of its own (docs/preflight.md)
  clock?.enter('measuring');
  const evaluation = noted && (await measured(options, rts[0] as NativeRuntime, seconds, run));
  await noted?.write(output, summary, { peak, evaluation }, run, options.reportAs);
  run.report.result(...finished(options, summary, { seconds, peak, evaluation }));
}

/** What is decided about the whole model before its weights are solved. */
export async function decisions(
  source: SourceCheckpoint,
  request: Pick<QuantizeRequest, 'scheme' | 'rules' | 'lmHead'>,
  work: Parameters<typeof prepared>[2],
  rts: readonly NativeRuntime[],
  run: Run,
): Promise<Partial<QuantizeRequest>> {
  const { settings, calibration } = work;
  const more = await prepared(source, request, work, rts, run);
  const ranges = calibration ? await rangesOf(source, request, { settings, calibration }, rts, run) : {};
  const inputs = await inputsOf(source, request, settings, ranges);
  const kv = (await import('../options/kv.js')).recordedCache(settings, source);
  return { ...more, ...ranges, ...inputs, ...(kv && { kv }) };
}

function tellOfResumption({ blocks, of, modules, damaged }: Resumption, run: Run): void {
  run.report.event('resume', { blocks, of, modules, damaged }, `continues from ${blocks} finished blocks of ${of}`);
  if (damaged.length > 0)
    run.report.warn(`block ${damaged.join(', ')} is damaged and will be computed again`, { damaged });
}

/** Named up to this many; --json and the report name all. */
const NAMED = 6;

/** Modules, experts as a rule, that too few tokens of the calibration text reached: they are rounded as they are. */
function tellOfIdle(modules: readonly ModuleLine[], run: Run): void {
  const idle = modules.flatMap(({ name, tokens, note }) =>
    note === undefined || tokens === null ? [] : [{ name, tokens }],
  );
  if (idle.length === 0) return;
  const named = idle.slice(0, NAMED).map(({ name, tokens }) => `${name} (${counted(tokens, 'token')})`);
  const more = idle.length > NAMED ? [`${idle.length - NAMED} more`] : [];
  run.report.warn(
    `${counted(idle.length, 'module')} saw fewer calibration tokens than an eighth of their input features, so lpq rounds them to nearest: ${[...named, ...more].join(', ')} (use more --samples, or --moe-coverage for experts)`,
    { modules: idle },
  );
}

/** What solves: from the codes of an earlier checkpoint, where training begins with one. */
export async function starting({ begun, source, settings, rules }: QuantizeOptions, solver: Quantizer) {
  if (begun === undefined) return { quantizer: solver, close: () => {} };
  const { schemesFrom } = await import('./schemes.js');
  const { beginning } = await import('./begun.js');
  const modules = await withSource(source, async (checkpoint) =>
    beginning(begun, checkpoint, { ...schemesFrom(settings, rules), lmHead: settings.lmHead, settings }),
  );
  return { quantizer: modules.quantizer(solver), close: () => modules.close() };
}

async function withSource<T>(dir: string, work: (source: SourceCheckpoint) => Promise<T>): Promise<T> {
  const { SourceCheckpoint } = await import('../../../formats/canonical/source.js');
  const source = SourceCheckpoint.open(dir);
  try {
    return await work(source);
  } finally {
    source.close();
  }
}

/** What goes into the checkpoint's provenance: what the bytes depend on, no paths, devices or threads. */
function recorded({ settings, rules, stats, redo, lora, requantize }: QuantizeOptions): Record<string, unknown> {
  // A text that nobody read, or that was read before, is no setting of this run; as tokenizers begin texts is no choice.
  const read = readsText(methodOf(settings), settings) && stats === undefined;
  const idle = read ? [] : [...CALIBRATION_FIELDS, ...TEXT_FIELDS].map(({ field }) => field);
  const kept = Object.entries(settings).filter(
    ([field, value]) => !idle.includes(field) && !(field === 'bos' && value === 'auto'),
  );
  return {
    ...Object.fromEntries(kept),
    ...(lora && { lora }),
    ...(requantize && { requantize }),
    ...(redo && { redo: redo.match.source }),
    ...recordedRules(rules),
  };
}

/** Rules as a recipe and a record have them; nothing where there are none. */
export function recordedRules(rules: readonly RecipeRule[]): Pick<RecipeFile, 'rules'> {
  if (rules.length === 0) return {};
  return { rules: rules.map(({ match, skip, scheme }) => ({ match: match.source, ...(skip ? { skip } : scheme) })) };
}
