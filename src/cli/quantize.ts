import type { Command } from 'commander';
import type { OutputDirectory } from '../../formats/directory/output-directory.js';
import type { PartialMode } from '../../formats/directory/partial.js';
import type { KvScheme } from '../../formats/kv/scheme.js';
import { parseShard, type Shard, shardPath } from '../../formats/shards/schema.js';
import type { SavedStatistics } from '../../formats/statistics/read.js';
import type { NativeRuntime } from '../../native/binding.js';
import type { WeightedFile } from '../calibrate/mix.js';
import { LpqError } from '../core/error.js';
import type { ModuleLine } from '../quantize/run.js';
import { calibrate, openStatistics, saveStatistics } from './calibration.js';
import { parseBytes } from './device.js';
import { modelDirectory } from './hub.js';
import { fmpqOptions, givenSettings, kvOptions, type MethodFlags, methodOptions, quantizerFor } from './method.js';
import { packDirectory } from './pack.js';
import { integer, number } from './parse.js';
import type { Recipe, RecipeRule } from './recipe.js';
import { resumable } from './resumable.js';
import { type ComputeOptions, computeOptions, openRuntime, openRuntimes, type Run } from './run.js';
import type { RunReport } from './run-report.js';
import type { FullSettings, Settings } from './settings.js';
import { requireKind } from './sources.js';
import type { SizeTarget } from './target-size.js';
import { bytes, duration, significant } from './units.js';
import { version } from './version.js';

/** What commander makes of the arguments: settings (unchecked) and what the bytes do not depend on. */
export interface QuantizeFlags extends ComputeOptions, MethodFlags {
  readonly output?: string;
  readonly recipe?: string;
  readonly calib?: readonly string[];
  readonly saveStats?: string;
  readonly stats?: string;
  readonly pack?: string;
  readonly dryRun?: boolean;
  readonly resume?: boolean;
  readonly restart?: boolean;
  readonly report?: boolean;
  readonly printRecipe?: boolean;
  readonly targetSize?: number;
  readonly targetBpw?: number;
  readonly tp?: number;
  readonly timed?: boolean;
  readonly shard?: Shard;
}

/** A checked command: everything the runner needs. */
export interface QuantizeOptions extends CalibrationOptions {
  readonly output: string;
  readonly rules: readonly RecipeRule[];
  readonly packTarget: string | undefined;
  readonly shard?: Shard;
}

/** What concerns calibration alone, all that a run needs which only saves statistics. */
export interface CalibrationOptions {
  readonly source: string;
  readonly settings: FullSettings;
  /** Calibration texts; none: the bundled one. */
  readonly calib: readonly WeightedFile[];
  /** Directory to save statistics in. */
  readonly saveStats: string | undefined;
  /** Directory of statistics that take the place of a calibration text. */
  readonly stats: string | undefined;
  /** What to do about what a stopped run left. */
  readonly partial: PartialMode;
}

/** `lpq quantize MODEL -o OUT (--bits N | --dtype T)`. */
export function quantizeCommand(program: Command, run: Run): Command {
  const command = program
    .command('quantize')
    .description('quantize a Hugging Face checkpoint (safetensors) to any type of 1 to 8 bits')
    .argument('<model>', 'directory of the checkpoint, or ORG/NAME[@REVISION] of the Hugging Face Hub')
    .option('-o, --output <dir>', 'directory to make (may be left out with --save-stats)');
  return computeOptions(
    kvOptions(fmpqOptions(methodOptions(command)))
      .option(
        '--calib <file[:weight]>',
        'calibration text: .txt, or .jsonl with {"text": ...} or {"messages": ...}; several with weights (default: bundled books)',
        (given: string, before: readonly string[] = []) => [...before, given],
      )
      .option('--calib-join', 'join the documents of a .jsonl and cut windows')
      .option('--save-stats <dir>', "save what calibration finds in the unquantized model, for other runs' --stats")
      .option('--stats <dir>', 'quantize with saved statistics: no calibration text, no forward pass')
      .option('--recipe <file>', 'YAML or JSON with defaults for these options and rules for modules (docs/recipes.md)')
      .option('--pack <target>', 'also pack the result, into OUT-TARGET')
      .option(
        '--target-size <size>',
        'choose bits of 2 to 8 for each module so that the output takes at most this, such as 5g',
        parseBytes('--target-size'),
      )
      .option(
        '--target-bpw <bits>',
        'the same for the mean bits of a quantized weight, such as 3.6',
        number('--target-bpw'),
      )
      .option('--shard <i/n>', 'only part i (from 0) of n, for lpq merge; with --method rtn or --stats', parseShard)
      .option('--resume', 'go on where a stopped run of the same command left off (from the start, if there was none)')
      .option('--restart', 'discard what a stopped run left of this output')
      .option('--print-recipe', 'only print the recipe that repeats this run')
      .option('--no-report', 'write no OUT.report.json and OUT.report.html')
      .option(
        '--dry-run',
        'only list what would be done with each module and what it takes; --pack may be a list, or all',
      )
      .option('--tp <ranks>', 'with --dry-run --pack: for so many ranks of tensor parallelism', integer('--tp', 1))
      .option('--timed', 'with --dry-run: quantize one block, and tell how long all will take'),
  ).action((model: string, flags: QuantizeFlags) => quantize(model, flags, run));
}

