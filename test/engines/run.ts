import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { execa } from 'execa';
import { SafetensorsFile } from '../../formats/safetensors/read.js';
import { writeSafetensors } from '../../formats/safetensors/write.js';
import { typed } from '../../native/binding.js';
import { openTokenizer } from '../../src/calibrate/tokenizer.js';
import { lpq, root } from '../src/cli/lpq.js';
import type { Format } from './cells.js';
import { directoryOf, run, sourceOf } from './directories.js';
import type { Engine } from './engines.js';

/** What an engine made of a directory, and, where it ran, the largest difference of a logprob from lpq's. */
export interface Cell {
  /** Only of a device's record: failed. */
  readonly outcome: 'ran' | 'loader ran' | 'refused' | 'failed';
  readonly dtype?: string;
  readonly off?: number;
  readonly sentence?: string;
  /** Of a text, or of the prompt where blocks are floats, and lpq's own. */
  readonly perplexity?: readonly [engine: number, lpq: number];
  /** Where it depends on it: whether the processor has AVX-512. */
  readonly avx512?: boolean;
}

/** Whether this machine's processor has it. */
export const AVX512 = /\bavx512f\b/.test(readFileSync('/proc/cpuinfo', 'utf8'));

interface Told {
  readonly outcome: 'ran' | 'refused';
  readonly logprobs?: readonly number[];
  readonly tokens?: readonly number[];
  readonly sentence?: string;
  /** Mean of -ln p over windows of a text. */
  readonly nll?: number;
}

/** The prompt. */
export const IDS = Array.from({ length: 32 }, (_, i) => i + 3);
const TOKENS = 4;
/** The text whose perplexity is compared: its first windows. */
const [WINDOW, WINDOWS] = [64, 16];
const TEXT = path.join(root, 'share', 'text', 'books-valid.txt');

/** The Python of an engine, or why there is none. */
export function pythonOf(
  engine: Pick<Engine, 'name' | 'environment' | 'variable'>,
): { python: string } | { skip: string } {
  const python =
    process.env[engine.variable] ?? path.join(root, 'build', ...engine.environment.split('/'), 'bin', 'python');
  if (existsSync(python)) return { python };
  return { skip: `SKIPPED: no Python for ${engine.name} (node scripts/engines.mjs, or set ${engine.variable})` };
}

/** Sizes of the logits of a text: the largest, and the largest root of the mean square of a token's about their mean. */
export interface Sizes {
  readonly largest: number;
  readonly spread: number;
}

/** lpq's logprob of every token [T, V] of a text, in fp32. */
export async function logprobsOf(
  packed: string,
  ids: readonly number[],
): Promise<Sizes & { readonly rows: readonly Float64Array[] }> {
  const [input, output] = [`${packed}.ids.safetensors`, `${packed}.logits.safetensors`];
  const data = Int32Array.from(ids);
  await writeSafetensors(input, [{ name: 'input_ids', dtype: 'I32', shape: [1, ids.length], data }]);
  await run('logits', packed, '--ids', input, '-o', output);
  const file = SafetensorsFile.open(output);
  const logits = typed(file.tensor('logits'));
  const vocabulary = logits.length / ids.length;
  let [largest, spread] = [0, 0];
  const rows = ids.map((_, t) => {
    const row = Float64Array.from(logits.subarray(t * vocabulary, (t + 1) * vocabulary));
    const most = row.reduce((a, b) => Math.max(a, b));
    largest = Math.max(largest, most, -row.reduce((a, b) => Math.min(a, b)));
    const mean = row.reduce((total, value) => total + value, 0) / vocabulary;
    spread = Math.max(spread, Math.sqrt(row.reduce((total, value) => total + (value - mean) ** 2, 0) / vocabulary));
    const sum = row.reduce((total, value) => total + Math.exp(value - most), 0);
    return row.map((value) => value - most - Math.log(sum));
  });
  file.close();
  return { rows, largest, spread };
}

