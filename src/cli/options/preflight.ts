import { existsSync, statfsSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { LpqError } from '../../core/error.js';
import type { Run } from '../run.js';
import { bytes, duration } from '../terminal/units.js';

/** What a command is about to take; bytes and seconds. */
export interface Needs {
  readonly output: number | undefined;
  readonly rss: number;
  /** Of shards that are on the disk at once beside the output (--stream). */
  readonly shards?: number;
  readonly device?: number;
  readonly seconds?: number;
  /** Of the multiplications alone. */
  readonly leastSeconds?: number;
  readonly block?: { readonly index: number; readonly seconds: number };
}

/** Bytes free where an output will be; undefined where the system does not say. */
export function freeBytes(output: string): number | undefined {
  let place = path.resolve(output);
  while (!existsSync(place) && path.dirname(place) !== place) place = path.dirname(place);
  try {
    const { blocks, bavail, bsize } = statfsSync(place);
    // What has no blocks (proc, a tmpfs without a limit) does not count them.
    return blocks > 0 ? bavail * bsize : undefined;
  } catch {
    return undefined;
  }
}

/** Memory that this process may take: the machine's, or its control group's where that is less. */
function memoryLimit(): number {
  const constrained = process.constrainedMemory();
  return Math.min(os.totalmem(), constrained > 0 ? constrained : Number.POSITIVE_INFINITY);
}

/**
 * Throws LPQ_MEMORY where `what` needs more memory than is free, caches that the system gives up at need counted as free. For what fills
 * it at once: pages that are written cannot be let go of.
 */
export function requireMemory(what: string, need: number, hint: string): void {
  const free = Math.min(process.availableMemory(), memoryLimit());
  if (need <= free) return;
  throw new LpqError('LPQ_MEMORY', `${what} needs about ${bytes(Math.round(need))} of memory`, {
    got: `${bytes(free)} free`,
    expected: bytes(Math.round(need)),
    hint,
  });
}

/** As a line: '2.84 MB to write (74 GB free), about 330 MB of memory'. */
export function needsLine(
  { output, rss, shards, device, seconds, leastSeconds, block }: Needs,
  free: number | undefined,
): string {
  const room = free === undefined ? '' : ` (${bytes(free)} free)`;
  return [
    ...(output === undefined ? [] : [`${bytes(output)} to write${room}`]),
    ...(shards === undefined ? [] : [`up to ${bytes(shards)} of shards on the disk at once`]),
    `about ${bytes(Math.round(rss))} of memory`,
    ...(device ? [`up to ${bytes(Math.round(device))} of device memory`] : []),
    ...(seconds === undefined ? [] : [`about ${duration(seconds)}`]),
    ...(leastSeconds === undefined ? [] : [`about ${duration(leastSeconds)} or more`]),
    ...(block ? [`block ${block.index} took ${duration(block.seconds)}`] : []),
  ].join(', ');
}

/**
 * Tells what a run is about to take, before it begins. Throws LPQ_DISK_FULL where the disk cannot hold the output, unless
 * LPQ_PREFLIGHT=warn (file systems that compress hold more than they say); memory only warns, for pages may be swapped.
 */
export function preflight(output: string, needs: Needs, run: Run): void {
  const free = freeBytes(output);
  run.report.event('preflight', { ...needs, free: free ?? null }, needsLine(needs, free));
  const limit = memoryLimit();
  if (needs.rss > limit)
    run.report.warn(`the run may need ${bytes(Math.round(needs.rss))} of memory, but only ${bytes(limit)}`, {
      rss: needs.rss,
      limit,
    });
  const { shards = 0 } = needs;
  const most = needs.output === undefined ? undefined : needs.output + shards;
  if (free === undefined || most === undefined || most <= free) return;
  const beside = shards > 0 ? `, ${bytes(shards)} of it shards of the source` : '';
  const sentence = `${path.resolve(output)} will take ${bytes(most)}${beside}, and its disk has ${bytes(free)} free`;
  if (process.env.LPQ_PREFLIGHT === 'warn') {
    run.report.warn(sentence, { output: most, free });
    return;
  }
  throw new LpqError('LPQ_DISK_FULL', sentence, {
    got: bytes(free),
    expected: `at least ${bytes(most)}`,
    hint: 'Free some space or choose another disk; LPQ_PREFLIGHT=warn starts anyway.',
  });
}
