import type { Command } from 'commander';
import { parseShard } from '../../../formats/shards/shard.js';
import type { SavedStatistics } from '../../../formats/statistics/read.js';
import type { NativeRuntime } from '../../../native/binding.js';
import { LpqError } from '../../core/error.js';
import { counted } from '../../core/words.js';
import type { Method } from '../../quantize/method.js';
import { parseBytes } from '../options/device.js';
import { engineOptions } from '../options/engine.js';
import { integer, number } from '../options/parse.js';
import { packDirectory } from '../pack/command.js';
import { computeOptions, openRuntime, openRuntimes, type Run } from '../run.js';
import { line } from '../terminal/terminal.js';
import { bytes, duration } from '../terminal/units.js';
import { calibrate, openStatistics, saveStatistics } from './calibration.js';
import type { Deployment } from './deployment.js';
import { INPUT_FIELD, PREDICTION_FIELD, RANGE_FIELDS, TEXT_FIELDS } from './fields.js';
import { declare, deviceFor, kvOptions, methodOptions } from './method.js';
import { methodOf, methodThat } from './methods.js';
import {
  type CalibrationOptions,
  chooseBy,
  type QuantizeFlags,
  type QuantizeOptions,
  quantizeOptions,
  sizeTarget,
} from './options.js';
import { quantizeInto } from './run.js';

/** What is read to calibrate with. */
function calibrationOptions(command: Command): Command {
  return declare(
    command.option(
      '--calib <file[:weight]>',
      'calibration text: .txt, or .jsonl with {"text": ...} or {"messages": ...}; repeat it to mix texts by weight (default: bundled books)',
      (given: string, before: readonly string[] = []) => [...before, given],
    ),
    [...TEXT_FIELDS, ...RANGE_FIELDS, INPUT_FIELD],
  )
    .option('--save-stats <dir>', 'save the calibration statistics of the unquantized model, for --stats of other runs')
    .option('--save-imatrix <file>', "with --save-stats: also save llama.cpp's importance matrix (.gguf or .dat)")
    .option('--stats <dir>', 'quantize with saved statistics: no calibration text, no forward pass');
}

/** `lpq quantize MODEL -o OUT (--bits N | --dtype T)`. */
export function quantizeCommand(program: Command, run: Run): Command {
  const command = program
    .command('quantize')
    .description('quantize a Hugging Face checkpoint (safetensors) to any type of 1 to 8 bits')
    .argument('<model>', 'directory of the checkpoint, a .gguf file, or ORG/NAME[@REVISION] on the Hugging Face Hub')
    .option('-o, --output <dir>', 'directory to make (optional with --save-stats)');
  command.option('--recipe <file>', 'YAML or JSON file with these options and rules for modules (docs/recipes.md)');
  declare(calibrationOptions(methodOptions(command)).optionsGroup('Weights:'), [PREDICTION_FIELD])
    .optionsGroup('Choose the bits:')
    .option(
      '--target-size <size>',
      'choose 2 to 8 bits for each module so that the output takes at most this size, such as 5g',
      parseBytes('--target-size'),
    )
    .option(
      '--target-bpw <bits>',
      'choose them for this mean number of bits per quantized weight, such as 3.6',
      number('--target-bpw'),
    )
    .option(
      '--choose-by <measure>',
      'what they are chosen by: loss (gradients at the end of the model, on the CPU), or error (of modules, scaled by divergences; the default)',
    )
    .option('--choose-from <types>', 'choose among these types instead: TYPE or TYPE:GROUP, such as 2:64,3,4,mxfp4');
  engineOptions(command)
    .option('--keep-quantized <dir>', 'with --for: also keep the quantized checkpoint')
    .option('--pack <target>', 'also pack the result, into OUT-TARGET');
  return computeOptions(
    kvOptions(command)
      .optionsGroup('Run:')
      .option('--lora <dir>', 'first merge a LoRA of PEFT: a directory, or ORG/NAME on the Hub')
      .option('--requantize', 'accept a model that GPTQ, AWQ or another tool quantized, if its wider weights are lost')
      .option(
        '--shard <i/n>',
        'make only part i (from 0) of n, for lpq merge; with --method rtn or --stats, or with --save-stats alone',
        parseShard,
      )
      .option('--redo <regex>', 'quantize only the modules whose path matches, and copy the rest from --from')
      .option(
        '--from <dir>',
        'with --redo: the quantized checkpoint to copy the other modules from; with --tune or --tune-scales: the one that training begins with',
      )
      .option(
        '--stream',
        'fetch each shard from the Hub when its block is next, and drop it afterwards: for checkpoints larger than the disk',
      )
      .option('--resume', 'continue a stopped run of the same command (from the start, if there was none)')
      .option('--restart', 'discard the partial output of a stopped run')
      .option('--print-recipe', 'print the recipe that repeats this run, and do nothing else')
      .option(
        '--eval <file>',
        'text to measure perplexity and KL on, before and after (default: some pages of a bundled book, if that takes a small part of the run)',
      )
      .option('--no-eval', 'do not measure perplexity and KL')
      .option('--no-report', 'do not write OUT.report.json and OUT.report.html')
      .option(
        '--dry-run',
        'only show the plan: each module, disk, memory, and on a CUDA device the time; --pack may then be a list, or all',
      )
      .option('--tp <ranks>', 'with --dry-run --pack: number of tensor-parallel ranks', integer('--tp', 1))
      .option('--timed', 'with --dry-run: tell the time on any device; some blocks are quantized for it'),
  ).action(async (model: string, flags: QuantizeFlags) => {
    if (!flags.stream) return quantize(model, flags, run);
    const { streaming } = await import('./stream.js');
    await streaming(run, () => quantize(model, flags, run));
  });
}

