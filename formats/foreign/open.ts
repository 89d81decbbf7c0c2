import path from 'node:path';
import { tell } from '../../src/core/activity.js';
import { LpqError } from '../../src/core/error.js';
import { compareNatural } from '../canonical/order.js';
import { CanonicalCheckpoint } from '../canonical/read.js';
import type { CanonicalManifest, Provenance } from '../canonical/schema.js';
import { moduleTensors } from '../canonical/tensors.js';
import { Checkpoint } from '../safetensors/checkpoint.js';
import { hashTensor } from '../safetensors/hash.js';
import type { ForeignModule } from './module.js';
import { foreignContext, readModules } from './read.js';
import { type ForeignSettings, foreignSettings } from './settings.js';
import { CanonicalView } from './view.js';

/** Stands where a hash would be until hashed() has been awaited; no bytes have it. */
const UNHASHED = '0'.repeat(64);

/** A checkpoint that another tool quantized, opened in place. */
export interface ForeignCheckpoint {
  readonly method: string;
  readonly settings: Readonly<Record<string, unknown>>;
  readonly modules: readonly ForeignModule[];
  /** The same in canonical terms, decoded on demand. Its hashes are blank: pack and verify want hashedCanonical(). */
  readonly canonical: CanonicalCheckpoint;
}

/**
 * Opens a directory of GPTQ, AWQ, compressed-tensors, FP8 or MXFP4 weights. Throws LPQ_FOREIGN naming the first tensor
 * that contradicts the settings or the others, LPQ_CONFIG for settings that cannot be used, and what reading throws.
 */
export function openForeign(dir: string): ForeignCheckpoint {
  const weights = Checkpoint.open(dir);
  try {
    const config = weights.config();
    const found = foreignSettings(dir, config);
    if (!found) throw new LpqError('LPQ_CONFIG', `${dir} has no quantization settings`, { hint: 'See lpq doctor.' });
    const { modules, problems } = readModules(foreignContext(dir, weights, config, found), found.method);
    if (problems[0]) throw problems[0];
    if (modules.length === 0)
      throw new LpqError('LPQ_FOREIGN', `${dir} says that it is quantized, but holds no quantized module`, {
        got: `quant_method ${found.method}`,
        hint: 'Remove the quantization settings if the weights are plain.',
      });
    const ordered = [...modules].sort((a, b) => compareNatural(a.name, b.name));
    const view = new CanonicalView(weights, ordered);
    const blank = (names: Iterable<string>) => Object.fromEntries([...names].map((name) => [name, UNHASHED]));
    const manifest: CanonicalManifest = {
      format: 'lpq-canonical',
      version: 1,
      modules: Object.fromEntries(
        ordered.map(({ name, declaration }) => [
          name,
          { ...declaration, sha256: blank(moduleTensors(name, declaration).keys()) },
        ]),
      ),
      carried: blank([...view.carried()].sort(compareNatural)),
      provenance: provenance(dir, weights, found),
    };
    return { ...found, modules: ordered, canonical: CanonicalCheckpoint.over(dir, manifest, config, view) };
  } catch (error) {
    weights.close();
    throw error;
  }
}

/** The canonical view with the hashes of what it decodes to: one pass over the whole checkpoint. */
export async function hashedCanonical(
  { canonical }: ForeignCheckpoint,
  onModule?: (done: number, total: number) => void,
): Promise<CanonicalCheckpoint> {
  const { dir, manifest, config, weights } = canonical;
  const hash = async (name: string): Promise<string> => {
    const tensor = weights.tensor(name);
    try {
      return await hashTensor(weights.spec(name), tensor);
    } finally {
      tensor.dispose();
    }
  };
  const modules: CanonicalManifest['modules'] = {};
  const [names, others] = [Object.keys(manifest.modules), Object.keys(manifest.carried)];
  for (const [i, name] of names.entries()) {
    const module = canonical.module(name);
    const hashes: Record<string, string> = {};
    for (const [part, spec] of moduleTensors(name, module)) hashes[part] = await hash(spec.name);
    weights.advise(`${name}.codes`, 'dontneed');
    modules[name] = { ...module, sha256: hashes };
    onModule?.(i + 1, names.length);
  }
  const carried: Record<string, string> = {};
  for (const [i, name] of others.entries()) {
    tell(`hashing ${name}`, i, others.length);
    carried[name] = await hash(name);
    weights.advise(name, 'dontneed');
  }
  return CanonicalCheckpoint.over(dir, { ...manifest, modules, carried }, config, weights);
}

/** Who quantized it and how, as far as the settings say. */
function provenance(dir: string, weights: Checkpoint, { method, settings }: ForeignSettings): Provenance {
  const meta = settings.meta as { quantizer?: unknown } | undefined;
  const [tool] = Array.isArray(meta?.quantizer) ? meta.quantizer : [meta?.quantizer];
  const { damp_percent: damp, static_groups: fixed } = settings;
  return {
    lpq: typeof tool === 'string' ? (tool.includes(':') ? tool : `${tool}:unknown`) : 'unknown:0',
    source: { name: path.basename(path.resolve(dir)), revision: null, fingerprint: weights.fingerprint() },
    method,
    options: { ...(typeof damp === 'number' && { damp }), ...(fixed === true && { order: 'static' }) },
    calibration: null,
  };
}
