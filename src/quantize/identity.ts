import { createHash } from 'node:crypto';
import type { Provenance } from '../../formats/canonical/schema.js';
import type { NativeRuntime } from '../../native/binding.js';
import type { Calibration } from '../calibrate/text.js';
import { LpqError } from '../core/error.js';
import type { RunIdentity } from './journal.js';
import type { QuantizeRequest } from './run.js';
import { printScheme } from './scheme.js';

/** Everything the bytes of a run depend on, named as its user would. */
export function runIdentity(
  request: QuantizeRequest,
  provenance: Provenance,
  rts: readonly NativeRuntime[],
): RunIdentity {
  const { calibration, statistics } = request;
  const { method = provenance.method, backend, ...options } = request.options;
  const given = {
    'version of lpq': provenance.lpq,
    'name of the source': provenance.source.name,
    'fingerprint of the source': provenance.source.fingerprint,
    '--method': method,
    ...Object.fromEntries(Object.entries(options).map(([name, value]) => [flagOf(name), value])),
    '--calib': calibration ? `${calibration.name} (sha256 ${calibration.sha256})` : undefined,
    '--stats': statistics ? `${statistics.manifest.model.name} (sha256 ${statistics.sha256})` : undefined,
    ...(provenance.options.from !== undefined && { '--from': `lpq.json of sha256 ${provenance.options.from}` }),
    ...(request.shard && { '--shard': `${request.shard.index}/${request.shard.count}` }),
    '--device': backend ?? backendOf(rts),
    LPQ_BLAS: process.env.LPQ_BLAS || 'builtin',
  };
  const derived = {
    scheme: printScheme(request.scheme),
    rules: request.rules.map(({ match, scheme }) => [match.source, scheme === 'skip' ? scheme : printScheme(scheme)]),
    lm_head: request.lmHead,
    ...(request.mtp && { mtp: true }),
    'options of the method': request.quantizer.options,
    'calibration tokens': calibration && tokensHash(calibration),
    ...(calibration?.further && { 'further calibration tokens': tokensHash({ sequences: calibration.further }) }),
  };
  return plain({ given, derived });
}

/** What the bytes depend on of where they are computed: several devices may multiply parts of a large matrix by other kernels. */
export function backendOf(rts: readonly NativeRuntime[]): string {
  const kind = rts[0]?.device === 'cpu' ? 'cpu' : 'cuda';
  return rts.length > 1 ? `${kind} x${rts.length}` : kind;
}

/** Throws LPQ_RESUME naming each option that differs, with both values. `place` is the partial output. */
export function requireSame(place: string, was: RunIdentity, now: RunIdentity): void {
  const given = differences(was.given, now.given);
  // What is derived differs wherever something given does, and then says nothing new.
  const found = given.length > 0 ? given : differences(was.derived, now.derived);
  if (found.length === 0) return;
  const names = found.map(({ name }) => name);
  throw new LpqError('LPQ_RESUME', `the run that left ${place} had another ${list(names)}`, {
    got: found.map(({ name, now: value }) => `${name} ${value}`).join(', '),
    expected: found.map(({ name, was: value }) => `${name} ${value}`).join(', '),
    hint: 'Resume with the options of the stopped run, or discard it with --restart.',
  });
}

function differences(
  was: Readonly<Record<string, unknown>>,
  now: Readonly<Record<string, unknown>>,
): { name: string; was: string; now: string }[] {
  const names = [...new Set([...Object.keys(was), ...Object.keys(now)])];
  return names
    .map((name) => ({ name, was: shown(was[name]), now: shown(now[name]) }))
    .filter((each) => each.was !== each.now);
}

function shown(value: unknown): string {
  if (value === undefined || value === null) return 'not given';
  return typeof value === 'string' ? value : JSON.stringify(value);
}

function list(names: readonly string[]): string {
  return names.length < 2 ? names.join('') : `${names.slice(0, -1).join(', ')} and ${names.at(-1)}`;
}

/** groupSize -> --group-size. */
function flagOf(name: string): string {
  if (name === 'symmetric') return '--sym';
  if (name === 'rules') return 'rules of the recipe';
  return `--${name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
}

/** Of what the model is really fed: a tokenizer may have changed where the text has not. */
export function tokensHash({ sequences }: Pick<Calibration, 'sequences'>): string {
  const hash = createHash('sha256');
  for (const { length, buffer, byteOffset, byteLength } of sequences)
    hash.update(`${length};`).update(new Uint8Array(buffer, byteOffset, byteLength));
  return hash.digest('hex');
}

/** As it comes back from a journal. */
function plain(identity: RunIdentity): RunIdentity {
  return JSON.parse(JSON.stringify(identity)) as RunIdentity;
}