async function quantize(given: string, flags: QuantizeFlags, run: Run): Promise<void> {
  const deployment = await (await import('./deployment.js')).deploymentOf(flags);
  const checked = await quantizeOptions(given, deployment ? { ...flags, output: deployment.quantized } : flags);
  const target = sizeTarget(flags);
  if (flags.printRecipe && !target) return (await import('./print-recipe.js')).printRecipe(checked, run);
  const { refuseExisting, refuseInside } = await import('../../../formats/directory/place.js');
  const { clearFinished, refusePartial } = await import('../../../formats/directory/partial.js');
  // Statistics that a stopped run has saved are those to go on with.
  const { saveStats, partial } = checked;
  if (saveStats !== undefined && partial !== 'resume') refuseExisting(saveStats);
  if (checked.output === undefined) {
    // A part of statistics passes every block.
    const { shard, ...whole } = flags;
    const { source } = await (await import('./source.js')).openedSource(given, whole, partial, [saveStats], run);
    return saveStatisticsOnly({ ...checked, source }, flags, run);
  }
  const { packTarget, output } = checked;
  const beside = packTarget === undefined ? undefined : `${output.replace(/\/+$/, '')}-${packTarget}`;
  const packed = deployment?.output ?? beside;
  if (partial === 'resume' && packed === undefined && (await clearFinished(output)))
    return run.report.result({ command: 'quantize', output, finished: true }, line`${output} was finished already\n`);
  // Everything that can be refused is refused before anything is computed.
  for (const place of [output, packed]) if (place !== undefined) refuseExisting(place);
  if (packTarget !== undefined && !flags.dryRun) (await import('../../pack/targets/index.js')).packTarget(packTarget);
  // What is wrong with the command is told before anything is downloaded.
  const makes = [output, packed, saveStats];
  const found = await (await import('./source.js')).openedSource(given, flags, partial, makes, run);
  let options: QuantizeOptions = { ...checked, ...found };
  for (const made of makes)
    for (const read of [options.stats, options.redo?.from, options.begun])
      if (made !== undefined && read !== undefined) refuseInside(made, read);
  if (deployment) options = await (await import('./deployment.js')).settled(options, deployment);
  options = (await import('./group-size.js')).fitGroupSize(options, run);
  if (deployment) options = await (await import('./deployment.js')).targeted(options, deployment);
  if (target) {
    const { solveTarget } = await import('./target-size.js');
    const { chooseFrom: among, stream: streamed = false } = flags;
    const choice = { target, by: chooseBy(flags), among, streamed };
    options = await solveTarget(options, choice, openRuntimes(run, deviceFor(options.settings, flags)), run);
    if (flags.printRecipe) return (await import('./print-recipe.js')).printRecipe(options, run);
  }
  const statistics = await openStatistics(options);
  try {
    if (flags.dryRun) {
      await (await import('./dry-run.js')).printPlan(options, flags, statistics, run);
      const planned = flags.pack?.match(/,|^all$/) ? { ...options, packTarget: undefined } : options;
      return await checkPlan(planned, statistics, run, true);
    }
    refusePartial(options.output, options.partial);
    if (flags.report !== false && !flags.shard)
      (await import('../../report/write.js')).refuseForeignReport(options.reportAs ?? options.output);
    await checkPlan(options, statistics, run);
    const rts = openRuntimes(run, deviceFor(options.settings, flags));
    const noted =
      flags.report === false || flags.shard ? undefined : new (await import('./run-report.js')).RunReport(rts);
    await quantizeInto(options, statistics, rts, run, noted);
    if (flags.stream) await (await import('./stream.js')).endStreaming(run, false);
    if (packed !== undefined) await packInto(packed, options, deployment, rts, flags, run);
  } finally {
    statistics?.close();
  }
}

