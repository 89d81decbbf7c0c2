import type { Command } from 'commander';
import type { SourceCheckpoint } from '../../../formats/canonical/source.js';
import type { NativeRuntime } from '../../../native/binding.js';
import type { Calibration } from '../../calibrate/text.js';
import { LpqError } from '../../core/error.js';
import type { PreparationEvents } from '../../quantize/method.js';
import { flagOf, isWords, type MethodOption, saysOf } from '../../quantize/option.js';
import type { Quantizer } from '../../quantize/quantizer.js';
import type { QuantizeRequest } from '../../quantize/run.js';
import { groupSize, number } from '../options/parse.js';
import type { ComputeOptions, Run } from '../run.js';
import {
  CALIBRATION_FIELDS,
  fieldOf,
  HEAD_FIELD,
  KV_FIELDS,
  METHOD_FIELD,
  METHODS_FIELDS,
  SCHEME_FIELDS,
} from './fields.js';
import { methodOf } from './methods.js';
import type { FullSettings, Settings } from './settings.js';

/** Flags of methodOptions, unchecked, under the names of the settings but for sym and asym. */
export interface MethodFlags {
  readonly sym?: boolean;
  readonly asym?: boolean;
  readonly [setting: string]: unknown;
}

/** Declares the options of settings. */
export function declare(command: Command, fields: readonly MethodOption[]): Command {
  for (const field of fields) {
    const { flags, help, takes } = field;
    if (field.field === 'groupSize') command.option(flags, help, groupSize);
    else if (typeof takes === 'string' || isWords(takes)) command.option(flags, help);
    else {
      const option = command.createOption(flags, help).argParser(number(flagOf(field), saysOf(field)));
      command.addOption(field.bare === undefined ? option : option.preset(String(field.bare)));
    }
    if (field.field === 'symmetric') command.option('--asym', 'asymmetric grid, with zero points');
  }
  return command;
}

/** Options that say how weights are stored and how that is reached: of every command that quantizes. */
export function methodOptions(command: Command): Command {
  declare(command.optionsGroup('Weights:'), [...SCHEME_FIELDS, HEAD_FIELD]);
  declare(command.optionsGroup('Method:'), [METHOD_FIELD, ...METHODS_FIELDS]);
  return declare(command.optionsGroup('Calibration:'), CALIBRATION_FIELDS);
}

/** Options about the cache of keys and values; `exact`: of a command that may also keep them as f16. */
export function kvOptions(command: Command, exact = false): Command {
  const help = 'bits of the KV cache: 2, 4, 8 (packed), 16, or k8v4 (default: from lpq.json, else exact)';
  return declare(
    command.optionsGroup('Keys and values:'),
    KV_FIELDS.map((each) => (exact && each.field === 'kv' ? { ...each, help } : each)),
  );
}

/** The flags that are settings, checked; a command's others are left to it. Throws LPQ_USAGE. */
export async function givenSettings({ sym, asym, ...rest }: MethodFlags): Promise<Settings> {
  const { checkFlags } = await import('./settings.js');
  if (sym && asym) throw new LpqError('LPQ_USAGE', '--sym and --asym exclude each other');
  const given = Object.entries(rest).filter(([name, value]) => {
    const field = fieldOf(name);
    // Of an option that turns something off, commander makes true where it is not given.
    return field !== undefined && !(field.flags.startsWith('--no-') && value === true);
  });
  return checkFlags({ ...Object.fromEntries(given), ...((sym || asym) && { symmetric: sym === true }) });
}

/** The devices that a method computes on, and the number format of their products. Throws LPQ_DEVICE. */
export function deviceFor<T extends ComputeOptions>(settings: FullSettings, given: T): T {
  const { name, cpuOnly, products } = methodOf(settings);
  const flags = { ...given, products: products?.(settings) };
  const what = cpuOnly === true ? `--method ${name}` : cpuOnly?.(settings);
  if (what === undefined || flags.device === 'cpu') return flags;
  if (flags.device === 'auto') return { ...flags, device: 'cpu' };
  throw new LpqError('LPQ_DEVICE', `${what} computes on the CPU only`, {
    got: flags.device,
    expected: 'cpu',
    hint: 'Use --device cpu.',
  });
}

/** What the method makes of the request before weights are solved. */
export async function prepared(
  source: SourceCheckpoint,
  request: Pick<QuantizeRequest, 'scheme' | 'rules' | 'lmHead' | 'mtp'>,
  {
    settings,
    quantizer,
    calibration,
  }: { settings: FullSettings; quantizer: Quantizer; calibration: Calibration | undefined },
  rts: readonly NativeRuntime[],
  { report, interrupt }: Run,
): Promise<Partial<QuantizeRequest>> {
  const { prepare } = methodOf(settings);
  if (!prepare || !calibration) return {};
  const events: PreparationEvents = {
    check: () => interrupt.check(),
    task: (name, total) => report.task(name, total),
    event: (name, data, line) => report.event(name, data, line),
    warn: (line, data) => report.warn(line, data),
  };
  return prepare({ rt: rts[0] as NativeRuntime, source, request, settings, calibration, quantizer, events });
}
