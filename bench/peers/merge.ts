import { addon } from '../../native/binding.js';
import { processorName } from '../machine.js';
import { GROUP, LENGTH, type Place } from './cells.js';

/** A run of a cell. */
interface Row {
  readonly seconds: number;
  readonly peakBytes: number;
  readonly deviceBytes?: number;
  /** Of the tool without imports, where its driver says so. */
  readonly ownSeconds?: number;
}

/** What the file of a cell holds. */
export interface Kept {
  readonly name: string;
  readonly model: string;
  readonly tool: string;
  readonly bits: number;
  readonly args: readonly string[];
  /** Blocks of the checkpoint, and of what it stands for. */
  readonly blocks?: number;
  readonly of?: number;
  readonly version?: string;
  /** Of the directory or file that was made. */
  readonly bytes?: number;
  /** By round: even ones forwards, odd ones backwards. */
  readonly runs: Readonly<Record<string, Row>>;
  /** A sentence where it could not be read; transformers is not asked everywhere. */
  readonly perplexity?: { readonly lpq: number | string; readonly transformers?: number | string };
  /** Why there is no result. */
  readonly failed?: string;
}

/** Where cells ran, and what was left out there, with the reason. */
interface Circumstances {
  readonly device: Place;
  readonly threads: number;
  readonly without?: string;
}

/** The least seconds of a cell's rounds: of the whole process, and of the tool without imports where it says so. */
function least({ runs }: Kept): { seconds: number; own: number } {
  const rows = Object.values(runs);
  return {
    seconds: Math.min(...rows.map((row) => row.seconds)),
    own: Math.min(...rows.map((row) => row.ownSeconds ?? row.seconds)),
  };
}

/**
 * The seconds of all blocks, of a cell that has some: where the same was run with fewer blocks too, on the line through both; else of the
 * blocks alone, as if nothing were done once.
 */
function extrapolated(cell: Kept, all: readonly Kept[]) {
  const { blocks, of } = cell;
  if (blocks === undefined || of === undefined || Object.keys(cell.runs).length === 0) return {};
  const same = (other: Kept) =>
    [other.of === of, other.tool === cell.tool, other.bits === cell.bits].every(Boolean) &&
    other.args.join(' ') === cell.args.join(' ') &&
    Object.keys(other.runs).length > 0;
  const fewer = all.find((other) => same(other) && (other.blocks ?? blocks) < blocks);
  if (fewer?.blocks === undefined) return { extrapolatedSeconds: (least(cell).own * of) / blocks };
  const each = (least(cell).seconds - least(fewer).seconds) / (blocks - fewer.blocks);
  return {
    extrapolatedSeconds: least(cell).seconds + each * (of - blocks),
    extrapolatedFrom: [fewer.blocks, blocks],
  };
}

/** One result of all cells that were run: the lesser time of the rounds, the greater memory. */
export function merged(
  cells: readonly Kept[],
  { device, threads, without }: Circumstances = { device: 'cpu', threads: 2 },
) {
  const ran = cells.filter(({ runs, failed }) => failed !== undefined || Object.keys(runs).length > 0);
  return {
    date: new Date().toISOString().slice(0, 10),
    what: `Weights quantized by lpq and its peers on one machine: 64 samples of 512 tokens (llama-8b: 128 of 2048), the same for all but llama.cpp's types, which take none; integers in symmetric groups of ${GROUP} but for llama.cpp's types; embeddings and heads as they were. Seconds are of whole processes, with imports, reading and writing: the lesser of the rounds; peak: resident bytes of the process and what it started, mapped files included; of a device the bytes in use beyond those before. The first round is in the order of the cells, the second backwards. Where 'of' stands, 'blocks' blocks were quantized, and extrapolatedSeconds are their seconds without imports times of / blocks; with extrapolatedFrom, whole processes on the line through both numbers of blocks. Perplexity: windows of ${LENGTH} tokens, the first token of each not scored; tiny ones on the first 200,000 bytes of books-valid.txt, SmolLM2 on the first 60,000 of WikiText-2's test text.`,
    command:
      device === 'cpu'
        ? 'node dist/bench/peers/run.js --work DIR --round 0; the same with --round 1, --evaluate, --json FILE'
        : 'sh bench/peers/card.sh CARRIED OUT; one round, in which what a tool compiles for a model counts, and what GPTQModel compiles once does not',
    machine: { processor: processorName(), threads, isa: addon().isa(), ...(device === 'cuda' && { gpu: gpuName() }) },
    ...(without && { without }),
    cells: ran.map((whole) => {
      const { runs, ...cell } = whole;
      const rows = Object.values(runs);
      const { seconds } = least(whole);
      return {
        ...cell,
        ...(rows.length > 0 && { seconds, peakBytes: Math.max(...rows.map((row) => row.peakBytes)) }),
        ...(rows.some((row) => row.deviceBytes !== undefined) && {
          deviceBytes: Math.max(...rows.map((row) => row.deviceBytes ?? 0)),
        }),
        ...extrapolated(whole, ran),
        rounds: runs,
      };
    }),
  };
}

/** The cells of a merged result, by name, as run.ts keeps them: so that rounds can be added to it. */
export function keptOf({ cells }: Pick<ReturnType<typeof merged>, 'cells'>): Map<string, Kept> {
  return new Map(
    cells.map(
      ({
        rounds,
        seconds: _,
        peakBytes: __,
        deviceBytes: ___,
        extrapolatedSeconds: ____,
        extrapolatedFrom: _____,
        ...cell
      }) => [cell.name, { ...cell, runs: rounds }],
    ),
  );
}

/** The first device's name. */
function gpuName(): string | undefined {
  return addon().cudaDevices()[0]?.name;
}