/** Packs what was quantized; for an engine, proves it and leaves nothing else. */
async function packInto(
  output: string,
  options: QuantizeOptions,
  deployment: Deployment | undefined,
  rts: readonly NativeRuntime[],
  flags: QuantizeFlags,
  run: Run,
): Promise<void> {
  const target = options.packTarget as string;
  const runtime = rts[0]?.device === 'cpu' ? rts[0] : openRuntime(run, { ...flags, device: 'cpu' });
  const pack = () => packDirectory(options.output, { target, output, engine: deployment?.engine }, runtime, run);
  if (!deployment) return pack();
  await (await import('./deployment.js')).deploy(deployment, pack, run);
}

async function saveStatisticsOnly(options: CalibrationOptions, flags: QuantizeFlags, run: Run): Promise<void> {
  const started = performance.now();
  const calibration = await calibrate(options, run);
  const { manifest, bytes: size } = await saveStatistics(
    options,
    calibration,
    openRuntimes(run, deviceFor(options.settings, flags)),
    run,
  );
  const seconds = (performance.now() - started) / 1000;
  const feeds = Object.keys(manifest.feeds).length;
  run.report.result(
    { command: 'quantize', statistics: options.saveStats, feeds, bytes: size, seconds },
    line`saved statistics of ${feeds} inputs in ${options.saveStats}, ${bytes(size)}, ${duration(seconds)}\n`,
  );
}

/**
 * Refuses what the runner and the packer would, before the calibration text is read: a broken checkpoint, groups that do not
 * divide, types that the target does not have.
 */
async function checkPlan(
  { source, settings, rules, packTarget, redo, begun }: QuantizeOptions,
  statistics: SavedStatistics | undefined,
  run: Run,
  dryRun = false,
): Promise<void> {
  const { SourceCheckpoint } = await import('../../../formats/canonical/source.js');
  const { openOrPlan } = await import('../../quantize/planned-source.js');
  const { openBlocks } = await import('../../model/graph.js');
  const { plannedModules, planQuantization } = await import('../../quantize/plan.js');
  const { requireStatistics } = await import('../../quantize/from-statistics.js');
  const { schemesFrom } = await import('./schemes.js');
  const checkpoint = dryRun ? openOrPlan(source) : SourceCheckpoint.open(source);
  try {
    const graph = openBlocks(checkpoint, settings.mtp);
    const request = { ...schemesFrom(settings, rules), lmHead: settings.lmHead, ...(redo && { redo }) };
    const method = methodOf(settings);
    const plan = withGroups(method, () => planQuantization(graph, request));
    if (packTarget !== undefined) {
      const { previewPack } = await import('../../pack/preview.js');
      const { inputScales, inputDtype } = settings;
      const modules = plannedModules(checkpoint, { ...request, codes: method.codes, inputScales, inputDtype });
      previewPack({ dir: source, config: checkpoint.config, modules }, packTarget);
    }
    if (redo) plannedModules(checkpoint, request);
    if (begun !== undefined)
      (await import('./begun.js')).beginning(begun, checkpoint, { ...request, settings }).close();
    if (statistics) requireStatistics(statistics, checkpoint, graph, new Set(plan.keys()));
    await method.checkPlan?.(checkpoint, settings, plan);
    const { bits, modules } = (await import('../../quantize/requantized.js')).requantized(checkpoint, plan);
    if (modules.length > 0)
      run.report.warn(
        `${counted(modules.length, 'module')} of ${source} exist only in ${bits} bits: quantizing them again loses quality a second time (lpq pack keeps their codes)`,
        { modules },
      );
    (await import('../options/kv.js')).recordedCache(settings, checkpoint);
  } finally {
    checkpoint.close();
  }
}

/** A plan, whose refusal of a group size offers no other to methods that have one of their own. */
function withGroups<T>({ name, codes }: Method, plan: () => T): T {
  try {
    return plan();
  } catch (error) {
    if (!codes || !(error instanceof LpqError) || error.code !== 'LPQ_GROUP_SIZE') throw error;
    throw new LpqError(error.code, error.message, {
      got: error.got,
      expected: `input features that groups of ${codes.block} divide, for --method ${name}`,
      hint: `Skip such modules with a recipe rule (skip: true), or use ${methodThat((method) => !method.codes)}.`,
      cause: error,
    });
  }
}
