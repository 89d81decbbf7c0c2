import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import fc from 'fast-check';
import { asLpqError } from '../../src/cli/failure.js';
import { damaged, damages, edited, edits } from './damage.js';
import { makeTargets, type Target } from './targets.js';

// Whatever is in a file that others wrote: reading it succeeds, or ends in a designed error, soon. LPQ_FUZZ_RUNS sets how often
// each reader is tried (npm run fuzz: 100 000 times), LPQ_FUZZ_ONLY which, LPQ_FUZZ_SEED repeats a run.
const RUNS = Number(process.env.LPQ_FUZZ_RUNS ?? 120);
const ONLY = process.env.LPQ_FUZZ_ONLY;
const SEED = Number(process.env.LPQ_FUZZ_SEED ?? Date.now() % 2 ** 31);
/** A reader that takes so long with a damaged file hangs, for all that its user can tell. */
const MOST_MS = 10_000;

const NAMES = [
  ...['safetensors', 'index', 'config', 'tokenizer', 'tokenizer config', 'recipe', 'recipe as JSON', 'canonical'],
  ...['artifact', 'foreign config', 'gguf', 'statistics', 'shard', 'report', 'journal'],
];

let dir = '';
let targets: Target[] = [];
before(async () => {
  dir = mkdtempSync(path.join(os.tmpdir(), 'lpq-fuzz-'));
  targets = await makeTargets(dir);
  assert.deepEqual(
    targets.map(({ name }) => name),
    NAMES,
  );
});
after(() => rmSync(dir, { recursive: true, force: true }));

async function attempt({ file, run }: Target, bytes: Buffer): Promise<void> {
  writeFileSync(file, bytes);
  const started = performance.now();
  try {
    await run();
  } catch (thrown) {
    const error = asLpqError(thrown);
    if (error.code === 'LPQ_INTERNAL') throw thrown;
    assert.ok(error.message.length < 20_000, 'a message that nobody can read');
  }
  const ms = performance.now() - started;
  assert.ok(ms < MOST_MS, `it took ${ms} ms`);
}

for (const name of NAMES)
  test(`${name}: damaged in any way, it is read or refused by design`, {
    skip: ONLY !== undefined && ONLY !== name,
  }, async (t) => {
    const target = targets.find((each) => each.name === name) as Target;
    const whole = readFileSync(target.file);
    await attempt(target, whole);
    // A weight file is long, and every byte behind its header is as good as any other.
    const runs = whole.length > 2 ** 20 ? Math.ceil(RUNS / 4) : RUNS;
    t.diagnostic(`seed ${SEED}, ${runs} runs`);
    const ways = target.json
      ? fc.oneof(
          damages.map((list) => damaged(whole, list)),
          edits.map((list) => edited(whole.toString(), list)),
        )
      : damages.map((list) => damaged(whole, list));
    try {
      await fc.assert(
        fc.asyncProperty(ways, (bytes) => attempt(target, bytes)),
        { numRuns: runs, seed: SEED, verbose: 0 },
      );
    } finally {
      writeFileSync(target.file, whole);
    }
  });
