import assert from 'node:assert/strict';
import {
  closeSync,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import fc from 'fast-check';
import { asLpqError } from '../../src/cli/terminal/failure.js';
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
  ...['artifact', 'foreign config', 'gguf', 'gguf source', 'statistics', 'shard', 'report', 'journal'],
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

/** Of longer files only the beginning is damaged, where the header is, or the end cut off: the rest is as good as any bytes. */
const HEAD = 2 ** 18;

async function attempt({ file, run }: Target, write: () => void): Promise<void> {
  write();
  const started = performance.now();
  try {
    await run();
  } catch (thrown) {
    const error = asLpqError(thrown);
    if (error.code === 'LPQ_INTERNAL') throw thrown;
    assert.ok(error.message.length < 20_000, `a message about ${file} that nobody can read`);
  }
  const ms = performance.now() - started;
  assert.ok(ms < MOST_MS, `it took ${ms} ms`);
}

function overwrite(file: string, head: Uint8Array): void {
  const fd = openSync(file, 'r+');
  try {
    for (let at = 0; at < head.length; ) at += writeSync(fd, head, at, head.length - at, at);
  } finally {
    closeSync(fd);
  }
}

for (const name of NAMES)
  test(`${name}: damaged in any way, it is read or refused by design`, {
    skip: ONLY !== undefined && ONLY !== name,
  }, async (t) => {
    const target = targets.find((each) => each.name === name) as Target;
    const { file } = target;
    const whole = readFileSync(file);
    await attempt(target, () => {});
    t.diagnostic(`seed ${SEED}, ${RUNS} runs`);
    const long = whole.length > HEAD;
    const head = whole.subarray(0, HEAD);
    const restore = () => writeFileSync(file, whole);
    const bytes = damages.map((list) => () => {
      if (!long) return writeFileSync(file, damaged(whole, list));
      const cut = list.find(({ kind }) => kind === 'cut');
      if (cut) return truncateSync(file, Math.floor(cut.at * whole.length));
      // As long as it was, so that what follows stays in its place.
      const now = damaged(head, list);
      return overwrite(file, Buffer.concat([now, Buffer.alloc(Math.max(0, HEAD - now.length))]).subarray(0, HEAD));
    });
    const ways = target.json
      ? fc.oneof(
          bytes,
          edits.map((list) => () => writeFileSync(file, edited(whole.toString(), list))),
        )
      : bytes;
    const tried = async (write: () => void) => {
      try {
        await attempt(target, write);
      } finally {
        if (long && statSync(file).size === whole.length) overwrite(file, head);
        else if (long) restore();
      }
    };
    try {
      await fc.assert(fc.asyncProperty(ways, tried), { numRuns: RUNS, seed: SEED, verbose: 0 });
    } finally {
      restore();
    }
  });
