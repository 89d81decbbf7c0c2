import type { Command } from 'commander';
import type { OutputDirectory } from '../../formats/directory/output-directory.js';
import type { PartialMode } from '../../formats/directory/partial.js';
import type { NativeRuntime } from '../../native/binding.js';
import type { Calibration } from '../calibrate/text.js';
import { LpqError } from '../core/error.js';
import type { ModuleLine } from '../quantize/run.js';
import { modelDirectory } from './hub.js';
import { givenSettings, type MethodFlags, methodOptions, quantizerFor } from './method.js';
import { packDirectory } from './pack.js';
import type { RecipeRule } from './recipe.js';
import { resumable } from './resumable.js';
import { type ComputeOptions, computeOptions, openRuntime, openRuntimes, type Run } from './run.js';
import type { FullSettings } from './settings.js';
import { requireKind } from './sources.js';
import { bytes, duration, significant } from './units.js';
import { version } from './version.js';

/** What commander makes of the arguments: settings (unchecked) and what the bytes do not depend on. */
interface QuantizeFlags extends ComputeOptions, MethodFlags {
  readonly output: string;
  readonly recipe?: string;
  readonly calib?: string;
  readonly pack?: string;
  readonly dryRun?: boolean;
  readonly resume?: boolean;
  readonly restart?: boolean;
}

/** A checked command: everything the runner needs. */
export interface QuantizeOptions {
  readonly source: string;
  readonly output: string;
  readonly settings: FullSettings;
  readonly rules: readonly RecipeRule[];
  /** Calibration text; undefined: the bundled one. */
  readonly calib: string | undefined;
  readonly packTarget: string | undefined;
  /** What to do about what a stopped run left. */
  readonly partial: PartialMode;
}

/** `lpq quantize MODEL -o OUT (--bits N | --dtype T)`. */
export function quantizeCommand(program: Command, run: Run): Command {
  const command = program
    .command('quantize')
    .description('quantize a Hugging Face checkpoint (safetensors) to any type of 1 to 8 bits')
    .argument('<model>', 'directory of the checkpoint, or ORG/NAME[@REVISION] of the Hugging Face Hub')
    .requiredOption('-o, --output <dir>', 'directory to make');
  return computeOptions(
    methodOptions(command)
      .option('--calib <file>', 'calibration text: .txt, or .jsonl with {"text": ...} (default: bundled books)')
      .option('--calib-join', 'join the documents of a .jsonl and cut windows')
      .option('--recipe <file>', 'JSON with defaults for these options and rules for modules')
      .option('--pack <target>', 'also pack the result, into OUT-TARGET')
      .option('--resume', 'go on where a stopped run of the same command left off (from the start, if there was none)')
      .option('--restart', 'discard what a stopped run left of this output')
      .option('--dry-run', 'only list what would be done with each module'),
  ).action((model: string, flags: QuantizeFlags) => quantize(model, flags, run));
}

/** Checks flags and recipe together. Throws LPQ_USAGE, LPQ_RECIPE, LPQ_FILE. */
export async function quantizeOptions(source: string, flags: QuantizeFlags): Promise<QuantizeOptions> {
  const { mergeSettings } = await import('./settings.js');
  const { readRecipe } = await import('./recipe.js');
  const { output, recipe, calib, pack, resume, restart } = flags;
  if (resume && restart)
    throw new LpqError('LPQ_USAGE', '--resume and --restart exclude each other', { hint: 'Give one of them.' });
  const given = await givenSettings(flags);
  const file = recipe === undefined ? { settings: {}, rules: [] } : readRecipe(recipe);
  const settings = mergeSettings(given, file.settings);
  if (settings.method === 'rtn' && calib !== undefined)
    throw new LpqError('LPQ_USAGE', '--calib has no effect with --method rtn, which takes no calibration', {
      hint: 'Leave the option out, or use --method gptq.',
    });
  return {
    source,
    output,
    settings,
    rules: file.rules,
    calib,
    packTarget: pack,
    partial: resume ? 'resume' : restart ? 'restart' : 'new',
  };
}

async function quantize(given: string, flags: QuantizeFlags, run: Run): Promise<void> {
  const checked = await quantizeOptions(given, flags);
  const { refuseExisting } = await import('../../formats/directory/output-directory.js');
  const { clearFinished, refusePartial } = await import('../../formats/directory/partial.js');
  const { packTarget, output: target } = checked;
  const packed = packTarget === undefined ? undefined : `${target.replace(/\/+$/, '')}-${packTarget}`;
  if (checked.partial === 'resume' && packed === undefined && (await clearFinished(target)))
    return run.report.result(
      { command: 'quantize', output: target, finished: true },
      `${target} was finished already\n`,
    );
  // Everything that can be refused is refused before anything is computed.
  for (const output of [target, packed]) if (output !== undefined) refuseExisting(output);
  if (packTarget !== undefined) (await import('../pack/targets/index.js')).packTarget(packTarget);
  // What is wrong with the command is told before anything is downloaded.
  const options = { ...checked, source: await modelDirectory(given, run, { events: true }) };
  await requireKind(options.source, 'source');
  if (flags.dryRun) return (await import('./dry-run.js')).printPlan(options, run);
  refusePartial(options.output, options.partial);
  await checkPlan(options);
  const rts = openRuntimes(run, flags);
  await quantizeInto(options, rts, run);
  if (packTarget !== undefined && packed !== undefined)
    await packDirectory(
      options.output,
      { target: packTarget, output: packed },
      rts[0]?.device === 'cpu' ? rts[0] : openRuntime(run, { ...flags, device: 'cpu' }),
      run,
    );
}

