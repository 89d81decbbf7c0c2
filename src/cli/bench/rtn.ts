import path from 'node:path';
import type { Command } from 'commander';
import type { Measurement } from '../../../bench/run.js';
import type { ModelShape } from '../../../bench/shapes.js';
import { LpqError, notTaken } from '../../core/error.js';
import { integer, number } from '../options/parse.js';
import { type ComputeOptions, computeOptions, openRuntime, type Run } from '../run.js';
import { facts } from '../terminal/table.js';
import { bytes } from '../terminal/units.js';
import { machine, measure, synthesize } from './quantize.js';

interface RtnFlags extends ComputeOptions {
  readonly gb?: number;
  readonly shape?: string;
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
      .description('time rounding a large checkpoint, and a program that only reads and writes the same bytes')
      .option('--gb <size>', 'size of the checkpoint in GB, in blocks of Llama-3-8B (default: 8)', number('--gb'))
      .option('--shape <name>', 'a whole model instead: llama-3-8b, ... or the path of a config.json')
      .option('--bits <n>', 'an integer type of this many bits (default: 4)', number('--bits'))
      .option('--dtype <type>', 'any type, instead of --bits')
      .option('--rounds <n>', 'number of runs of each, in turns; the median counts', integer('--rounds', 1), 5)
      .option('--cold', 'drop the checkpoint from the page cache before each run')
      .option('--seed <s>', 'seed of the weights', integer('--seed', 0), 0)
      .option('--keep <dir>', 'keep the checkpoint in this directory, and reuse one that exists'),
  ).action((flags: RtnFlags) => benchRtn(flags, run));
}

async function benchRtn(flags: RtnFlags, run: Run): Promise<void> {
  if (flags.gb !== undefined && flags.shape !== undefined)
    throw new LpqError('LPQ_USAGE', '--gb and --shape exclude each other');
  const { fileSizes, totalBytes, workDirectory, requireSpace } = await import('../../../bench/directory.js');
  const { copyLike, evict, settle } = await import('../../../bench/copy.js');
  const spread = spreadOf((await import('../../../bench/kernels/time.js')).median);
  const { checkFlags, mergeSettings } = await import('../quantize/settings.js');
  const { rm } = await import('node:fs/promises');
  const { rounds, seed, keep, cold = false, threads } = flags;
  const type = flags.dtype === undefined ? { bits: flags.bits ?? 4 } : { dtype: flags.dtype, bits: flags.bits };
  const settings = mergeSettings(checkFlags({ ...type, method: 'rtn' }), {});
  const shape = await rtnShape(flags);
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
    const output = path.join(work.dir, `output-${process.pid}`);
    const quantize = async () => {
      if (cold) await evict(dir);
      runs.push(await measure({ checkpoint, output, settings, calibration: undefined }, [rt], run));
      outputs = await fileSizes(output);
    };
    const copy = async () => {
      if (cold) await evict(dir);
      copies.push(await copyLike(dir, output, outputs));
    };
    for (let round = 0; round < rounds; round++) {
      // Whoever goes second may find the disk busier, or the processor warmer: each goes first in every other round.
      for (const part of round % 2 === 0 ? [quantize, copy] : [copy, quantize]) {
        await part();
        await rm(output, { recursive: true });
        run.interrupt.check();
      }
      const [seconds, copySeconds] = [(runs.at(-1) as Measurement).seconds, copies.at(-1) as number];
      const line = `round ${round + 1}: ${seconds.toFixed(2)} s, reading and writing alone ${copySeconds.toFixed(2)} s`;
      run.report.event('round', { round, seconds, copySeconds }, line);
    }
    const wall = spread(runs.map(({ seconds }) => seconds));
    const copied = spread(copies);
    const share = spread(runs.map(({ seconds }, i) => (copies[i] as number) / seconds));
    const { median: seconds } = wall;
    const anonymous = Math.max(...runs.map(({ peak }) => peak.anonymous));
    const rtnSeconds = spread(runs.map(({ operations }) => operations.rtn?.seconds ?? 0)).median;
    const range = ({ least, most }: Spread, unit: string) => `${least.toFixed(2)} to ${most.toFixed(2)}${unit}`;
    run.report.result(
      {
        command: 'bench rtn',
        ...('bits' in type ? { type: `i${type.bits}` } : type),
        shape: shape.name,
        blocks: shape.blocks,
        cold,
        machine: machine([rt]),
        source: { bytes: checkpoint.bytes, seconds: checkpoint.seconds ?? null },
        output: { bytes: totalBytes(outputs) },
        seconds,
        copySeconds: copied.median,
        share: share.median,
        spread: { seconds: wall, copySeconds: copied, share },
        rtnSeconds,
        bytesPerSecond: checkpoint.bytes / seconds,
        peak: {
          anonymous,
          rss: Math.max(...runs.map(({ peak }) => peak.rss)),
          device: runs[0]?.peak.device === null ? null : Math.max(...runs.map(({ peak }) => peak.device ?? 0)),
        },
        runs: runs.map(({ seconds: took, stages }) => ({ seconds: took, stages })),
        copies,
      },
      facts([
        [
          'quantized',
          `${bytes(checkpoint.bytes)} in ${seconds.toFixed(2)} s (${range(wall, ' s')}), ${bytes(checkpoint.bytes / seconds)}/s`,
        ],
        ['reading and writing alone', `${copied.median.toFixed(2)} s (${range(copied, ' s')})`],
        ['share of its speed', `${(100 * share.median).toFixed(0)} % (${range(share, '')} by round)`],
        ...(rtnSeconds > 0 ? [['rounding alone', `${bytes(checkpoint.bytes / rtnSeconds)}/s`] as const] : []),
        ['peak anonymous memory', bytes(anonymous)],
      ]),
    );
  } finally {
    await work.remove();
  }
}

/**
 * A whole shape, or as many blocks of Llama-3-8B as make up `gb`, with a small vocabulary: nearly all bytes are then
 * quantized.
 */
async function rtnShape({ gb = 8, ...flags }: Pick<RtnFlags, 'gb' | 'shape'>): Promise<ModelShape> {
  const { modelShape } = await import('../../../bench/shapes.js');
  if (flags.shape !== undefined) return modelShape(flags.shape);
  const { config } = modelShape('llama-3-8b');
  const [hidden, inner] = [Number(config.hidden_size), Number(config.intermediate_size)];
  const blockBytes = 2 * (hidden * hidden * 2.5 + 3 * hidden * inner);
  const blocks = Math.round((gb * 1e9) / blockBytes);
  if (blocks < 1) throw notTaken('--gb', gb, `at least ${blockBytes / 1e9}`);
  return {
    name: 'llama-3-8b-blocks',
    config: { ...config, vocab_size: 2048, bos_token_id: 1, eos_token_id: 2, tie_word_embeddings: true },
    blocks,
  };
}

interface Spread {
  readonly median: number;
  readonly least: number;
  readonly most: number;
}

function spreadOf(median: (values: readonly number[]) => number): (values: readonly number[]) => Spread {
  return (values) => ({ median: median(values), least: Math.min(...values), most: Math.max(...values) });
}