/**
 * How far a logprob may be off. In fp32 both sides sum up to 768 products in another order, 768 * 2^-24 of what a layer adds up, through
 * four blocks (or as many as a row says) of two residual sums each; twice for either side, and twice because a logprob is a logit less their logarithmic sum.
 * In bf16 a block rounds what it hands on some eleven times, each by 2^-9 of it at most: 44 independent roundings make sqrt(44) of one, and
 * four times that is beyond what 31 tokens show.
 * `halves`: llama.cpp's table of GELU has f16 numbers by f16 numbers, and its flash attention takes f16, each off by 2^-11 of itself at most,
 * once a block.
 * Inputs of 8 bits a block (llama.cpp): a step of max/127 is off by 0.29 of it, 0.7 % of an input's size in blocks of 32 and 1 % in blocks of
 * 256, and so are a product's outputs. A branch has three in a row, 1.7 % of it; branches are what the stream is made of, and each reads
 * what those before it left off, another 1.7 to 3.5 %; the head, 1 %: 4 % of the logits' spread, sqrt(2) for a logit less their sum,
 * and four times that.
 */
export function boundOf(
  dtype: string,
  { largest, spread }: Sizes,
  { blocks, columns, halves = false }: { blocks: number; columns: number; halves?: boolean } = {
    blocks: 4,
    columns: 768,
  },
): number {
  if (dtype === 'int8') return 4 * Math.SQRT2 * 0.04 * spread;
  return dtype === 'float32'
    ? 2 * 2 * blocks * 2 * columns * 2 ** -24 * largest +
        (halves ? 2 * 4 * Math.sqrt(2 * blocks) * 2 ** -11 * largest : 0)
    : 2 * 4 * Math.sqrt(44) * 2 ** -9 * largest;
}

/** The text in a file beside a directory, cut so that it has WINDOWS windows, and its tokens; lpq reads it with the directory's tokenizer. */
async function textFor(packed: string, source: string) {
  const encode = await openTokenizer(source);
  let text = readFileSync(TEXT, 'utf8').slice(0, WINDOW * (WINDOWS + 1) * 8);
  let ids = [...(await encode(text))];
  while (ids.length >= WINDOW * (WINDOWS + 1)) {
    text = text.slice(0, Math.floor((text.length * WINDOW * (WINDOWS + 0.5)) / ids.length));
    ids = [...(await encode(text))];
  }
  writeFileSync(`${packed}.txt`, text);
  return ids;
}

const rounded = (nll: number): number => Number(Math.exp(nll).toPrecision(5));

/**
 * Of the prompt: exp of the mean of -ln p. Each ln p is off by `bound` at most, so their means are, and perplexities by a factor of e^bound.
 */
function ofPrompt(name: string, logprobs: readonly number[], own: readonly number[], bound: number) {
  const [nll, mine] = [logprobs, own].map((all) => -all.reduce((a, b) => a + b, 0) / all.length) as [number, number];
  assert.ok(Math.abs(nll - mine) <= bound, `${name}: -ln p is ${nll}, lpq's ${mine}: beyond ${bound}`);
  return [rounded(nll), rounded(mine)] as const;
}

/**
 * The engine's perplexity and lpq's of a text. Means of n tokens are apart by as much as 4 deviations of one over sqrt(n), where `bound` is 4 deviations
 * of one; and noise of deviation s raises the mean of -ln p by s^2 / 2.
 */
async function ofText(name: string, packed: string, nll: number, bound: number) {
  const ran = await lpq([
    'eval',
    path.join(packed, 'model.gguf'),
    '--text',
    `${packed}.txt`,
    '--ctx',
    String(WINDOW),
    '--json',
  ]);
  assert.equal(ran.code, 0, ran.stderr);
  const own = JSON.parse(ran.stdout.trim().split('\n').at(-1)!) as { nll: number; tokens: number };
  const most = bound / Math.sqrt(own.tokens) + (bound / 4) ** 2;
  assert.ok(Math.abs(nll - own.nll) <= most, `${name}: -ln p is ${nll}, lpq's ${own.nll}: beyond ${most}`);
  return [rounded(nll), rounded(own.nll)] as const;
}

