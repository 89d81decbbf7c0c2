import { cpSync, existsSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { openTokenizer } from '../../../src/calibrate/tokenizer.js';
import { lpq } from '../../src/cli/lpq.js';
import { directoryOf, sourceOf } from '../directories.js';
import { boundOf, logprobsOf } from '../run.js';
import { GPU_CELLS, type GpuCell } from './cells.js';

/**
 * node dist/test/engines/gpu/prepare.js --out DIR [--cells EXPRESSION] [--smoke]: the directories of the cells, by lpq's own commands, with what
 * `lpq generate` and `lpq logits` say of each, in DIR/cells.json. Needs no GPU; drive.py runs them where there is one.
 */

const TOKENS = 16;
const PROMPT = 'The sea was calm that morning, and the captain';
/** Of a step, the likeliest tokens are kept: an engine's choice is looked up among them. */
const BEST = 16;

/** What an engine is compared with. */
export interface Expected {
  readonly ids: readonly number[];
  /** lpq's greedy tokens. */
  readonly tokens: readonly number[];
  /** Of each token of the prompt but the first. */
  readonly logprobs: readonly number[];
  /** Of each step: the likeliest tokens and their logprobs. */
  readonly best: readonly (readonly (readonly [token: number, logprob: number])[])[];
  /** How far a logprob may be off. */
  readonly bound: number;
}

async function expected(packed: string, source: string, cell: GpuCell): Promise<Expected> {
  const ids = [...(await (await openTokenizer(source))(PROMPT))];
  const options = ['--max-tokens', String(TOKENS), '--ignore-eos', '--json'];
  const ran = await lpq(['generate', packed, '--prompt', PROMPT, ...options]);
  if (ran.code !== 0) throw new Error(`lpq generate ${packed}: ${ran.stderr}`);
  const told = JSON.parse(ran.stdout.trim().split('\n').at(-1)!) as { sequences: { ids: number[] }[] };
  const tokens = told.sequences[0]!.ids;
  for (const file of ['ids', 'logits']) rmSync(`${packed}.${file}.safetensors`, { force: true }); // of a run that was stopped
  const { rows, ...sizes } = await logprobsOf(packed, [...ids, ...tokens]);
  const best = tokens.map((_, step) => {
    const row = rows[ids.length - 1 + step]!;
    const order = [...row.keys()].sort((a, b) => row[b]! - row[a]!).slice(0, BEST);
    return order.map((token) => [token, row[token]!] as const);
  });
  const logprobs = ids.slice(1).map((token, i) => rows[i]![token]!);
  return { ids, tokens, logprobs, best, bound: boundOf(cell.dtype ?? 'float32', sizes) };
}

/** Makes what is not there yet; the cells whose model this machine has. */
export async function prepare(out: string, cells: readonly GpuCell[]): Promise<void> {
  const work = path.join(path.dirname(out), `${path.basename(out)}.work`);
  for (const folder of [out, work]) mkdirSync(folder, { recursive: true });
  const rows: object[] = [];
  const made = new Map<string, { directory: string; expected: Expected }>();
  for (const cell of cells) {
    const { target, options, model } = cell;
    const key = [target, options.join(' '), model ?? 'tiny', cell.dtype].join(', ');
    let found = made.get(key);
    if (found === undefined) {
      const source = await sourceOf(cell, work);
      const packed = await directoryOf({ ...cell, name: key }, work);
      if (source === undefined || packed === undefined) {
        console.error(`${cell.name}: this machine has no ${model}`);
        continue;
      }
      const directory = path.basename(packed);
      if (!existsSync(path.join(out, directory))) cpSync(packed, path.join(out, directory), { recursive: true });
      found = { directory, expected: await expected(packed, source, cell) };
      made.set(key, found);
    }
    const { name, group, dtype = 'float32', plugin = false, ranks = 1, compiled = false, rounds = false } = cell;
    rows.push({ name, group, dtype, plugin, ranks, compiled, rounds, target, ...found });
  }
  writeFileSync(path.join(out, 'cells.json'), `${JSON.stringify({ cells: rows })}\n`);
  console.log(`${out}: ${rows.length} cells of ${made.size} directories`);
}

if (process.argv[1] && import.meta.filename === process.argv[1]) {
  const { values } = parseArgs({
    options: { out: { type: 'string' }, cells: { type: 'string', default: '' }, smoke: { type: 'boolean' } },
  });
  if (values.out === undefined) throw new Error('--out names the folder to make');
  const wanted = new RegExp(values.cells);
  const cells = GPU_CELLS.filter(({ name, smoke }) => wanted.test(name) && (!values.smoke || smoke));
  await prepare(path.resolve(values.out), cells);
}