/** Checks flags and recipe together. Without an output it is statistics alone. Throws LPQ_USAGE, LPQ_RECIPE, LPQ_FILE. */
export async function quantizeOptions(
  source: string,
  flags: QuantizeFlags,
): Promise<QuantizeOptions | (CalibrationOptions & { readonly output?: undefined })> {
  const { checkCalibration, mergeSettings } = await import('./settings.js');
  const { readRecipe } = await import('./recipe.js');
  const { parseWeighted } = await import('../calibrate/mix.js');
  const { output, recipe, saveStats, pack, resume, restart } = flags;
  if (resume && restart)
    throw new LpqError('LPQ_USAGE', '--resume and --restart exclude each other', { hint: 'Give one of them.' });
  if (output === undefined && saveStats === undefined && !flags.printRecipe)
    throw new LpqError('LPQ_USAGE', "required option '-o, --output <dir>' not specified");
  const given = await givenSettings(flags);
  const file: Recipe = recipe === undefined ? { settings: {}, rules: [] } : readRecipe(recipe);
  // A text on the command line takes the place of the recipe's statistics, and the other way round.
  const calibrated = (given.method ?? file.settings.method) !== 'rtn';
  const calib = flags.calib ?? (calibrated && flags.stats === undefined ? file.calib : undefined) ?? [];
  const stats = flags.stats ?? (calibrated && flags.calib === undefined ? file.stats : undefined);
  const idle =
    output === undefined ? (['pack', 'dryRun'] as const).find((name) => flags[name] !== undefined) : undefined;
  if (idle)
    throw new LpqError('LPQ_USAGE', `--${idle === 'pack' ? 'pack' : 'dry-run'} has no effect without -o OUT`, {
      hint: 'Without it, lpq quantize only saves statistics.',
    });
  const sized = checkTarget(flags, given);
  for (const name of ['timed', 'tp'] as const)
    if (flags[name] !== undefined && !flags.dryRun)
      throw new LpqError('LPQ_USAGE', `--${name} has no effect without --dry-run`);
  const settings = checkCalibration(mergeSettings(given, file.settings, output !== undefined && !sized), given, {
    calib: flags.calib !== undefined,
    saveStats: saveStats !== undefined,
    stats: stats !== undefined,
  });
  const calibration: CalibrationOptions = {
    source,
    settings,
    calib: calib.map(parseWeighted),
    saveStats,
    stats,
    partial: resume ? 'resume' : restart ? 'restart' : 'new',
  };
  if (output === undefined) return calibration;
  if (flags.shard && (pack !== undefined || flags.targetSize !== undefined || flags.targetBpw !== undefined))
    throw new LpqError(
      'LPQ_USAGE',
      `--shard does not go with ${pack === undefined ? '--target-size and --target-bpw' : '--pack'}`,
      {
        hint:
          pack === undefined
            ? 'Choose the bits once, with --print-recipe, and give every shard that recipe.'
            : 'Pack what lpq merge makes of the shards.',
      },
    );
  const place = flags.shard && !flags.dryRun && !flags.printRecipe ? shardPath(output, flags.shard) : output;
  return {
    ...calibration,
    output: place,
    rules: file.rules,
    packTarget: pack,
    ...(flags.shard && { shard: flags.shard }),
  };
}

/** Whether bits are to be chosen. Throws LPQ_USAGE where they are given too, or both kinds of target are. */
function checkTarget({ targetSize, targetBpw, output }: QuantizeFlags, { bits, dtype }: Settings): boolean {
  const flag = targetSize !== undefined ? '--target-size' : targetBpw !== undefined ? '--target-bpw' : undefined;
  if (flag === undefined) return false;
  if (targetSize !== undefined && targetBpw !== undefined)
    throw new LpqError('LPQ_USAGE', '--target-size and --target-bpw exclude each other', { hint: 'Give one of them.' });
  if (bits !== undefined || dtype !== undefined)
    throw new LpqError(
      'LPQ_USAGE',
      `${flag} chooses the bits, which ${bits === undefined ? '--dtype' : '--bits'} fixes`,
      {
        hint: 'Give one of them; a recipe rule fixes the bits of single modules.',
      },
    );
  if (output === undefined) throw new LpqError('LPQ_USAGE', `${flag} has no effect without -o OUT`);
  return true;
}

