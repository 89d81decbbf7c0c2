import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import type { KvScheme } from '../../formats/kv/scheme.js';
import { createRuntime } from '../../native/binding.js';
import { LpqError } from '../core/error.js';
import { kvSchemeOf } from '../kv/choose.js';
import { decodingObstacle } from '../model/decoded-attention.js';
import { planSource } from '../model/graph.js';
import type { KvForm, WeightSource } from '../model/source.js';
import { chooseDevice } from './device.js';
import { type ComputeOptions, openRuntime, type Run } from './run.js';
import { checkFlags, type KvSettings, requireKv } from './settings.js';
import { openAnySource } from './sources.js';

const FLAGS = ['kv', 'kvGranularity', 'kvGroup', 'kvResidual'] as const;

/** The options about the cache among a command's, checked. Throws LPQ_USAGE. */
export function checkKvFlags(flags: object): KvSettings {
  const given = Object.entries(flags).filter(
    ([name, value]) => value !== undefined && FLAGS.some((flag) => flag === name),
  );
  const settings = checkFlags(Object.fromEntries(given));
  requireKv(settings);
  return settings;
}

/** The scheme that settings ask for, for this model. Throws LPQ_USAGE for latent attention and heads that groups do not divide. */
export function kvOf(settings: KvSettings, source: WeightSource): KvScheme | undefined {
  const { kv, kvGranularity: granularity, kvGroup: group, kvResidual: residual } = settings;
  if (kv === undefined) return undefined;
  const dims = planSource(source).blocks.map(({ attention }, block) => {
    if (attention.kind !== 'mla') return attention.headDim;
    throw new LpqError('LPQ_USAGE', `--kv is for keys and values; block ${block} caches latent vectors instead`, {
      hint: 'Leave the option out for this model.',
    });
  });
  const [headDim] = dims;
  return kvSchemeOf(
    {
      kv,
      ...(granularity && { granularity }),
      ...(group !== undefined && { group }),
      ...(residual !== undefined && { residual }),
    },
    headDim as number,
  );
}

/**
 * The device to evaluate on. A packed cache that no kernel reads is simulated on the CPU: there 'auto' means that. What is wrong with
 * lpq.json its reader tells.
 */
async function cacheDevice(dir: string, wish: KvSettings, { device }: ComputeOptions, run: Run): Promise<string> {
  const manifest = path.join(dir, 'lpq.json');
  const stored = existsSync(manifest) && /"kv":\s*\{/.test(readFileSync(manifest, 'utf8'));
  if (device !== 'auto' || (wish.kv === undefined && !stored) || chooseDevice(device) === 'cpu') return device;
  const opened = await openAnySource(dir, createRuntime({ threads: 1 }));
  try {
    const why = obstacleOf(withCache(opened, wish));
    if (why === undefined) return device;
    run.report.warn(`computing on the CPU: ${why}`);
    return 'cpu';
  } finally {
    opened.close();
  }
}

/** Why the kernels cannot read the cache that a source has. */
function obstacleOf(source: WeightSource): string | undefined {
  const { kv } = source;
  if (!kv || !('form' in kv)) return undefined;
  for (const { attention } of planSource(source).blocks) {
    if (attention.kind !== 'attention') continue;
    const why = decodingObstacle(kv, attention, attention.sinks !== undefined);
    if (why !== undefined) return why;
  }
  return undefined;
}

/** What is to be evaluated, with the cache that `flags` ask for, on a runtime that can compute it. */
export async function openEvaluated(dir: string, flags: ComputeOptions, run: Run) {
  const wish = checkKvFlags(flags);
  const rt = openRuntime(run, { ...flags, device: await cacheDevice(dir, wish, flags, run) });
  const opened = await openAnySource(dir, rt);
  return { rt, source: withCache(opened, wish), close: () => opened.close() };
}

/** The source with the cache that was asked for instead of its own. */
function withCache<T extends WeightSource>(source: T, settings: KvSettings): WeightSource {
  const kv: KvForm | undefined = kvOf(settings, source);
  if (!kv) return source;
  // Methods of the source read its own fields.
  return new Proxy<WeightSource>(source, {
    get: (target, name) => {
      if (name === 'kv') return kv;
      const value: unknown = Reflect.get(target, name, target);
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
}
