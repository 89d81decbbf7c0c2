import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { type KvLatents, storedLatents } from '../../../formats/kv/latent.js';
import type { StoredLatents } from '../../../formats/kv/schema.js';
import { type KvModelScheme, kvTokenSize, printKvScheme } from '../../../formats/kv/scheme.js';
import { replaced } from '../../artifact/replaced.js';
import { LpqError } from '../../core/error.js';
import { type CacheForm, cacheForm } from '../../generate/cache.js';
import { kvSchemeOf } from '../../kv/choose.js';
import { latentsOf } from '../../kv/latent.js';
import { planSource } from '../../model/graph.js';
import type { KvForm, WeightSource } from '../../model/source.js';
import { checkFlags, type KvSettings, requireKv } from '../quantize/settings.js';
import { type ComputeOptions, openRuntime, type Run } from '../run.js';
import { activationsOf } from './activations.js';
import { kvLayersOf, parseKvLayers, requireKvLayers } from './kv-layers.js';
import { checkProducts } from './products.js';

const FLAGS = ['kv', 'kvGranularity', 'kvGroup', 'kvResidual', 'kvLayers', 'kvFit'] as const;

/** The options about the cache among a command's, checked. Throws LPQ_USAGE. */
export function checkKvFlags(flags: object): KvSettings {
  const given = Object.entries(flags).filter(
    ([name, value]) => value !== undefined && FLAGS.some((flag) => flag === name),
  );
  const settings = checkFlags(Object.fromEntries(given));
  requireKv(settings);
  return settings;
}

/** The scheme that settings ask for, for this model. Throws LPQ_USAGE for latent attention, heads that groups do not divide, layers that it lacks. */
function kvOf(settings: KvSettings, source: WeightSource): KvModelScheme | undefined {
  const { kv, kvGranularity: granularity, kvGroup: group, kvResidual: residual, kvFit: fit } = settings;
  if (kv === undefined) return undefined;
  const layers = settings.kvLayers === undefined ? undefined : parseKvLayers(settings.kvLayers);
  const dims = planSource(source).blocks.flatMap(({ attention }, block) => {
    if (attention.kind === 'recurrent' || attention.kind === 'nothing') return [];
    if ('indexer' in attention)
      throw new LpqError(
        'LPQ_USAGE',
        `--kv is for caches that are read whole; an indexer chooses keys in block ${block}`,
        {
          hint: 'Leave the option out for this model.',
        },
      );
    if (attention.kind === 'attention') return [attention.headDim];
    throw new LpqError('LPQ_USAGE', `--kv is for keys and values, or latents; block ${block} caches neither alone`, {
      hint: 'Leave the option out for this model.',
    });
  });
  const [headDim] = dims;
  const scheme = kvSchemeOf(
    {
      kv,
      ...(granularity && { granularity }),
      ...(group !== undefined && { group }),
      ...(residual !== undefined && { residual }),
      ...(fit && { fit }),
      ...(layers && { layers }),
    },
    headDim as number,
  );
  requireKvLayers(scheme, source);
  return scheme;
}

/** Dims of the latent that all caching blocks of a model keep; undefined for a model of keys and values, or with an indexer. */
function latentDims(source: WeightSource): number | undefined {
  const caching = planSource(source).blocks.flatMap(({ attention }) =>
    attention.kind === 'recurrent' || attention.kind === 'nothing' ? [] : [attention],
  );
  const ranks = caching.flatMap((attention) =>
    attention.kind === 'mla' && !attention.indexer ? [attention.latent] : [],
  );
  // Of others kvOf() says what is wrong.
  return ranks.length < caching.length ? undefined : ranks[0];
}

/** How settings ask for the latents of this model to be cached; undefined for a model of keys and values. Throws LPQ_USAGE. */
function latentsAsked(settings: KvSettings, source: WeightSource): KvLatents | undefined {
  const { kv, kvGranularity: granularity, kvGroup: group, kvResidual: residual } = settings;
  const dims = kv === undefined ? undefined : latentDims(source);
  if (kv === undefined || dims === undefined) return undefined;
  const wish = { kv, ...(granularity && { granularity }), ...(group !== undefined && { group }) };
  const layers = settings.kvLayers === undefined ? undefined : parseKvLayers(settings.kvLayers);
  const more = { ...(layers && { layers }), ...(settings.kvFit && { fit: settings.kvFit }) };
  return latentsOf({ ...wish, ...more, ...(residual !== undefined && { residual }) }, dims);
}

/**
 * The device to compute on. 'auto' takes the CPU for caches of few bits: devices have kernels for some of their forms only.
 * What is wrong with lpq.json its reader tells.
 */
function cacheDevice(dir: string, wish: KvSettings, device: string): string {
  if (device !== 'auto') return device;
  const manifest = path.join(dir, 'lpq.json');
  const stored = existsSync(manifest) && /"kv":\s*\{/.test(readFileSync(manifest, 'utf8'));
  return wish.kv !== undefined || stored ? 'cpu' : device;
}

/**
 * What is to be evaluated, with the cache that `flags` ask for, on a runtime that can compute it; `cache`: that of a generator,
 * which also takes --kv 16. `kernels`: packed weights go through the operations of their kernels on the CPU, too.
 */
export async function openEvaluated(
  dir: string,
  { kv: bits, ...flags }: ComputeOptions & { readonly kv?: string },
  run: Run,
  { generates = false, kernels = false }: { readonly generates?: boolean; readonly kernels?: boolean | undefined } = {},
) {
  // 16 bits are no scheme: whatever lpq.json says is left aside.
  const plain = generates && bits === '16';
  const wish = checkKvFlags({ ...flags, ...(bits !== undefined && !plain && { kv: bits }) });
  const device = plain ? flags.device : cacheDevice(dir, wish, flags.device);
  const rt = openRuntime(run, { ...flags, device, activations: activationsOf(dir, flags.activations) });
  checkProducts(rt, flags);
  const { openWeights } = await import('../../artifact/open.js');
  const opened = await openWeights(dir, rt, { kernels, coded: generates });
  const source = withCache(opened, wish);
  const cache = plain ? plainCache(opened) : cacheForm(source);
  return { rt, source, cache, close: () => opened.close() };
}

/** What lpq.json records of the cache that settings ask for. Throws LPQ_USAGE. */
export function recordedCache(settings: KvSettings, source: WeightSource): KvModelScheme | StoredLatents | undefined {
  const latents = latentsAsked(settings, source);
  return latents ? storedLatents(latents) : kvOf(settings, source);
}

/** The cache of 16 bits. */
function plainCache(source: WeightSource): CacheForm {
  return latentDims(source) === undefined ? 'f16' : { latents: { bits: 16, group: 128 } };
}

/** What the packed cache of a source takes, for results and in words; undefined where it has none. */
export function cacheSize(source: WeightSource) {
  const { kv } = source;
  if (!kv || !('form' in kv)) return undefined;
  const { bytes, bits } = kvTokenSize(kv, kvLayersOf(source));
  const scheme = printKvScheme(kv);
  return {
    cache: { scheme, bytesPerToken: bytes, bitsPerNumber: bits },
    told: `cache ${scheme}: ${bytes} bytes a token, ${Number(bits.toFixed(2))} bits a number\n`,
  };
}

/** The source with the cache that was asked for instead of its own. */
function withCache(source: WeightSource, settings: KvSettings): WeightSource {
  const latents = latentsAsked(settings, source);
  if (latents) return replaced(source, { latents });
  const kv: KvForm | undefined = kvOf(settings, source);
  return kv ? replaced(source, { kv }) : source;
}
