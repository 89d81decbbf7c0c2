import type { Quality } from '../../formats/canonical/schema.js';
import type { SourceCheckpoint } from '../../formats/canonical/source.js';
import type { CanonicalWriter } from '../../formats/canonical/write.js';
import { fromTyped, type NativeRuntime, type Tensor } from '../../native/binding.js';
import type { Block, BlockWeights, ModelGraph } from '../model/program.js';
import type { FinishedModule } from './blocks.js';
import { type ModuleLine, type QuantizeEvents, type Resumption, timed } from './events.js';
import type { BlockKey } from './journal.js';
import { replayedWeights } from './replay.js';
import { disposeModule, type QuantizedModule } from './result.js';
import { lineOf, type RunLog } from './run-log.js';
import { printScheme, type QuantScheme } from './scheme.js';
import { WriteBehind } from './write-behind.js';

/** What is done so far: writes modules and carried tensors behind the computation, and marks blocks as finished. */
export class Progress {
  readonly lines: ModuleLine[];
  private readonly behind = new WriteBehind();
  private readonly carrying = new WriteBehind();
  /** Of the block that is being written. */
  private fresh: ModuleLine[] = [];
  private marking: Promise<void> = Promise.resolve();
  private failure: { readonly cause: unknown } | undefined;

  constructor(
    private readonly log: RunLog,
    private readonly writer: CanonicalWriter,
    private readonly events: QuantizeEvents,
  ) {
    this.lines = [...log.kept.values()].flatMap(({ modules }) => modules.map(lineOf));
  }

  /** Whether a stopped run has finished the block. */
  has(key: BlockKey): boolean {
    return this.log.kept.has(key);
  }

  resumption(graph: ModelGraph): Resumption {
    const { kept, damaged } = this.log;
    const blocks = graph.blocks.filter(({ index }) => kept.has(index)).length;
    return { blocks, of: graph.blocks.length, modules: this.lines.length, damaged };
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
          return () => {
            this.lines.push(line);
            this.fresh.push(line);
            this.events.onModule?.(line);
          };
        },
        kept.dispose,
      ),
    );
  }

  /** All modules of a block were given to module(). Throws what marking an earlier one failed of. */
  async finished(key: BlockKey): Promise<void> {
    if (this.failure) throw this.failure.cause;
    const mark = () => {
      const lines = this.fresh.splice(0);
      this.marking = this.marking
        .then(() => this.log.finished(key, lines))
        .catch((cause) => {
          this.failure ??= { cause };
        });
    };
    await this.behind.add(
      0,
      async () => mark,
      () => {},
    );
  }

  /** Queues a tensor that goes through unchanged; it is opened in its turn, so that any number may wait. */
  carry(source: SourceCheckpoint, name: string): Promise<void> {
    const write = async () => {
      const tensor = source.weights.tensor(name);
      try {
        await this.writer.writeCarried(name, tensor);
      } finally {
        tensor.dispose();
      }
      return undefined;
    };
    return this.carrying.add(0, write, () => {});
  }

  /** Waits until all of it is on the disk. Throws the first failure. */
  async settle(): Promise<void> {
    await this.behind.settle();
    await this.carrying.settle();
    await this.marking;
    if (this.failure) throw this.failure.cause;
    await this.log.settle();
  }

  /** After a failure: what was computed before it counts; that of a write says nothing new. Throws nothing. */
  async stop(): Promise<void> {
    await this.behind.settle().catch(() => {});
    await this.carrying.abandon();
    await this.marking;
  }
}

/** Views of a result's tensors, which outlive those that the quantizer disposes of. */
function keepTensors(result: QuantizedModule): { result: QuantizedModule; bytes: number; dispose(): void } {
  const view = (tensor: Tensor) => tensor.view(tensor.shape);
  const kept = {
    ...result,
    codes: view(result.codes),
    scales: view(result.scales),
    ...(result.zeros && { zeros: view(result.zeros) }),
  };
  const bytes = kept.codes.byteLength + kept.scales.byteLength + (kept.zeros?.byteLength ?? 0);
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
      codes: result.codes,
      scales: result.scales,
      ...(result.zeros && { zeros: result.zeros }),
      ...(result.globalScale !== undefined && {
        global_scale: fromTyped('f32', [1], Float32Array.of(result.globalScale)),
      }),
    },
    quality,
  );
  return { name: linear.name, scheme: printScheme(result.scheme), ...quality, tokens, seconds };
}
