import path from 'node:path';
import type { Command } from 'commander';
import type { Measurement } from '../bench/run.js';
import type { ModelShape } from '../bench/shapes.js';
import { LpqError } from '../core/error.js';
import { machine, measure, synthesize } from './bench-quantize.js';
import { integer, number } from './parse.js';
import { type ComputeOptions, computeOptions, openRuntime, type Run } from './run.js';
import { facts } from './table.js';
import { bytes } from './units.js';

interface RtnFlags extends ComputeOptions {
  readonly gb: number;
  readonly bits?: number;
  readonly dtype?: string;
  readonly rounds: number;
  readonly seed: number;
  readonly keep?: string;
  readonly cold?: boolean;
}

/** `lpq bench rtn`. */
export function benchRtnCommand(bench: Command, run: Run): Command {
  return computeOptions(
    bench
      .command('rtn')
      .description('round a large checkpoint to nearest, beside a program that only reads and writes the same bytes')
      .option('--gb <size>', 'size of the checkpoint in GB, in blocks of Llama-3-8B', number('--gb'), 8)
      .option('--bits <n>', 'an integer type of this many bits (default: 4)', number('--bits'))
      .option('--dtype <type>', 'any type, instead of --bits')
      .option('--rounds <n>', 'runs of each, in turns; medians count', integer('--rounds', 1), 3)
      .option('--cold', 'drop the checkpoint from the page cache before each run')
      .option('--seed <s>', 'of the weights', integer('--seed', 0), 0)
      .option('--keep <dir>', 'keep the checkpoint there, and use one that is there already'),
  ).action((flags: RtnFlags) => benchRtn(flags, run));
}

async function benchRtn(flags: RtnFlags, run: Run): Promise<void> {
  const { fileSizes, totalBytes, workDirectory, requireSpace } = await import('../bench/directory.js');
  const { copyLike, evict, settle } = await import('../bench/copy.js');
  const { checkFlags, mergeSettings } = await import('./settings.js');
  const { rm } = await import('node:fs/promises');
  const { gb, rounds, seed, keep, cold = false, threads } = flags;
  const type = flags.dtype === undefined ? { bits: flags.bits ?? 4 } : { dtype: flags.dtype, bits: flags.bits };
  const settings = mergeSettings(checkFlags({ ...type, method: 'rtn' }), {});
  const shape = await rtnShape(gb);
  const rt = openRuntime(run, flags);
  const work = await workDirectory(keep);
  try {
    const dir = path.join(work.dir, 'checkpoint');
    const checkpoint = await synthesize(shape, { dir, blocks: shape.blocks, seed }, threads, run);
    await settle(dir);
    await requireSpace(dir, checkpoint.bytes);
    const runs: Measurement[] = [];
    const copies: number[] = [];
    let outputs: Awaited<ReturnType<typeof fileSizes>> = [];
    for (let round = 0; round < rounds; round++) {
      const output = path.join(work.dir, `output-${process.pid}`);
      if (cold) await evict(dir);
      const measured = await measure({ checkpoint, output, settings, calibration: undefined }, rt, run);
      outputs = await fileSizes(output);
      await rm(output, { recursive: true });
      runs.push(measured);
      run.interrupt.check();
      if (cold) await evict(dir);
      copies.push(await copyLike(dir, output, outputs));
      await rm(output, { recursive: true });
      run.interrupt.check();
      const line = `round ${round + 1}: ${measured.seconds.toFixed(2)} s, reading and writing alone ${copies.at(-1)?.toFixed(2)} s`;
      run.report.event('round', { round, seconds: measured.seconds, copySeconds: copies.at(-1) }, line);
    }
    const seconds = median(runs.map((measured) => measured.seconds));
    const copySeconds = median(copies);
    const anonymous = Math.max(...runs.map(({ peak }) => peak.anonymous));
    const rtnSeconds = median(runs.map(({ operations }) => operations.rtn?.seconds ?? 0));
    run.report.result(
      {
        command: 'bench rtn',
        ...('bits' in type ? { type: `i${type.bits}` } : type),
        blocks: shape.blocks,
        cold,
        machine: machine(rt),
        source: { bytes: checkpoint.bytes, seconds: checkpoint.seconds ?? null },
        output: { bytes: totalBytes(outputs) },
        seconds,
        copySeconds,
        share: copySeconds / seconds,
        rtnSeconds,
        bytesPerSecond: checkpoint.bytes / seconds,
        peak: { anonymous, rss: Math.max(...runs.map(({ peak }) => peak.rss)) },
        runs: runs.map(({ seconds: wall, stages }) => ({ seconds: wall, stages })),
        copies,
      },
      facts([
        ['quantized', `${bytes(checkpoint.bytes)} in ${seconds.toFixed(2)} s, ${bytes(checkpoint.bytes / seconds)}/s`],
        ['reading and writing alone', `${copySeconds.toFixed(2)} s`],
        ['share of its speed', `${((100 * copySeconds) / seconds).toFixed(0)} %`],
        ['rounding alone', `${bytes(checkpoint.bytes / rtnSeconds)}/s`],
        ['peak anonymous memory', bytes(anonymous)],
      ]),
    );
  } finally {
    await work.remove();
  }
}

/** As many blocks of Llama-3-8B as make up `gb`, with a small vocabulary: nearly all bytes are then quantized. */
async function rtnShape(gb: number): Promise<ModelShape> {
  const { modelShape } = await import('../bench/shapes.js');
  const { config } = modelShape('llama-3-8b');
  const [hidden, inner] = [Number(config.hidden_size), Number(config.intermediate_size)];
  const blockBytes = 2 * (hidden * hidden * 2.5 + 3 * hidden * inner);
  const blocks = Math.round((gb * 1e9) / blockBytes);
  if (blocks < 1)
    throw new LpqError('LPQ_USAGE', `--gb does not take ${gb}`, { got: gb, expected: `at least ${blockBytes / 1e9}` });
  return {
    name: 'llama-3-8b-blocks',
    config: { ...config, vocab_size: 2048, bos_token_id: 1, eos_token_id: 2, tie_word_embeddings: true },
    blocks,
  };
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1
    ? (sorted[middle] as number)
    : ((sorted[middle - 1] as number) + (sorted[middle] as number)) / 2;
}
