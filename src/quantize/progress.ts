import type { Quality } from '../../formats/canonical/schema.js';
import type { CanonicalWriter } from '../../formats/canonical/write.js';
import type { WrittenModules } from '../../formats/canonical/written.js';
import { fromTyped, type NativeRuntime, type Tensor } from '../../native/binding.js';
import type { Block, BlockWeights, LinearRef, ModelGraph } from '../model/program.js';
import type { WeightSource } from '../model/source.js';
import type { FinishedModule } from './assembly.js';
import { type ModuleLine, type QuantizeEvents, type Resumption, timed } from './events.js';
import type { BlockKey } from './journal.js';
import { linearsOf } from './linears.js';
import { rangeOf } from './measures.js';
import type { KeptModules } from './redo.js';
import { replayedWeights } from './replay.js';
import { disposeModule, mapTensors, type QuantizedModule, tensorsOf } from './result.js';
import { lineOf, type RunLog } from './run-log.js';
import { printScheme, type QuantScheme } from './scheme.js';
import type { SourceView } from './source-view.js';
import { WriteBehind } from './write-behind.js';

/** What a computation asks of the progress before it. */
export type Finished = Pick<Progress, 'has' | 'replayed' | 'resumed'>;

/** What is done so far: writes modules and carried tensors behind the computation, and knows which blocks that finishes. */
export class Progress {
  readonly lines: ModuleLine[];
  private readonly behind = new WriteBehind();
  private readonly carrying = new WriteBehind();
  /** The block of every module that is quantized. */
  private readonly blockOf = new Map<string, BlockKey>();
  /** Blocks to quantize: how many modules, and the lines of those that are written. */
  private readonly open = new Map<BlockKey, { readonly modules: number; readonly lines: ModuleLine[] }>();

  /** Blocks of this run that are written. */
  private finished = 0;

  constructor(
    private readonly log: RunLog,
    private readonly writer: CanonicalWriter,
    private readonly events: QuantizeEvents,
    graph: ModelGraph,
    schemes: ReadonlyMap<string, QuantScheme>,
  ) {
    this.lines = [...log.kept.values()].flatMap(({ modules }) => modules.map(lineOf));
    const blocks: [BlockKey, readonly LinearRef[]][] = graph.blocks.map((block) => [block.index, linearsOf(block)]);
    for (const [key, linears] of [...blocks, ['head', [graph.head]] as const]) {
      const names = linears.map(({ name }) => name).filter((name) => schemes.has(name));
      for (const name of names) this.blockOf.set(name, key);
      if (names.length > 0 && !log.kept.has(key)) this.open.set(key, { modules: names.length, lines: [] });
    }
  }

  /** Whether there is nothing to quantize in the block: a stopped run has finished it, or no rule asks for it. */
  has(key: BlockKey): boolean {
    return !this.open.has(key);
  }

  resumption(): Resumption {
    const { kept, damaged } = this.log;
    const all = [...new Set(this.blockOf.values())].filter((key) => key !== 'head');
    return { blocks: all.filter((key) => kept.has(key)).length, of: all.length, modules: this.lines.length, damaged };
  }

  /** The weights that a finished block went on with, on a device. */
  replayed(rt: NativeRuntime, block: Block, schemes: ReadonlyMap<string, QuantScheme>): BlockWeights {
    const written = this.writer.written();
    try {
      return replayedWeights(rt, block, schemes, written);
    } finally {
      written.close();
    }
  }

  /** Queues a module; its tensors may be disposed of at once. Throws what an earlier write failed of. */
  module(module: FinishedModule): Promise<void> {
    const kept = keepTensors(module.result);
    return timed(this.events, 'write', () =>
      this.behind.add(
        kept.bytes,
        async () => {
          const line = await writeModule(this.writer, { ...module, result: kept.result });
          return () => this.written(line);
        },
        kept.dispose,
      ),
    );
  }

  /** Whether a stopped run has written a tensor that goes through unchanged, and noted it. */
  carried(name: string): boolean {
    return this.log.carried.has(name);
  }

  /** The source, of which tensors that a stopped run has carried and noted are read where they were written. */
  resumed(source: SourceView): WeightSource {
    const { carried } = this.log;
    if (carried.size === 0) return source;
    const { dir, config } = source;
    return {
      ...{ dir, config, names: () => source.names() },
      has: (name) => source.has(name),
      shape: (name) => source.shape(name),
      tensor: async (name) => {
        if (!carried.has(name)) return source.tensor(name);
        const written = this.writer.written();
        try {
          return written.carried(name);
        } finally {
          written.close();
        }
      },
    };
  }

