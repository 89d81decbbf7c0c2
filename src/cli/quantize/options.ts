import type { PartialMode } from '../../../formats/directory/partial.js';
import { type Shard, shardPath } from '../../../formats/shards/shard.js';
import type { WeightedFile } from '../../calibrate/mix.js';
import { LpqError } from '../../core/error.js';
import type { Method } from '../../quantize/method.js';
import { allButRedone, type Redo } from '../../quantize/redo-rule.js';
import type { EngineFlags } from '../options/engine.js';
import type { ComputeOptions } from '../run.js';
import { givenSettings, type MethodFlags } from './method.js';
import { methodOf } from './methods.js';
import type { Recipe, RecipeRule } from './recipe.js';
import type { FullSettings, Settings } from './settings.js';
import type { SizeTarget } from './target-size.js';
import type { ChooseBy } from './unit-errors.js';

/** What commander makes of the arguments: settings (unchecked) and what the bytes do not depend on. */
export interface QuantizeFlags extends ComputeOptions, MethodFlags, EngineFlags {
  readonly output?: string;
  readonly recipe?: string;
  readonly calib?: readonly string[];
  readonly saveStats?: string;
  readonly saveImatrix?: string;
  readonly stats?: string;
  readonly pack?: string;
  readonly keepQuantized?: string;
  readonly lora?: string;
  readonly requantize?: boolean;
  readonly dryRun?: boolean;
  readonly resume?: boolean;
  readonly restart?: boolean;
  readonly report?: boolean;
  readonly eval?: string | false;
  readonly printRecipe?: boolean;
  readonly targetSize?: number;
  readonly targetBpw?: number;
  readonly chooseBy?: string;
  readonly chooseFrom?: string;
  readonly tp?: number;
  readonly timed?: boolean;
  readonly shard?: Shard;
  readonly stream?: boolean;
  readonly redo?: string;
  readonly from?: string;
}

/** A checked command: everything the runner needs. */
export interface QuantizeOptions extends CalibrationOptions {
  /** Whether the source's weights were decoded from what another tool quantized. */
  readonly requantize?: boolean;
  /** The adapter that is merged into the source, as it is recorded. */
  readonly lora?: { readonly name: string; readonly sha256: string };
  readonly output: string;
  readonly rules: readonly RecipeRule[];
  readonly packTarget: string | undefined;
  /** The output that the report is named after, if it is another. */
  readonly reportAs?: string;
  /** The text that quality is measured on; false: on none; without it on the bundled one. */
  readonly evalText?: string | false;
  readonly redo?: Redo;
  /** The checkpoint that training begins with. */
  readonly begun?: string;
}

/** What concerns calibration alone, all that a run needs which only saves statistics. */
export interface CalibrationOptions {
  readonly source: string;
  readonly settings: FullSettings;
  /** Calibration texts; none: the bundled one. */
  readonly calib: readonly WeightedFile[];
  /** Directory to save statistics in. */
  readonly saveStats: string | undefined;
  /** File for the importance matrix (llama.cpp's form) that is made from the statistics. */
  readonly saveImatrix: string | undefined;
  /** Directory of statistics that take the place of a calibration text. */
  readonly stats: string | undefined;
  /** What to do about what a stopped run left. */
  readonly partial: PartialMode;
  /** The part of the model, or of the text whose statistics are saved, that this process takes. */
  readonly shard?: Shard;
}