/** A cell of what an engine told; throws where its logprobs or its greedy tokens are not lpq's. */
async function judged(engine: Engine, format: Format, packed: string, dtype: string, told: Told): Promise<Cell> {
  const name = `${engine.name}, ${format.name}`;
  if (told.outcome === 'refused') return { outcome: 'refused', sentence: told.sentence! };
  if (format.rounds) return { outcome: 'loader ran', dtype };
  const text = [...IDS, ...told.tokens!];
  const { rows, ...sizes } = await logprobsOf(packed, text);
  const { halves = false, blocks = 4 } = format;
  const bound = boundOf(dtype, sizes, { blocks, columns: 768, halves });
  const own = told.logprobs!.map((_, i) => rows[i]![IDS[i + 1]!]!);
  const apart = told.logprobs!.map((value, i) => Math.abs(value - own[i]!)).sort((a, b) => a - b);
  // A code that turned changes its token by a step of 4 bits, and what later ones read of it: the others show that nothing else differs.
  const off = format.ties ? apart[apart.length >> 1]! : apart.at(-1)!;
  assert.ok(off <= bound, `${name}: a logprob is ${off} off, beyond ${bound}`);
  for (const [i, token] of format.ties ? [] : told.tokens!.entries()) {
    const row = rows[IDS.length - 1 + i]!;
    const behind = row.reduce((a, b) => Math.max(a, b)) - row[token]!;
    assert.ok(behind <= 2 * bound, `${name}: greedy token ${i} is ${token}, ${behind} behind lpq's best`);
  }
  const cell = { outcome: 'ran', dtype, off: Number(off.toPrecision(2)) } as const;
  if (!engine.perplexity) return cell;
  const { nll, logprobs = [] } = told;
  const both = nll === undefined ? ofPrompt(name, logprobs, own, bound) : await ofText(name, packed, nll, bound);
  return { ...cell, perplexity: both };
}

/** The wheel of python/, unpacked, so that its entry points are found. */
export function unpackedWheel(python: string, dir: string): string {
  const site = path.join(dir, 'site');
  if (existsSync(site)) return site;
  const env = { ...process.env, LPQ_PYTHON: python };
  const built = spawnSync(process.execPath, [path.join(root, 'scripts', 'wheel.mjs'), '-o', dir], { env });
  assert.equal(built.status, 0, String(built.stderr));
  const program =
    'import glob, sys, zipfile\nwheel, = glob.glob(sys.argv[1] + "/*.whl")\nzipfile.ZipFile(wheel).extractall(sys.argv[2])';
  assert.equal(spawnSync(python, ['-c', program, dir, site]).status, 0);
  return site;
}

/** One engine over formats, in one process of its own: format's name -> cell. */
export async function table(engine: Engine, python: string, formats: readonly Format[], dir: string) {
  const made: { format: Format; packed: string; dtype: string; text: number[] }[] = [];
  for (const format of formats) {
    const packed = await directoryOf(format, dir);
    const dtype = format.floats ? 'float32' : (engine.dtype ?? format.dtype ?? 'float32');
    const text =
      packed && engine.perplexity && !format.floats ? await textFor(packed, (await sourceOf(format, dir))!) : [];
    if (packed) made.push({ format, packed, dtype, text });
  }
  const [cases, results] = [path.join(dir, 'cases.json'), path.join(dir, 'results.json')];
  writeFileSync(
    cases,
    JSON.stringify(
      made.map(({ format, packed, dtype, text }) => ({
        ...{ name: format.name, directory: packed, dtype, ids: IDS, tokens: TOKENS },
        env: {
          LPQ_CHECK_HASHES: format.damage === 'changed' && !format.verified ? '1' : '0',
          LPQ_REQUIRE_VERIFY: format.verified ? '1' : '0',
        },
        compile: format.compiled ?? false,
        flash: format.flash ?? false,
        text,
        window: WINDOW,
      })),
    ),
  );
  const ran = await execa(
    python,
    [path.join(root, 'test', 'engines', engine.driver), cases, results, ...(engine.modules ?? [])],
    {
      env: {
        ...engine.env,
        PYTHONPATH: engine.plugin ? unpackedWheel(python, dir) : '',
        LPQ_KERNELS: '',
        LPQ_COMMAND: `${process.execPath} ${path.join(root, 'bin', 'lpq.js')}`,
        OMP_NUM_THREADS: '1',
      },
      reject: false,
    },
  );
  assert.equal(ran.exitCode, 0, ran.stdout.slice(-2000) + ran.stderr.slice(-6000));
  const told = JSON.parse(readFileSync(results, 'utf8')) as Record<string, Told>;
  const cells: Record<string, Cell> = {};
  for (const { format, packed, dtype } of made)
    cells[format.name] = {
      ...(await judged(engine, format, packed, dtype, told[format.name]!)),
      ...(engine.ofProcessor?.test(format.name) ? { avx512: AVX512 } : {}),
    };
  return cells;
}
