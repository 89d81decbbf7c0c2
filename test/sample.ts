import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..');

/** LPQ_TEST_ALL=1: every case of every large matrix. */
export const ALL = process.env.LPQ_TEST_ALL === '1';

/** What draws the cases: the commit, or LPQ_TEST_SEED. Without git the same ones every time. */
export function seed(env: NodeJS.ProcessEnv = process.env): string {
  if (env.LPQ_TEST_SEED) return env.LPQ_TEST_SEED;
  const { stdout, status } = spawnSync('git', ['rev-parse', 'HEAD'], { cwd: ROOT, encoding: 'utf8' });
  return status === 0 ? stdout.trim() : 'no commit';
}

/**
 * Every `period`th case of a matrix that takes minutes as a whole, beginning at one that the seed and the matrix's name draw: commits in a
 * row see all of it, and a failure comes again on the same commit. All of it with LPQ_TEST_ALL=1.
 */
export function sampled<T>(name: string, cases: readonly T[], period: number, from = seed()): readonly T[] {
  if (ALL) return cases;
  const first = createHash('sha256').update(`${from} ${name}`).digest().readUInt32LE(0) % period;
  return cases.filter((_, i) => i % period === first % Math.min(period, cases.length));
}

/** Whether a test that takes seconds alone is among the one in `period` that this commit draws. Always where its file was named. */
export function drawn(name: string, period: number, from = seed()): boolean {
  if (ALL || process.env.LPQ_TEST_NAMED === '1') return true;
  return createHash('sha256').update(`${from} ${name}`).digest().readUInt32LE(0) % period === 0;
}
