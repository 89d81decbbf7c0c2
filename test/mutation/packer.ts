import { createHash } from 'node:crypto';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, cpus, tmpdir } from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { listFiles } from '../../formats/directory/output-directory.js';
import { createRuntime } from '../../native/binding.js';
import { verifyArtifact } from '../../src/verify/verify.js';
import { CASES, type Case, caseName } from './cases.js';
import { CONFIG_MUTANTS } from './packer/configs.js';
import { PackerCopy } from './packer/copy.js';
import { GGUF_MUTANTS } from './packer/gguf.js';
import type { Job } from './packer/job.js';
import { LAYOUT_MUTANTS } from './packer/layouts.js';
import type { Mutant } from './packer/mutant.js';
import { NATIVE_MUTANTS, NativeCopy } from './packer/native.js';
import { Shelf } from './quantized.js';

// node dist/test/mutation/packer.js [--native] --out FILE: puts faults into a copy of the packer, one at a time, packs what
// comes by the place, and asks verify --against. --native builds faults of the native engine too. Ends with 1 where a fault
// survived that is not said to be none.

const { values } = parseArgs({
  options: {
    native: { type: 'boolean', default: false },
    only: { type: 'string', default: '' },
    out: { type: 'string' },
  },
});
const started = performance.now();
const dir = mkdtempSync(path.join(tmpdir(), 'lpq-packer-'));
process.on('exit', () => rmSync(dir, { recursive: true, force: true }));
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => process.exit(130));
const runtime = createRuntime(1);
const shelf = new Shelf(dir, runtime);
const copy = new PackerCopy(path.join(dir, 'packer'));
const output = path.join(dir, 'out');

type Outcome = 'killed' | 'survived' | 'unchanged';
interface Row {
  readonly area: string;
  readonly mutant: Mutant;
  readonly outcome: Outcome;
  /** What told, of which case; of a survivor the cases that passed. */
  readonly by: string;
}

const digests = new Map<Case, string>();
const rows: Row[] = [];

for (const [area, list] of [
  ['layouts', LAYOUT_MUTANTS],
  ['configs and files', CONFIG_MUTANTS],
  ['gguf', GGUF_MUTANTS],
  ...(values.native ? [['native layouts', NATIVE_MUTANTS] as const] : []),
] as const) {
  const chosen = list.filter(({ file, breaks }) => `${file} ${breaks}`.includes(values.only));
  const native = area === 'native layouts' && chosen.length > 0 ? new NativeCopy(path.join(dir, 'native')) : undefined;
  for (const mutant of chosen) {
    const cases = casesOf(mutant);
    await baseline(cases);
    const row = native
      ? await native.with(mutant, (addon) => judge(area, mutant, cases, addon))
      : await copy.with(mutant, () => judge(area, mutant, cases, undefined));
    rows.push(row);
    if (rows.length % 20 === 0) console.error(`${rows.length} faults tried`);
    if (row.outcome !== 'killed') console.error(`${row.outcome} ${mutant.file}: ${mutant.breaks} (${row.by})`);
  }
}

function casesOf({ file, cases }: Mutant): Case[] {
  const found = CASES.filter(({ target, variant }) =>
    cases.some((name) => name === target || name === `${target}/${variant}`),
  );
  if (found.length === 0) throw new Error(`no case comes by ${file}: ${cases.join(', ')}`);
  return found;
}

/** Packs and verifies cases without a fault, once each: what fails then is no mutant's doing. */
async function baseline(cases: readonly Case[]): Promise<void> {
  const fresh = cases.filter((each) => !digests.has(each));
  for (const { each, found, bytes } of await packAll(fresh, undefined)) {
    if (found !== undefined) throw new Error(`${caseName(each)} fails without a fault: ${found}`);
    digests.set(each, bytes);
  }
}

async function judge(area: string, mutant: Mutant, cases: readonly Case[], addon: string | undefined): Promise<Row> {
  let changed = false;
  // Most faults are found by the first case; the others share a process.
  for (const batch of [cases.slice(0, 1), cases.slice(1)])
    for (const { each, found, bytes } of await packAll(batch, addon)) {
      if (found !== undefined) return { area, mutant, outcome: 'killed', by: `${caseName(each)}: ${found}` };
      changed ||= bytes !== digests.get(each);
    }
  return { area, mutant, outcome: changed ? 'survived' : 'unchanged', by: cases.map(caseName).join(', ') };
}

/** What told of each case, and the hash of what was packed. */
async function packAll(
  cases: readonly Case[],
  addon: string | undefined,
): Promise<{ each: Case; found: string | undefined; bytes: string }[]> {
  if (cases.length === 0) return [];
  const jobs: Job[] = [];
  for (const [i, each] of cases.entries())
    jobs.push({ each, quantized: await shelf.quantized(each.variant), output: path.join(output, String(i)) });
  mkdirSync(output);
  const out: { each: Case; found: string | undefined; bytes: string }[] = [];
  for (const [i, error] of copy.pack(jobs, addon).entries()) {
    const { each, output: place } = jobs[i] as Job;
    const found = await judged(each, place, error);
    out.push({ each, found, bytes: found === undefined ? await digest(place) : '' });
  }
  rmSync(output, { recursive: true });
  return out;
}

/** What told of a fault: the packer, or the verifier; undefined when none did. */
async function judged(each: Case, packed: string, error: string | null): Promise<string | undefined> {
  if (error !== null) return `pack: ${error}`;
  try {
    const against = await shelf.quantized(each.variant);
    const { failures } = await verifyArtifact({ dir: packed, against, runtime, emulate: false });
    return failures[0] && `${failures[0].check}: ${failures[0].message}`;
  } catch (cause) {
    return `verify: ${(cause as Error).message}`;
  }
}

async function digest(packed: string): Promise<string> {
  const hash = createHash('sha256');
  for (const name of (await listFiles(packed)).toSorted())
    hash.update(name).update(readFileSync(path.join(packed, name)));
  return hash.digest('hex');
}

const count = (list: readonly Row[]) => ({
  mutants: list.length,
  killed: list.filter(({ outcome }) => outcome === 'killed').length,
  survived: list.filter(({ outcome }) => outcome === 'survived').length,
  unchanged: list.filter(({ outcome }) => outcome === 'unchanged').length,
});
const result = {
  what: 'Faults put into the packer one at a time, and what verify --against says of what it packs then.',
  command: `node dist/test/mutation/packer.js${values.native ? ' --native' : ''}`,
  machine: `${cpus()[0]?.model ?? 'unknown'}, ${availableParallelism()} cores, Node.js ${process.version}`,
  ...count(rows),
  areas: Object.fromEntries(
    [...new Set(rows.map(({ area }) => area))].map((area) => [area, count(rows.filter((row) => row.area === area))]),
  ),
  survivors: rows
    .filter(({ outcome }) => outcome !== 'killed')
    .map(({ area, mutant, outcome, by }) => ({
      area,
      ...mutant,
      cases: by,
      outcome,
      reason: mutant.equivalent ?? 'unknown',
    })),
  killed_by: rows
    .filter(({ outcome }) => outcome === 'killed')
    .map(({ area, mutant: { file, breaks }, by }) => ({ area, file, breaks, by: by.slice(0, 300) })),
  seconds: Math.round((performance.now() - started) / 1000),
};
const text = `${JSON.stringify(result, null, 2)}\n`;
if (values.out) writeFileSync(values.out, text);
else process.stdout.write(text);
process.exitCode = rows.some(({ outcome, mutant }) => outcome !== 'killed' && mutant.equivalent === undefined) ? 1 : 0;