async function quantize(given: string, flags: QuantizeFlags, run: Run): Promise<void> {
  const checked = await quantizeOptions(given, flags);
  const target = sizeTarget(flags);
  if (flags.printRecipe && !target) return (await import('./print-recipe.js')).printRecipe(checked, run);
  const { refuseExisting } = await import('../../formats/directory/output-directory.js');
  const { clearFinished, refusePartial } = await import('../../formats/directory/partial.js');
  // Statistics that a stopped run has saved are those to go on with.
  const { saveStats, partial } = checked;
  if (saveStats !== undefined && partial !== 'resume') refuseExisting(saveStats);
  if (checked.output === undefined) {
    const source = await modelDirectory(given, run, { events: true });
    await requireKind(source, 'source');
    return saveStatisticsOnly({ ...checked, source }, flags, run);
  }
  const { packTarget, output } = checked;
  const packed = packTarget === undefined ? undefined : `${output.replace(/\/+$/, '')}-${packTarget}`;
  if (partial === 'resume' && packed === undefined && (await clearFinished(output)))
    return run.report.result({ command: 'quantize', output, finished: true }, `${output} was finished already\n`);
  // Everything that can be refused is refused before anything is computed.
  for (const place of [output, packed]) if (place !== undefined) refuseExisting(place);
  if (packTarget !== undefined && !flags.dryRun) (await import('../pack/targets/index.js')).packTarget(packTarget);
  // What is wrong with the command is told before anything is downloaded.
  let options: QuantizeOptions = { ...checked, source: await modelDirectory(given, run, { events: true }) };
  await requireKind(options.source, 'source');
  if (target) {
    const { solveTarget } = await import('./target-size.js');
    options = await solveTarget(options, target, openRuntimes(run, deviceFor(options, flags)), run);
    if (flags.printRecipe) return (await import('./print-recipe.js')).printRecipe(options, run);
  }
  const statistics = await openStatistics(options);
  try {
    if (flags.dryRun) {
      await (await import('./dry-run.js')).printPlan(options, flags, statistics, run);
      return await checkPlan(
        flags.pack?.match(/,|^all$/) ? { ...options, packTarget: undefined } : options,
        statistics,
      );
    }
    refusePartial(options.output, options.partial);
    if (flags.report !== false && !flags.shard)
      (await import('../report/write.js')).refuseForeignReport(options.output);
    await checkPlan(options, statistics);
    const rts = openRuntimes(run, deviceFor(options, flags));
    const noted =
      flags.report === false || flags.shard ? undefined : new (await import('./run-report.js')).RunReport(rts);
    await quantizeInto(options, statistics, rts, run, noted);
    if (packTarget !== undefined && packed !== undefined)
      await packDirectory(
        options.output,
        { target: packTarget, output: packed },
        rts[0]?.device === 'cpu' ? rts[0] : openRuntime(run, { ...flags, device: 'cpu' }),
        run,
      );
  } finally {
    statistics?.close();
  }
}

async function saveStatisticsOnly(options: CalibrationOptions, flags: QuantizeFlags, run: Run): Promise<void> {
  const started = performance.now();
  const calibration = await calibrate(options, run);
  const { manifest, bytes: size } = await saveStatistics(options, calibration, openRuntimes(run, flags), run);
  const seconds = (performance.now() - started) / 1000;
  const feeds = Object.keys(manifest.feeds).length;
  run.report.result(
    { command: 'quantize', statistics: options.saveStats, feeds, bytes: size, seconds },
    `saved statistics of ${feeds} inputs in ${options.saveStats}, ${bytes(size)}, ${duration(seconds)}\n`,
  );
}

/**
 * Refuses what the runner and the packer would, before the calibration text is read: a broken checkpoint, groups that do not
 * divide, types that the target does not have.
 */
async function checkPlan(
  { source, settings, rules, packTarget }: QuantizeOptions,
  statistics: SavedStatistics | undefined,
): Promise<void> {
  const { SourceCheckpoint } = await import('../../formats/canonical/source.js');
  const { openModel } = await import('../model/graph.js');
  const { plannedModules, planQuantization } = await import('../quantize/run.js');
  const { requireStatistics } = await import('../quantize/from-statistics.js');
  const { schemesFrom } = await import('./schemes.js');
  const checkpoint = SourceCheckpoint.open(source);
  try {
    const graph = openModel(checkpoint);
    const request = { ...schemesFrom(settings, rules), lmHead: settings.lmHead };
    const plan =
      settings.method === 'fmpq'
        ? (await import('./fmpq.js')).planForFmpq(graph, request)
        : planQuantization(graph, request);
    if (packTarget !== undefined) {
      const { previewPack } = await import('../pack/preview.js');
      const modules = plannedModules(checkpoint, request);
      previewPack({ dir: source, config: checkpoint.config, modules }, packTarget);
    }
    if (statistics) requireStatistics(statistics, checkpoint, graph, new Set(plan.keys()));
    if (settings.method === 'fmpq') (await import('./fmpq.js')).checkFmpq(checkpoint, settings, plan);
    (await import('./kv.js')).kvOf(settings, checkpoint);
  } finally {
    checkpoint.close();
  }
}