/** Refuses what the runner would, before the calibration text is read: a broken checkpoint, groups that do not divide. */
async function checkPlan({ source, settings, rules }: QuantizeOptions): Promise<void> {
  const { SourceCheckpoint } = await import('../../formats/canonical/source.js');
  const { openModel } = await import('../model/graph.js');
  const { planQuantization } = await import('../quantize/run.js');
  const { schemesFrom } = await import('./schemes.js');
  const checkpoint = SourceCheckpoint.open(source);
  try {
    planQuantization(openModel(checkpoint), { ...schemesFrom(settings, rules), lmHead: settings.lmHead });
  } finally {
    checkpoint.close();
  }
}

async function quantizeInto(options: QuantizeOptions, rts: readonly NativeRuntime[], run: Run): Promise<void> {
  const { quantizeCheckpoint } = await import('../quantize/run.js');
  const { backendOf } = await import('../quantize/identity.js');
  const { schemesFrom } = await import('./schemes.js');
  const { settings, source, output } = options;
  const { scheme, rules } = schemesFrom(settings, options.rules);
  const started = performance.now();
  const quantizer = await quantizerFor(settings);
  const calibration = quantizer.statistics ? await calibrate(options, run) : undefined;
  let task: ReturnType<typeof run.report.task> | undefined;
  let [done, stage, total] = [0, '', 0];
  let directory: OutputDirectory | undefined;
  const summary = await quantizeCheckpoint(
    rts,
    {
      source,
      output,
      scheme,
      rules,
      quantizer,
      calibration,
      lmHead: settings.lmHead,
      options: { ...recorded(options), backend: backendOf(rts) },
      version: version(),
      partial: options.partial,
    },
    {
      onPlan: ({ modules, weights, blocks, left }) => {
        run.report.event(
          'plan',
          { modules, weights, blocks, unused: left },
          `${modules} modules of ${weights.toLocaleString('en')} weights in ${blocks} blocks`,
        );
        if (left.length > 0)
          run.report.warn(`${left.length} tensors that the architecture does not use go through as they are`, {
            tensors: left,
          });
        total = modules;
        task = run.report.task('quantize', total);
      },
      onResume: ({ blocks, of, modules, damaged }) => {
        run.report.event(
          'resume',
          { blocks, of, modules, damaged },
          `going on from ${blocks} finished blocks of ${of}`,
        );
        if (damaged.length > 0)
          run.report.warn(`block ${damaged.join(', ')} was finished but is damaged, and is done again`, { damaged });
        task = run.report.task('quantize', total - modules);
      },
      onStage: (block, blocks, name) => {
        run.interrupt.check();
        stage = `block ${block + 1}/${blocks} ${name}`;
        task?.update(done, stage);
      },
      onModule: (line) => {
        run.interrupt.check();
        run.report.event('module', line, moduleLine(line));
        task?.update(++done, stage);
      },
    },
    (made) => {
      directory = made;
      run.interrupt.cleanup(() => made.abortSync());
    },
  ).catch((error: unknown) => {
    throw resumable(error, directory);
  });
  task?.end();
  const seconds = (performance.now() - started) / 1000;
  const { modules, ...facts } = summary;
  run.report.result(
    { command: 'quantize', output, method: settings.method, modules: modules.length, ...facts, seconds },
    `quantized ${modules.length} modules to ${summary.bitsPerWeight.toFixed(3)} bits per weight in ${output}, ${duration(seconds)}, peak memory ${bytes(process.resourceUsage().maxRSS * 1024)}\n`,
  );
}

async function calibrate({ source, settings, calib }: QuantizeOptions, run: Run): Promise<Calibration> {
  const { bundledCalibration } = await import('../calibrate/bundled.js');
  const { loadCalibration } = await import('../calibrate/text.js');
  const { openTokenizer } = await import('../calibrate/tokenizer.js');
  const { samples, seqLen, seed, calibJoin } = settings;
  const file = calib ?? bundledCalibration();
  const found = loadCalibration(file, openTokenizer(source), { samples, length: seqLen, seed, join: calibJoin });
  const { sequences, tokens, available, name, sha256, kind } = found;
  run.report.event(
    'calibration',
    { file, name, sha256, kind, sequences: sequences.length, tokens, length: seqLen, seed, available },
    `calibrating on ${sequences.length} of ${available} ${kind} of ${name}: ${tokens.toLocaleString('en')} tokens, at most ${seqLen} a sequence, seed ${seed}`,
  );
  if (sequences.length < samples)
    run.report.warn(`${name} gives only ${sequences.length} of the ${samples} sequences asked for`, {
      sequences: sequences.length,
      samples,
    });
  return found;
}

/** What goes into the checkpoint's provenance: what the bytes depend on, no paths, devices or threads. */
function recorded({ settings, rules }: QuantizeOptions): Record<string, unknown> {
  // Settings of calibration and of the solver say nothing about weights that were only rounded.
  const { order, damp, gptaq, samples, seqLen, seed, calibJoin, ...always } = settings;
  const calibrated = settings.method === 'rtn' ? {} : { order, damp, gptaq, samples, seqLen, seed, calibJoin };
  return {
    ...always,
    ...calibrated,
    ...(rules.length > 0 && {
      rules: rules.map(({ match, skip, scheme }) => ({ match: match.source, ...(skip ? { skip } : scheme) })),
    }),
  };
}

function moduleLine(line: ModuleLine): string {
  const parts = [
    line.name,
    line.scheme,
    `${line.bitsPerWeight.toFixed(3)} b/w`,
    ...(line.relativeError === null ? [] : [`error ${significant(line.relativeError)}`]),
    ...(line.damp === null ? [] : [`damp ${significant(line.damp)}`]),
    duration(line.seconds),
  ];
  return [parts.join('  '), ...(line.note === undefined ? [] : [line.note])].join('\n  ');
}