  /** Waits until all modules are written; returns what was written of them, which the caller closes. */
  async modules(): Promise<WrittenModules> {
    await this.behind.settle();
    await this.log.settle();
    return this.writer.written();
  }

  /**
   * Writes other scales for a module that was written: the last that is done to it. A run that is stopped between two of these finds blocks
   * whose hashes are not in the journal, and computes them again.
   */
  async rescale(name: string, module: QuantizedModule): Promise<void> {
    await this.writer.rewriteScales(name, module.scales);
    const at = this.lines.findIndex((line) => line.name === name);
    const line = this.lines[at] as ModuleLine;
    this.lines[at] = { ...line, measures: { ...line.measures, ...rangeOf(module) } };
  }

  /** Writes another tensor for a norm that goes through otherwise; a run that is stopped before its end writes the source's again. */
  async replaceCarried(name: string, tensor: Tensor): Promise<void> {
    await this.carrying.settle();
    await this.writer.rewriteCarried(name, tensor);
  }

  /**
   * Queues a tensor that goes through unchanged; it is opened in its turn, so that any number may wait. With `done`, which is called when it
   * was written or has failed, it is noted too: for sources that a resumed run shall not need for it.
   */
  carry(source: SourceView, name: string, done?: () => void): Promise<void> {
    const write = async () => {
      const tensor = await source.stored(name);
      try {
        await this.writer.writeCarried(name, tensor);
      } finally {
        tensor.dispose();
      }
      if (done) this.log.carriedOver(name);
      return undefined;
    };
    return this.carrying.add(0, write, done ?? (() => {}));
  }

  /** Queues a module of an earlier checkpoint, in its turn as carried tensors are. */
  keep(kept: KeptModules, name: string): Promise<void> {
    const write = async () => {
      await kept.copy(name, this.writer);
      return undefined;
    };
    return this.carrying.add(0, write, () => {});
  }

  /** Waits until all of it is on the disk. Throws the first failure. */
  async settle(): Promise<void> {
    await this.behind.settle();
    await this.carrying.settle();
    await this.log.settle();
  }

  /** After a failure: what was computed before it counts; that of a write says nothing new. Throws nothing. */
  async stop(): Promise<void> {
    await this.behind.settle().catch(() => {});
    await this.carrying.abandon();
  }

  private written(line: ModuleLine): void {
    this.lines.push(line);
    const key = this.blockOf.get(line.name) as BlockKey;
    const block = this.open.get(key);
    block?.lines.push(line);
    this.events.onModule?.(line);
    if (!block || block.lines.length < block.modules) return;
    this.log.finished(key, block.lines);
    const of = new Set(this.blockOf.values()).size;
    this.events.onBlock?.({ block: key, modules: block.lines, done: of - this.open.size + ++this.finished, of });
  }
}

/** Views of a result's tensors, which outlive those that the quantizer disposes of. */
function keepTensors(result: QuantizedModule): { result: QuantizedModule; bytes: number; dispose(): void } {
  const kept = mapTensors(result, (tensor) => tensor.view(tensor.shape));
  const bytes = tensorsOf(kept).reduce((sum, [, { byteLength }]) => sum + byteLength, 0);
  return { result: kept, bytes, dispose: () => disposeModule(kept) };
}

async function writeModule(writer: CanonicalWriter, module: FinishedModule): Promise<ModuleLine> {
  const { linear, result, relativeError, tokens } = module;
  // No seconds in the checkpoint: the same request gives the same bytes.
  const { seconds = 0, ...measured } = result.quality;
  const quality: Quality = { ...measured, relativeError };
  await writer.writeModule(
    linear.name,
    {
      ...Object.fromEntries(tensorsOf(result)),
      ...(result.permutation && { permutation: fromTyped('i32', [linear.k], result.permutation) }),
      ...(result.globalScale !== undefined && {
        global_scale: fromTyped('f32', [1], Float32Array.of(result.globalScale)),
      }),
    },
    quality,
  );
  const measures = { ...result.measures, ...rangeOf(result) };
  return { name: linear.name, scheme: printScheme(result.scheme), ...quality, tokens, seconds, measures };
}
