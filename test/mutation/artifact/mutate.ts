import type { NativeRuntime } from '../../../native/binding.js';
import { LpqError } from '../../../src/core/error.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { random } from '../model.js';
import { fileSites } from './file-sites.js';
import { ggufSites } from './gguf-sites.js';
import { jsonSites, manifestSites, targetSites } from './json-sites.js';
import { type Artifact, copyOf, diskFiles, openArtifact, sameFiles, Written } from './open.js';
import { type Rehash, rehashed } from './rehash.js';
import type { Site } from './site.js';
import { tensorSites } from './tensor-sites.js';

export type Outcome = 'reported' | 'survived' | 'harmless' | 'crashed';

export interface Trial {
  readonly kind: Site['kind'];
  readonly what: string;
  readonly rehash: Rehash;
  readonly outcome: Outcome;
  /** The first finding, the error that ended verification, or why nobody needs to know. */
  readonly said: string;
}

export interface MutateOptions {
  /** A packed directory, and the quantized checkpoint that it was packed from. */
  readonly packed: string;
  readonly quantized: string;
  /** A directory to write changed artifacts to. */
  readonly work: string;
  readonly runtime: NativeRuntime;
  readonly count: number;
  readonly seed: number;
  /** Names that lpq.json may give as target. */
  readonly targets: readonly string[];
  readonly onTrial?: (trial: Trial) => void;
}

/**
 * Changes a packed directory `count` times, one change at a time, redoes every hash that follows from it and the seal, and
 * asks verify --against. Kinds of changes take turns; within a kind they are drawn without returning them. Throws where the
 * directory does not verify unchanged.
 */
export async function mutateArtifact(options: MutateOptions): Promise<Trial[]> {
  const { packed, quantized, work, runtime, count, seed } = options;
  const artifact = await openArtifact(packed);
  const written = new Written(work);
  const pristine = await rehashed(artifact, 'all');
  const files = diskFiles(artifact, pristine);
  written.write(artifact, pristine);
  const clean = await ask(work, quantized, runtime);
  if (clean.found !== undefined) throw new Error(`${packed} does not verify unchanged: ${clean.found}`);
  const trials: Trial[] = [];
  let turn = seed;
  for (const site of drawn(artifact, options, random(Math.imul(seed, 0x9e3779b1) + 1))) {
    if (trials.length >= count) break;
    const copy = copyOf(artifact);
    site.apply(copy);
    const rehash = site.rehash ?? (turn++ % 2 ? 'all' : 'packed');
    const manifest = await rehashed(copy, rehash, site.unsealed !== true);
    // A hash of lpq.json that was redone is what it was.
    if (sameFiles(files, diskFiles(copy, manifest))) continue;
    written.write(copy, manifest);
    const { found, crashed } = await ask(work, quantized, runtime);
    const outcome: Outcome = crashed
      ? 'crashed'
      : found !== undefined
        ? 'reported'
        : site.harmless !== undefined
          ? 'harmless'
          : 'survived';
    const trial = { kind: site.kind, what: site.what, rehash, outcome, said: found ?? site.harmless ?? '' };
    trials.push(trial);
    options.onTrial?.(trial);
  }
  return trials;
}

/** Kinds by turns, beginning anywhere, each in an order of its own. */
function* drawn(artifact: Artifact, { targets }: MutateOptions, next: () => number): Iterable<Site> {
  const kinds = new Map<string, Site[]>();
  for (const sites of [
    jsonSites(artifact),
    manifestSites(artifact),
    targetSites(artifact, targets),
    tensorSites(artifact),
    fileSites(artifact),
    ggufSites(artifact),
  ])
    for (const site of sites) {
      const list = kinds.get(site.kind);
      if (list) list.push(site);
      else kinds.set(site.kind, [site]);
    }
  const inOrder = [...kinds.values()];
  const first = next() % inOrder.length;
  const lists = [...inOrder.slice(first), ...inOrder.slice(0, first)];
  while (lists.some((list) => list.length > 0))
    for (const list of lists) {
      if (list.length === 0) continue;
      const at = next() % list.length;
      const site = list[at] as Site;
      list[at] = list.at(-1) as Site;
      list.pop();
      yield site;
    }
}

async function ask(dir: string, against: string, runtime: NativeRuntime): Promise<{ found?: string; crashed?: true }> {
  try {
    const { failures } = await verifyArtifact({ dir, against, runtime, emulate: false });
    const [first] = failures;
    return first ? { found: `${first.check}: ${first.message}` } : {};
  } catch (error) {
    // A directory that cannot be read at all is a designed error.
    if (error instanceof LpqError && [1, 4].includes(error.exitCode))
      return { found: `${error.code}: ${error.message}` };
    return { found: String((error as Error)?.stack ?? error), crashed: true };
  }
}
