import { rm } from 'node:fs/promises';
import { SourceCheckpoint } from '../../../formats/canonical/source.js';
import { LpqError } from '../../core/error.js';
import type { Engine } from '../../engines/engine.js';
import { engineModel, engineOf, schemeOfModule } from '../options/engine.js';
import type { Run } from '../run.js';
import { fieldOf } from './fields.js';
import { methodOf } from './methods.js';
import type { QuantizeFlags, QuantizeOptions } from './options.js';
import type { FullSettings } from './settings.js';

/** A run with --for: OUT is the engine's directory, made from a quantized checkpoint beside it. */
export interface Deployment {
  readonly engine: Engine;
  readonly output: string;
  readonly quantized: string;
  readonly keep: boolean;
}

/** Throws LPQ_USAGE for options that --for leaves nothing to, LPQ_ENGINE for an engine that lpq does not serve. */
export async function deploymentOf(flags: QuantizeFlags): Promise<Deployment | undefined> {
  const engine = await engineOf(flags);
  const { output, keepQuantized } = flags;
  if (!engine) {
    if (keepQuantized !== undefined) throw new LpqError('LPQ_USAGE', '--keep-quantized has no effect without --for');
    return undefined;
  }
  if (output === undefined) throw new LpqError('LPQ_USAGE', '--for has no effect without -o OUT');
  const others = ['pack', 'shard', 'redo', 'targetSize', 'targetBpw'] as const;
  const other = others.find((name) => flags[name] !== undefined);
  if (other)
    throw new LpqError(
      'LPQ_USAGE',
      `--for does not go with --${other.replace(/[A-Z]/g, (c) => `-${c.toLowerCase()}`)}`,
      {
        hint: 'Quantize without --for, then lpq pack QUANTIZED --for ENGINE -o OUT.',
      },
    );
  const place = output.replace(/\/+$/, '');
  return { engine, output: place, quantized: keepQuantized ?? `${place}.quantized`, keep: keepQuantized !== undefined };
}

/** The options with what the engine wants of those that were left open. Throws LPQ_ENGINE, LPQ_USAGE, LPQ_TYPE. */
export async function settled(options: QuantizeOptions, { engine }: Deployment): Promise<QuantizeOptions> {
  const { settle } = await import('../../engines/settle.js');
  const { settings } = options;
  const { inputScales } = settings;
  const wanted = settle(engine, settings, { ...(await modelOf(options.source)), inputScales });
  const { scaleDtype, groupSize, positiveScales } = wanted;
  const sign = fieldOf('scaleSign');
  const positive = positiveScales && sign && methodOf(settings).options.includes(sign);
  const open = { ...(scaleDtype && { scaleDtype }), ...(groupSize && { groupSize }) };
  return { ...options, settings: { ...settings, ...open, ...(positive && { scaleSign: 'positive' }) } as FullSettings };
}

/** The options with the pack target for the modules as they are planned. Throws LPQ_ENGINE, and what planning throws. */
export async function targeted(options: QuantizeOptions, { engine, output }: Deployment): Promise<QuantizeOptions> {
  const { openBlocks } = await import('../../model/graph.js');
  const { plannedModules, planQuantization } = await import('../../quantize/plan.js');
  const { schemesFrom } = await import('./schemes.js');
  const { engineTarget } = await import('../../engines/settle.js');
  const { settings, rules } = options;
  const request = { ...schemesFrom(settings, rules), lmHead: settings.lmHead };
  const checkpoint = SourceCheckpoint.open(options.source);
  try {
    planQuantization(openBlocks(checkpoint, request.mtp), request);
    const modules = plannedModules(checkpoint, {
      ...request,
      codes: methodOf(settings).codes,
      inputScales: settings.inputScales,
      inputDtype: settings.inputDtype,
    });
    const schemes = new Map([...modules].map(([name, module]) => [name, schemeOfModule(module)] as const));
    const { inputScales } = settings;
    const packTarget = engineTarget(engine, schemes, {
      ...(await engineModel(checkpoint.config, checkpoint.names())),
      inputScales,
    });
    return { ...options, packTarget, reportAs: output };
  } finally {
    checkpoint.close();
  }
}

/** Packs and drops the quantized checkpoint, unless it is to be kept; it stays where packing or its proof fails. */
export async function deploy(
  { engine, output, quantized, keep }: Deployment,
  pack: () => Promise<void>,
  run: Run,
): Promise<void> {
  if (!keep)
    run.report.event(
      'deploy',
      { engine: engine.name, quantized },
      `packing it for ${engine.title}; after that, ${quantized} is removed (--keep-quantized DIR keeps it)`,
    );
  try {
    await pack();
  } catch (error) {
    run.report.warn(
      `the quantized checkpoint stays in ${quantized}; lpq pack ${quantized} --for ${engine.name} -o ${output} continues from it`,
      { quantized },
    );
    throw error;
  }
  if (!keep) await rm(quantized, { recursive: true, force: true });
}

async function modelOf(source: string) {
  const checkpoint = SourceCheckpoint.open(source);
  try {
    return await engineModel(checkpoint.config, checkpoint.names());
  } finally {
    checkpoint.close();
  }
}
