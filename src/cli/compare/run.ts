import { existsSync } from 'node:fs';
import { readdir, stat } from 'node:fs/promises';
import path from 'node:path';
import { isSource, SourceCheckpoint } from '../../../formats/canonical/source.js';
import type { NativeRuntime } from '../../../native/binding.js';
import { shareDirectory } from '../../calibrate/bundled.js';
import { LpqError } from '../../core/error.js';
import { textDivergence } from '../../eval/divergence.js';
import { textPerplexity } from '../../eval/perplexity.js';
import { openModel } from '../../model/graph.js';
import type { WeightSource } from '../../model/source.js';
import { type Compared, comparedHead, comparedRow, qualityPage } from '../../report/quality.js';
import { replaceFile } from '../../report/write.js';
import { lengthWarning } from '../eval/windows.js';
import { modelDirectory } from '../options/hub.js';
import { openEvaluated } from '../options/kv.js';
import { requireKind, warnOfOtherSource } from '../options/sources.js';
import { progress, type Run } from '../run.js';
import { table } from '../terminal/table.js';
import { line } from '../terminal/terminal.js';
import type { CompareFlags } from './command.js';
import { tokensPerSecond } from './speed.js';

/** Windows of the bundled text that are read where nobody says how many. */
const BUNDLED_WINDOWS = 16;

/** Measures every directory on one text. Throws LPQ_USAGE, LPQ_OUTPUT_EXISTS, and what opening and evaluating throw. */
export async function compare(given: readonly string[], flags: CompareFlags, run: Run): Promise<void> {
  const { output, ctx } = flags;
  if (output !== undefined && existsSync(output))
    throw new LpqError('LPQ_OUTPUT_EXISTS', `the output ${output} already exists`, {
      hint: 'Choose another path, or remove it first; lpq never overwrites.',
    });
  const twice = given.find((dir, i) => given.indexOf(dir) !== i);
  if (twice !== undefined)
    throw new LpqError('LPQ_USAGE', `${twice} is given twice`, { hint: 'Name each checkpoint once.' });
  const dirs: string[] = [];
  for (const each of given) dirs.push(await modelDirectory(each, run));
  const first = dirs[0] as string;
  const own = isSource(first) ? first : undefined;
  const source = flags.source === undefined ? own : await modelDirectory(flags.source, run);
  if (source !== undefined) await requireKind(source, 'source');
  const text = flags.text ?? path.join(shareDirectory(), 'text', 'books-valid.txt');
  const windows = flags.windows ?? (flags.text === undefined ? BUNDLED_WINDOWS : undefined);
  const rows: Compared[] = [];
  for (const [i, dir] of dirs.entries()) {
    if (source !== undefined && dir !== source) await warnOfOtherSource(dir, source, run);
    rows.push(await measure(dir, given[i] as string, { ...flags, source, text, windows }, run));
  }
  const facts = { text: path.basename(text), ctx, windows: rows[0]?.windows ?? 0, source: source ?? null };
  if (output !== undefined) await replaceFile(output, qualityPage(rows, facts));
  run.report.result(
    { command: 'compare', ...facts, rows, ...(output !== undefined && { output }) },
    table(
      comparedHead(rows),
      rows.map((row) => comparedRow(row, rows)),
    ) + (output === undefined ? '' : line`wrote ${output}\n`),
  );
}

interface Wish extends Omit<CompareFlags, 'source' | 'text' | 'windows'> {
  readonly source: string | undefined;
  readonly text: string;
  readonly windows: number | undefined;
}

async function measure(dir: string, name: string, wish: Wish, run: Run): Promise<Compared> {
  const { ctx, bos, windows, text, source } = wish;
  const { rt, source: model, close } = await openEvaluated(dir, wish, run);
  const { step: onProgress, end } = progress(run, `measure ${path.basename(dir)}`, false);
  try {
    const onWindows = await lengthWarning(model, ctx, run);
    const options = { ctx, bos, windows, onWindows, onProgress };
    const size = await weightBytes(dir);
    const same = { name, bytes: size, bitsPerWeight: (8 * size) / weightsOf(model) };
    const quality =
      source === undefined || source === dir
        ? await alone(rt, model, text, options)
        : await against(rt, source, model, text, options);
    end();
    const timed = wish.speed || rt.device !== 'cpu';
    const speed = timed ? await tokensPerSecond(rt, model, () => run.interrupt.check()) : null;
    return { ...same, ...quality, tokensPerSecond: speed, device: rt.device };
  } finally {
    end();
    close();
  }
}

type Options = Parameters<typeof textPerplexity>[3] & { readonly windows: number | undefined };

async function alone(rt: NativeRuntime, model: WeightSource, text: string, options: Options) {
  const { ppl, standardError, windows } = await textPerplexity(rt, model, text, options);
  return { ppl: { mean: ppl, error: standardError }, kl: null, sameTop: null, windows };
}

async function against(rt: NativeRuntime, source: string, model: WeightSource, text: string, options: Options) {
  const reference = SourceCheckpoint.open(source);
  try {
    const { ppl, kl, sameTop, windows } = await textDivergence(rt, reference, model, text, options);
    return { ppl, kl, sameTop, windows };
  } finally {
    reference.close();
  }
}

/** Bytes of the files that hold weights. */
async function weightBytes(dir: string): Promise<number> {
  const names = (await readdir(dir)).filter((name) => /\.(safetensors|gguf)$/.test(name));
  const sizes = await Promise.all(names.map(async (name) => (await stat(path.join(dir, name))).size));
  return sizes.reduce((a, b) => a + b, 0);
}

/** Weights of the matrices of a model: linears, embedding and head; norms are a thousandth of them. */
function weightsOf(source: WeightSource): number {
  const graph = openModel(source);
  const linears = graph.blocks.flatMap((block) =>
    block.stages.flatMap(({ feeds }) => feeds.flatMap((feed) => feed.linears)),
  );
  const inBlocks = linears.reduce((sum, { n, k }) => sum + n * k, 0);
  return inBlocks + graph.vocab * graph.hidden * (graph.head.tied ? 1 : 2);
}