async function quantizeInto(
  options: QuantizeOptions,
  statistics: SavedStatistics | undefined,
  rts: readonly NativeRuntime[],
  run: Run,
  noted: RunReport | undefined,
): Promise<void> {
  const { quantizeCheckpoint } = await import('../quantize/run.js');
  const { backendOf } = await import('../quantize/identity.js');
  const { schemesFrom } = await import('./schemes.js');
  const { settings, source, output } = options;
  const { scheme, rules } = schemesFrom(settings, options.rules);
  const started = performance.now();
  const quantizer = await quantizerFor(settings);
  const { clock } = noted ?? {};
  clock?.enter('calibration text');
  const calibration = quantizer.statistics && !statistics ? await calibrate(options, run) : undefined;
  const { needsOf } = await import('./dry-run.js');
  const { preflight } = await import('./preflight.js');
  if (options.partial !== 'resume') preflight(output, await needsOf(options, rts[0]?.device !== 'cpu'), run);
  if (calibration && options.saveStats !== undefined) clock?.enter('statistics');
  if (calibration && options.saveStats !== undefined) await saveStatistics(options, calibration, rts, run);
  const request = { source, scheme, rules, lmHead: settings.lmHead };
  if (settings.method === 'fmpq') clock?.enter('activations');
  const fmpq =
    settings.method === 'fmpq' && calibration
      ? await (await import('./fmpq.js')).prepareFmpq(request, settings, quantizer, calibration, rts, run)
      : undefined;
  const kv = await cacheScheme(settings, source);
  clock?.enter('reading the model');
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
      ...(statistics && { statistics }),
      ...fmpq,
      ...(kv && { kv }),
      lmHead: settings.lmHead,
      options: { ...recorded(options), backend: backendOf(rts) },
      version: version(),
      partial: options.partial,
      ...(options.shard && { shard: options.shard }),
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
        clock?.enter(`quantize ${name}`);
        task?.update(done, stage);
      },
      onSpan: (span, seconds) => noted?.span(span, seconds),
      onModule: (line) => {
        run.interrupt.check();
        clock?.sample();
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
  await noted?.write(output, modules, run);
  run.report.result(
    { command: 'quantize', output, method: settings.method, modules: modules.length, ...facts, seconds },
    `quantized ${modules.length} modules to ${summary.bitsPerWeight.toFixed(3)} bits per weight in ${output}, ${duration(seconds)}, peak memory ${bytes(process.resourceUsage().maxRSS * 1024)}\n`,
  );
}

function sizeTarget({ targetSize, targetBpw }: QuantizeFlags): SizeTarget | undefined {
  if (targetSize !== undefined) return { kind: 'size', bytes: targetSize };
  return targetBpw === undefined ? undefined : { kind: 'bpw', bits: targetBpw };
}

async function cacheScheme(settings: FullSettings, dir: string): Promise<KvScheme | undefined> {
  if (settings.kv === undefined) return undefined;
  const { SourceCheckpoint } = await import('../../formats/canonical/source.js');
  const source = SourceCheckpoint.open(dir);
  try {
    return (await import('./kv.js')).kvOf(settings, source);
  } finally {
    source.close();
  }
}

/** W4Ax is computed on the CPU only. Throws LPQ_DEVICE. */
export function deviceFor({ settings }: QuantizeOptions, flags: QuantizeFlags): QuantizeFlags {
  if (settings.method !== 'fmpq' || flags.device === 'cpu') return flags;
  if (flags.device === 'auto') return { ...flags, device: 'cpu' };
  throw new LpqError('LPQ_DEVICE', '--method fmpq computes on the CPU only', {
    got: flags.device,
    expected: 'cpu',
    hint: 'Use --device cpu.',
  });
}

/** What goes into the checkpoint's provenance: what the bytes depend on, no paths, devices or threads. */
function recorded({ settings, rules, stats }: QuantizeOptions): Record<string, unknown> {
  // Settings of calibration and of the solver say nothing about weights that were only rounded, or what was saved before.
  const { order, damp, gptaq, samples, seqLen, seed, calibJoin, ...always } = settings;
  const text = stats === undefined ? { samples, seqLen, seed, calibJoin } : {};
  const calibrated = settings.method === 'rtn' ? {} : { order, damp, gptaq, ...text };
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