/** Checks flags and recipe together. Without an output it is statistics alone. Throws LPQ_USAGE, LPQ_RECIPE, LPQ_FILE. */
export async function quantizeOptions(
  source: string,
  flags: QuantizeFlags,
): Promise<QuantizeOptions | (CalibrationOptions & { readonly output?: undefined })> {
  const { checkCalibration, mergeSettings, readsText } = await import('./settings.js');
  const { readRecipe } = await import('./recipe.js');
  const { parseWeighted } = await import('../../calibrate/mix.js');
  const { output, recipe, saveStats, pack, resume, restart } = flags;
  if (resume && restart)
    throw new LpqError('LPQ_USAGE', '--resume and --restart exclude each other', { hint: 'Give one of them.' });
  if (output === undefined && saveStats === undefined && !flags.printRecipe)
    throw new LpqError('LPQ_USAGE', "required option '-o, --output <dir>' not specified", {
      hint: 'Add -o OUT, a directory that does not exist yet.',
    });
  if (flags.saveImatrix !== undefined && saveStats === undefined)
    throw new LpqError('LPQ_USAGE', '--save-imatrix has no effect without --save-stats', {
      hint: 'Add --save-stats DIR: the importance matrix is made from these statistics.',
    });
  const given = await givenSettings(flags);
  const file: Recipe = recipe === undefined ? { settings: {}, rules: [] } : readRecipe(recipe);
  // A text on the command line takes the place of the recipe's statistics, and the other way round.
  const named = given.method ?? file.settings.method;
  const asked = { ...file.settings, ...given };
  const calibrated = named === undefined || readsText(methodOf({ method: named }), asked);
  const calib = flags.calib ?? (calibrated && flags.stats === undefined ? file.calib : undefined) ?? [];
  const stats = flags.stats ?? (calibrated && flags.calib === undefined ? file.stats : undefined);
  const idle =
    output === undefined ? (['pack', 'dryRun'] as const).find((name) => flags[name] !== undefined) : undefined;
  if (idle)
    throw new LpqError('LPQ_USAGE', `--${idle === 'pack' ? 'pack' : 'dry-run'} has no effect without -o OUT`, {
      hint: 'Without it, lpq quantize only saves statistics.',
    });
  if (flags.stream && typeof flags.eval === 'string')
    throw new LpqError('LPQ_USAGE', '--eval does not go with --stream: it reads the whole source again', {
      hint: 'Leave --eval out; lpq eval OUT --text FILE measures the result.',
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
    saveImatrix: flags.saveImatrix,
    stats,
    partial: resume ? 'resume' : restart ? 'restart' : 'new',
  };
  checkStatisticsShard(flags);
  if (output === undefined)
    return flags.shard && saveStats ? partOfStatistics(calibration, saveStats, flags.shard) : calibration;
  if (flags.shard && (pack !== undefined || flags.targetSize !== undefined || flags.targetBpw !== undefined))
    throw new LpqError(
      'LPQ_USAGE',
      `--shard does not go with ${pack === undefined ? '--target-size and --target-bpw' : '--pack'}`,
      {
        hint:
          pack === undefined
            ? 'Choose the bits once with --print-recipe, and give every shard that recipe.'
            : 'Run lpq merge, then pack its output.',
      },
    );
  if (flags.shard && (settings.inputScales || settings.kvScales))
    throw new LpqError('LPQ_USAGE', '--shard does not go with --input-scales and --kv-scales', {
      hint: 'Quantize in one process: their forward pass needs the whole model.',
    });
  const begun = begunOf(flags, methodOf(settings), settings);
  const redo = begun === undefined ? redoOf(flags, methodOf(settings)) : undefined;
  requireWhole(flags, methodOf(settings).wholeModel?.(settings), redo);
  const place = flags.shard && !flags.dryRun && !flags.printRecipe ? shardPath(output, flags.shard) : output;
  return {
    ...calibration,
    output: place,
    rules: redo
      ? [{ place: '--redo', match: allButRedone(redo.match), skip: true, scheme: {} }, ...file.rules]
      : file.rules,
    packTarget: pack,
    ...(redo && { redo }),
    ...(begun !== undefined && { begun }),
    ...(flags.shard && { shard: flags.shard }),
    ...(typeof flags.eval !== 'boolean' || !flags.eval ? { evalText: flags.eval } : {}),
  };
}

/** Throws LPQ_USAGE where statistics are not the only thing that a part is made of. */
function checkStatisticsShard({ shard, saveStats, saveImatrix, output }: QuantizeFlags): void {
  if (!shard || saveStats === undefined) return;
  if (output !== undefined)
    throw new LpqError('LPQ_USAGE', '--shard does not go with -o and --save-stats together', {
      hint: 'Save the parts of the statistics without -o, join them with lpq merge, and give every shard --stats.',
    });
  if (saveImatrix !== undefined)
    throw new LpqError('LPQ_USAGE', '--save-imatrix does not go with --shard', {
      hint: 'Leave it out: lpq pack --imatrix takes the merged statistics.',
    });
}

const partOfStatistics = (options: CalibrationOptions, saveStats: string, shard: Shard): CalibrationOptions => ({
  ...options,
  saveStats: shardPath(saveStats, shard),
  shard,
});

/** Throws LPQ_USAGE for a part of a model where an option needs all of it. */
function requireWhole(flags: QuantizeFlags, needs: string | undefined, redo: Redo | undefined): void {
  const other = redo ? '--redo' : flags.shard ? '--shard' : flags.stream ? '--stream' : undefined;
  if (needs === undefined || other === undefined) return;
  throw new LpqError('LPQ_USAGE', `${needs} does not go with ${other}: it needs the whole model again in every step`, {
    hint: 'Leave one of them out.',
  });
}

/** The checkpoint whose codes are trained, if there is one. Throws LPQ_USAGE. */
function begunOf(flags: QuantizeFlags, method: Method, settings: FullSettings): string | undefined {
  const { redo, from } = flags;
  if (from === undefined || redo !== undefined || !method.continues?.(settings)) return undefined;
  const target = (['targetSize', 'targetBpw'] as const).find((name) => flags[name] !== undefined);
  if (target)
    throw new LpqError(
      'LPQ_USAGE',
      `--from does not go with --${target === 'targetSize' ? 'target-size' : 'target-bpw'}`,
      {
        hint: 'Leave it out: the bits are those of the checkpoint.',
      },
    );
  return from;
}

/** What is kept of an earlier run, if anything is. Throws LPQ_USAGE. */
function redoOf(flags: QuantizeFlags, method: Method): Redo | undefined {
  const { redo, from } = flags;
  if (redo === undefined && from === undefined) return undefined;
  if (redo === undefined || from === undefined)
    throw new LpqError('LPQ_USAGE', `--${redo === undefined ? 'from' : 'redo'} has no effect alone`, {
      hint: 'Give --redo REGEX and --from DIR together, or --tune or --tune-scales and --from DIR.',
    });
  const others = [
    ...(['shard', 'targetSize', 'targetBpw', 'dryRun', 'printRecipe'] as const).filter((name) => flags[name]),
    ...(method.codes ? [`method ${method.name}`] : []),
  ];
  if (others.length > 0) {
    const flag = (others[0] as string).replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
    throw new LpqError('LPQ_USAGE', `--redo does not go with --${flag}`, { hint: 'Leave one of them out.' });
  }
  try {
    return { match: new RegExp(redo), from };
  } catch (cause) {
    throw new LpqError('LPQ_USAGE', `--redo '${redo}' is not a regular expression`, {
      got: (cause as Error).message,
      expected: "for example 'layers\\.[0-3]\\..*down_proj'",
      cause,
    });
  }
}

/** Throws LPQ_USAGE where bits that are to be chosen are given too. */
function checkTarget(flags: QuantizeFlags, { bits, dtype }: Settings): SizeTarget | undefined {
  const target = sizeTarget(flags);
  chooseBy(flags);
  if (!target) {
    const idle = flags.chooseBy !== undefined ? '--choose-by' : flags.chooseFrom !== undefined && '--choose-from';
    if (idle)
      throw new LpqError('LPQ_USAGE', `${idle} has no effect without --target-bpw or --target-size`, {
        hint: 'Give one of them, for example --target-bpw 3.6.',
      });
    return undefined;
  }
  const flag = target.kind === 'size' ? '--target-size' : '--target-bpw';
  if (bits !== undefined || dtype !== undefined)
    throw new LpqError(
      'LPQ_USAGE',
      `${flag} chooses the bits, which ${bits === undefined ? '--dtype' : '--bits'} fixes`,
      { hint: 'Give one of them; a recipe rule fixes the bits of single modules.' },
    );
  if (flags.output === undefined) throw new LpqError('LPQ_USAGE', `${flag} has no effect without -o OUT`);
  return target;
}

/** What size the output is to have, if its bits are to be chosen. Throws LPQ_USAGE for two targets. */
export function sizeTarget({ targetSize, targetBpw }: QuantizeFlags): SizeTarget | undefined {
  if (targetSize !== undefined && targetBpw !== undefined)
    throw new LpqError('LPQ_USAGE', '--target-size and --target-bpw exclude each other', { hint: 'Give one of them.' });
  if (targetSize !== undefined) return { kind: 'size', bytes: targetSize };
  return targetBpw === undefined ? undefined : { kind: 'bpw', bits: targetBpw };
}

/** What a choice of types is made by, if that was said. Throws LPQ_USAGE. */
export function chooseBy({ chooseBy: by }: QuantizeFlags): ChooseBy | undefined {
  if (by === undefined || by === 'loss' || by === 'error') return by;
  throw new LpqError('LPQ_USAGE', `--choose-by does not take '${by}'`, { got: by, expected: 'loss or error' });
}
