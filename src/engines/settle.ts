import { LpqError } from '../core/error.js';
import { printGranularity } from '../core/granularity.js';
import { printScheme, type QuantScheme, schemeFromOptions } from '../quantize/scheme.js';
import type { Engine, EngineForm, EngineModel, OpenScheme } from './engine.js';

/** What an engine wants of options that the user left open. */
export interface Settled {
  readonly form: EngineForm;
  readonly scaleDtype?: 'bf16';
  readonly groupSize?: number;
  readonly positiveScales: boolean;
}

/** Options of a scheme as a scheme; groups that were left open stand for nothing. Throws what schemeFromOptions throws. */
function schemeOf({ bits, dtype, groupSize, scaleDtype, groupScales, symmetric }: OpenScheme): QuantScheme {
  return schemeFromOptions({ bits, dtype, groupSize, scaleDtype, groupScales, asym: symmetric === false });
}

/**
 * Fills in what the options leave open, so that the engine loads what comes out at its quick path. A group size stays open where any
 * of the engine's will do, for the model's widths decide. Throws LPQ_ENGINE for what it would not load, LPQ_USAGE and
 * LPQ_TYPE.
 */
export function settle(engine: Engine, options: OpenScheme, model: EngineModel): Settled {
  const scheme = schemeOf(options);
  const form = formOf(engine, scheme, model);
  if (options.groupSize !== undefined) requireGroups(engine, form, scheme, '--group-size');
  const only = form.groups.length === 1 ? form.groups[0] : undefined;
  // bf16 holds no multiples of two levels.
  const stored = !scheme.twoLevel && (scheme.type.kind === 'int' || !scheme.globalScale);
  const half = options.scaleDtype === undefined && stored && form.scales === 'model' && model.dtype === 'bfloat16';
  return {
    form,
    positiveScales: engine.positiveScales && scheme.symmetric && scheme.type.kind === 'int',
    ...(half && { scaleDtype: 'bf16' }),
    ...(options.groupSize === undefined && typeof only === 'number' && { groupSize: only }),
  };
}

/** The pack target for modules of these schemes: one for all. Throws LPQ_ENGINE naming a module that does not suit. */
export function engineTarget(engine: Engine, modules: ReadonlyMap<string, QuantScheme>, model: EngineModel): string {
  let first: { readonly name: string; readonly target: string } | undefined;
  for (const [name, scheme] of modules) {
    const form = formOf(engine, scheme, model, name);
    requireGroups(engine, form, scheme, name);
    const target = (model.inputScales ? form.calibrated?.target : undefined) ?? form.target;
    first ??= { name, target };
    if (target === first.target) continue;
    throw new LpqError('LPQ_ENGINE', `${engine.title} reads '${first.name}' and '${name}' in different formats`, {
      got: `${first.target} and ${target}`,
      expected: 'one format for all modules',
      hint: 'Quantize them to types of one format, or leave some in 16 bits with a recipe rule (skip).',
    });
  }
  if (!first) throw new LpqError('LPQ_ENGINE', 'no module is quantized', { hint: 'Quantize the model first.' });
  return first.target;
}

/** The first of the engines, untried ones aside, that reads modules of all these schemes; undefined if none does. */
export function firstEngine(engines: readonly Engine[], schemes: readonly QuantScheme[]): Engine | undefined {
  const modules = new Map(schemes.map((scheme, i) => [String(i), scheme]));
  const model = { dtype: undefined, experts: 'none' } as const;
  return engines.find((engine) => {
    try {
      return engine.evidence !== 'untried' && engineTarget(engine, modules, model) !== '';
    } catch (error) {
      if (error instanceof LpqError) return false;
      throw error;
    }
  });
}

function formOf(engine: Engine, scheme: QuantScheme, model: EngineModel, module?: string): EngineForm {
  const form = engine.forms.find((each) => each.takes(scheme));
  const about = module === undefined ? '' : ` of '${module}'`;
  if (!form)
    throw new LpqError('LPQ_ENGINE', `${engine.title} ${engine.versions} does not read the type${about}`, {
      got: printScheme(scheme),
      expected: engine.forms.map(({ says }) => says).join('; '),
      hint: `The nearest that it reads: ${nearest(engine, scheme).options}.`,
    });
  if (form.calibrated?.only && !model.inputScales)
    throw new LpqError('LPQ_ENGINE', `${engine.title} reads ${form.says} only with a scale for each input${about}`, {
      got: printScheme(scheme),
      hint: 'Quantize with --input-scales.',
    });
  const refused = form.experts?.(model.experts);
  if (refused === undefined) return form;
  const other = engine.forms.find((each) => each.experts?.(model.experts) === undefined);
  throw new LpqError('LPQ_ENGINE', refused, {
    got: printScheme(scheme),
    hint: other ? `Use ${other.options}.` : 'Serve this model with --for vllm.',
  });
}

function requireGroups(engine: Engine, form: EngineForm, { granularity }: QuantScheme, place: string): void {
  const size = granularity.kind === 'channel' ? 'channel' : granularity.size;
  if (form.groups.length === 0 || form.groups.includes(size)) return;
  throw new LpqError('LPQ_ENGINE', `${engine.title} has no kernel for groups of ${printGranularity(granularity)}`, {
    got: place === '--group-size' ? `--group-size ${size}` : `groups of ${size} in '${place}'`,
    expected: form.groups.join(', '),
    hint: `Use --group-size ${form.groups[0]}.`,
  });
}

/** The form whose width is next to a scheme's, of the same kind of grid where there is one. */
function nearest(engine: Engine, { type, symmetric }: QuantScheme): EngineForm {
  const distance = ({ options }: EngineForm) => {
    const bits = Number(/--bits (\d)/.exec(options)?.[1] ?? 8);
    const kind = options.includes('--dtype') === (type.kind === 'float') ? 0 : 0.25;
    return Math.abs(bits - type.bits) + kind + (options.includes('--asym') === symmetric ? 0.5 : 0);
  };
  return engine.forms.reduce((best, each) => (distance(each) < distance(best) ? each : best));
}
