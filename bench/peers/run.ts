/**
 * lpq and its peers on one machine: seconds, memory, perplexity of each cell of cells.ts. One process a run, one JSON file a cell, so that
 * hours of it can be done in pieces.
 *
 *   node dist/bench/peers/run.js --work DIR [--only REGEX] [--device cuda]
 *     --prepare               makes the inputs of the cells, so that several of these programs can use them side by side
 *     --round N [--limit N]   runs what round N (from 0) lacks, round 0 forwards, round 1 backwards and so on; at most so many runs
 *     --until TIME            seconds since 1970: no run begins after it, and one on its way is stopped and forgotten
 *     --evaluate              reads the perplexity of what round 0 made, by lpq and by transformers
 *     --read-by lpq           by lpq alone
 *     --list                  says what is there
 *     --from FILE             takes cells from a merged result, where there are none yet
 *     --json FILE             merges all cells into one result
 *
 * LPQ_SHARED is the folder of shared texts and models, LPQ_SMOLLM2 a checkpoint of SmolLM2-135M (without it, no cells of that model);
 * scripts/peers.mjs makes the environments. Several of these programs with different --only may share DIR, one for each GPU of
 * CUDA_VISIBLE_DEVICES (card.sh).
 */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { allCells, type Cell, models } from './cells.js';
import { type Inputs, inputsOf } from './inputs.js';
import { measured } from './measure.js';
import { type Kept, keptOf, merged } from './merge.js';
import { lpq, places, TOOLS } from './tools.js';

const { values } = parseArgs({
  options: {
    work: { type: 'string' },
    only: { type: 'string', default: '' },
    round: { type: 'string' },
    limit: { type: 'string' },
    prepare: { type: 'boolean' },
    until: { type: 'string', default: 'Infinity' },
    'read-by': { type: 'string', default: 'both' },
    threads: { type: 'string', default: '2' },
    device: { type: 'string', default: 'cpu' },
    evaluate: { type: 'boolean' },
    list: { type: 'boolean' },
    from: { type: 'string' },
    json: { type: 'string' },
  },
});
const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../../..');
const { LPQ_SHARED: shared, LPQ_SMOLLM2: smollm2 } = process.env;
if (!values.work || !shared) throw new Error('--work DIR and LPQ_SHARED are needed');
const work = path.resolve(values.work);
const { device } = values;
if (device !== 'cpu' && device !== 'cuda') throw new Error('--device takes cpu or cuda');
const leftMs = () => Number(values.until) * 1000 - Date.now();
if (Number.isNaN(leftMs())) throw new Error('--until takes seconds since 1970');
const at = places(root, device);
const tiny = path.join(root, 'share', 'tiny-llama');
const env = {
  OMP_NUM_THREADS: values.threads,
  LPQ_THREADS: values.threads,
  HF_HUB_OFFLINE: '1',
  LPQ_PEER_DEVICE: device,
  ...(device === 'cpu' && { CUDA_VISIBLE_DEVICES: '' }),
};
for (const name of ['cells', 'artifacts', 'logs']) mkdirSync(path.join(work, name), { recursive: true });
const cells = allCells(models(root, shared, smollm2, device)).filter(({ name }) => new RegExp(values.only).test(name));

const placeOf = ({ name }: Cell) => path.join(work, 'cells', `${name}.json`);
const artifactOf = ({ name }: Cell) => path.join(work, 'artifacts', name);

function kept(cell: Cell): Kept {
  const file = placeOf(cell);
  if (existsSync(file)) return JSON.parse(readFileSync(file, 'utf8')) as Kept;
  const { name, model, tool, bits, args } = cell;
  const { of, blocks } = model;
  return { name, model: model.name, tool, bits, args, ...(of && { blocks, of }), runs: {} };
}

function keep(cell: Cell, facts: Kept): void {
  writeFileSync(`${placeOf(cell)}.new`, `${JSON.stringify(facts, undefined, 1)}\n`);
  renameSync(`${placeOf(cell)}.new`, placeOf(cell));
}

/** What a command prints, run with the same environment; throws with the end of what it said. */
function output(command: readonly string[]): string {
  const [file, ...args] = command as [string, ...string[]];
  const ran = spawnSync(file, args, { encoding: 'utf8', env: { ...process.env, ...env }, maxBuffer: 2 ** 28 });
  if (ran.status !== 0) throw new Error(`${command.join(' ')}: ${(ran.error?.message ?? ran.stderr).slice(-400)}`);
  return ran.stdout;
}

function bytesOf(dir: string): number {
  if (!statSync(dir).isDirectory()) return statSync(dir).size;
  return readdirSync(dir).reduce((sum, name) => sum + bytesOf(path.join(dir, name)), 0);
}

