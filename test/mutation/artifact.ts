import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, cpus, tmpdir } from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { createRuntime } from '../../native/binding.js';
import { PACK_TARGETS } from '../../src/pack/targets/index.js';
import { mutateArtifact, type Outcome, type Trial } from './artifact/mutate.js';
import { CASES, caseName } from './cases.js';
import { packedCase } from './packed.js';
import { Shelf } from './quantized.js';

// node dist/test/mutation/artifact.js --count 2000 --seed 1 --out FILE: changes artifacts of every target, redoes all hashes and
// asks verify --against. Ends with 1 where something survived that docs/verification.md does not list.

const { values } = parseArgs({
  options: {
    count: { type: 'string', default: '2000' },
    seed: { type: 'string', default: '1' },
    only: { type: 'string', default: '' },
    out: { type: 'string' },
  },
});
const count = Number(values.count);
const seed = Number(values.seed);
const started = performance.now();
const dir = mkdtempSync(path.join(tmpdir(), 'lpq-mutation-'));
process.on('exit', () => rmSync(dir, { recursive: true, force: true }));
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => process.exit(130));
const runtime = createRuntime(1);
const shelf = new Shelf(dir, runtime);
const cases = CASES.filter((each) => caseName(each).includes(values.only));
const targets = PACK_TARGETS.map(({ name }) => name);
const all: (Trial & { readonly case: string })[] = [];

for (const [i, each] of cases.entries()) {
  const name = caseName(each);
  const { packed, quantized } = await packedCase(shelf, each, runtime);
  const share = Math.floor((count * (i + 1)) / cases.length) - Math.floor((count * i) / cases.length);
  const work = path.join(dir, 'work', String(i));
  const trials = await mutateArtifact({ packed, quantized, work, runtime, count: share, seed: seed + i, targets });
  all.push(...trials.map((trial) => ({ case: name, ...trial })));
  rmSync(work, { recursive: true });
  const left = trials.filter(({ outcome }) => outcome === 'survived' || outcome === 'crashed');
  console.error(`${name}: ${trials.length - left.length} of ${trials.length}`);
  for (const { what, outcome, rehash, said } of left)
    console.error(`  ${outcome} (${rehash}) ${what}${outcome === 'crashed' ? ` ${said}` : ''}`);
}

type Counts = Partial<Record<Outcome, number>>;
function countBy(key: (trial: Trial & { case: string }) => string): Record<string, Counts> {
  const counts: Record<string, Counts> = {};
  for (const trial of all) {
    const own = counts[key(trial)] ?? {};
    counts[key(trial)] = { ...own, [trial.outcome]: (own[trial.outcome] ?? 0) + 1 };
  }
  return counts;
}

const result = {
  what: 'Artifacts changed one value at a time, every hash and the seal redone, and read by verify --against.',
  command: `node dist/test/mutation/artifact.js --count ${count} --seed ${seed}`,
  machine: `${cpus()[0]?.model ?? 'unknown'}, ${availableParallelism()} cores, Node.js ${process.version}`,
  mutations: all.length,
  outcomes: countBy(() => 'all').all,
  targets: countBy((trial) => trial.case.split('/')[0] as string),
  kinds: countBy(({ kind }) => kind),
  survivors: all
    .filter(({ outcome }) => outcome !== 'reported')
    .map(({ case: name, kind, what, outcome, rehash, said }) => ({ case: name, kind, what, outcome, rehash, said })),
  seconds: Math.round((performance.now() - started) / 1000),
};
const text = `${JSON.stringify(result, null, 2)}\n`;
if (values.out) writeFileSync(values.out, text);
else process.stdout.write(text);
process.exitCode = all.some(({ outcome }) => outcome === 'survived' || outcome === 'crashed') ? 1 : 0;