async function run(cell: Cell, round: string): Promise<void> {
  const tool = TOOLS[cell.tool];
  if (!tool) throw new Error(cell.tool);
  const inputs = await inputsOf(cell.model, work, tiny);
  const before = tool.before?.(inputs, at);
  if (before && !existsSync(before.made)) output(before.command);
  const facts = kept(cell);
  const version = facts.version ?? output(tool.version(at)).trim();
  // The first round's artifact is kept for the perplexity.
  const out = round === '0' ? artifactOf(cell) : path.join(work, 'artifacts', `again-${process.pid}`, cell.name);
  // Of a run that was stopped, too.
  for (const each of [out, `${out}.partial`]) rmSync(each, { recursive: true, force: true });
  mkdirSync(path.dirname(out), { recursive: true });
  const log = path.join(work, 'logs', `${cell.name}-${round}.log`);
  // Programs that a run compiles for the device are its own: a cell does not depend on those before it.
  const caches = path.join(work, 'caches', `${cell.name}-${round}`);
  const own = { TORCHINDUCTOR_CACHE_DIR: path.join(caches, 'inductor'), TRITON_CACHE_DIR: path.join(caches, 'triton') };
  const { code, ...found } = await measured(tool.command(cell, inputs, out, at), {
    ...{ env: { ...env, ...own }, log, cwd: work },
    deviceMemory: device === 'cuda',
    ...(Number.isFinite(leftMs()) && { limitMs: Math.max(1, leftMs()) }),
  });
  rmSync(caches, { recursive: true, force: true });
  if (code !== 0 && leftMs() <= 0) {
    console.error(`${cell.name}: stopped, for want of time`);
    rmSync(out, { recursive: true, force: true });
    return;
  }
  if (code !== 0 || !existsSync(out)) {
    const said = readFileSync(log, 'utf8').trim().split('\n').slice(-1)[0]?.slice(0, 300);
    keep(cell, { ...facts, version, failed: said ?? `exit ${code}` });
    console.error(`${cell.name}: failed: ${said}`);
    return;
  }
  const alone = /\{"seconds": ([\d.]+)\}/.exec(readFileSync(log, 'utf8'))?.[1];
  const row = { ...found, ...(alone !== undefined && { ownSeconds: Number(alone) }) };
  const { failed, ...whole } = facts;
  keep(cell, { ...whole, version, bytes: bytesOf(out), runs: { ...facts.runs, [round]: row } });
  if (round !== '0') rmSync(path.dirname(out), { recursive: true });
  console.error(`${cell.name}: ${found.seconds.toFixed(1)} s, ${(found.peakBytes / 1e9).toFixed(2)} GB`);
}

/** One tool that cannot be run at all does not stop the others. */
async function attempt(cell: Cell, round: string): Promise<void> {
  try {
    await run(cell, round);
  } catch (error) {
    const failed = (error as Error).message.trim().split('\n').at(-1)?.slice(-300) ?? 'failed';
    keep(cell, { ...kept(cell), failed });
    console.error(`${cell.name}: failed: ${failed}`);
  }
}

async function evaluate(cell: Cell): Promise<void> {
  const tool = TOOLS[cell.tool];
  const out = artifactOf(cell);
  const facts = kept(cell);
  if (!tool || !cell.model.text || !existsSync(out) || facts.perplexity) return;
  const inputs = (await inputsOf(cell.model, work, tiny)) as Required<Inputs>;
  const readBy = (command: () => number): number | string => {
    try {
      return command();
    } catch (error) {
      return (error as Error).message.trim().split('\n').at(-1)?.slice(-300) ?? 'failed';
    }
  };
  const byLpq = readBy(() => {
    const args = [
      'eval',
      tool.artifact(out),
      '--text',
      inputs.text,
      '--ctx',
      '512',
      '--bos',
      'never',
      '--device',
      'cpu',
      '--json',
    ];
    const said = output(lpq(at, ...args))
      .trim()
      .split('\n');
    return (JSON.parse(said.at(-1) as string) as { ppl: number }).ppl;
  });
  if (values['read-by'] === 'lpq') {
    keep(cell, { ...facts, perplexity: { lpq: byLpq } });
    console.error(`${cell.name}: perplexity ${byLpq} by lpq`);
    return;
  }
  const { python, args, made } = tool.transformers(out, at);
  const byTransformers = readBy(() => {
    if (made && !existsSync(args[0] as string)) output(made);
    const [dir, ...more] = args as [string, ...string[]];
    const script = path.join(root, 'bench', 'peers', 'perplexity.py');
    const said = output([python, script, dir, inputs.windows, ...more])
      .trim()
      .split('\n');
    return (JSON.parse(said.at(-1) as string) as { ppl: number }).ppl;
  });
  keep(cell, { ...facts, perplexity: { lpq: byLpq, transformers: byTransformers } });
  console.error(`${cell.name}: perplexity ${byLpq} by lpq, ${byTransformers} by transformers`);
}

if (values.from) {
  const before = keptOf(JSON.parse(readFileSync(values.from, 'utf8')) as ReturnType<typeof merged>);
  for (const cell of cells) {
    const facts = before.get(cell.name);
    if (facts && !existsSync(placeOf(cell))) keep(cell, facts);
  }
}
if (values.prepare) for (const cell of cells) await inputsOf(cell.model, work, tiny);
if (values.round !== undefined) {
  const order = Number(values.round) % 2 === 0 ? cells : cells.toReversed();
  const left = order.filter((cell) => !kept(cell).runs[values.round as string] && !kept(cell).failed);
  for (const cell of left.slice(0, Number(values.limit ?? left.length)))
    if (leftMs() > 0) await attempt(cell, values.round);
}
if (values.evaluate) for (const cell of cells) if (leftMs() > 0) await evaluate(cell);
if (values.list)
  for (const cell of cells) {
    const { runs, perplexity, failed } = kept(cell);
    const seconds = Object.entries(runs).map(([round, each]) => `${round}: ${each.seconds.toFixed(1)} s`);
    console.log([cell.name, ...seconds, perplexity?.lpq ?? '-', failed ?? ''].join('  '));
  }
if (values.json) {
  const without = smollm2 ? undefined : 'SmolLM2-135M: its checkpoint was not there';
  const result = merged(cells.map(kept), { device, threads: Number(values.threads), ...(without && { without }) });
  writeFileSync(values.json, `${JSON.stringify(result, undefined, 1)}\n`);
}
