import type { Quality } from '../../formats/canonical/schema.js';
import type { Measures } from '../../formats/report/schema.js';
import type { BlockKey } from './journal.js';

/** What a resumed run need not do again. */
export interface Resumption {
  readonly blocks: number;
  readonly of: number;
  readonly modules: number;
  /** Finished blocks whose bytes have changed since they were written, and which are done again. */
  readonly damaged: readonly BlockKey[];
}

/** A line of the run's log, one a module. */
export interface ModuleLine extends Quality {
  readonly name: string;
  /** As printScheme() writes it: 'i4 g128'. */
  readonly scheme: string;
  /** Calibration rows that reached the module; null without calibration. */
  readonly tokens: number | null;
  readonly seconds: number;
  readonly measures?: Measures;
}

/** A block whose modules are all written. */
export interface BlockLine {
  readonly block: BlockKey;
  readonly modules: readonly ModuleLine[];
  /** Blocks that are written by now, and those that there are to quantize, those of a stopped run and lm_head among them. */
  readonly done: number;
  readonly of: number;
}

export interface QuantizeEvents {
  readonly onPlan?: (plan: { modules: number; weights: number; blocks: number; left: readonly string[] }) => void;
  /** Before the first block, where a stopped run's work is taken up. */
  readonly onResume?: (resumption: Resumption) => void;
  readonly onStage?: (block: number, blocks: number, stage: string) => void;
  /** Something that the user should know, which stops nothing. */
  readonly onWarning?: (line: string, data: object) => void;
  /** Before each of so many steps on the whole model, once all modules are written. */
  readonly onModelStep?: (step: number, of: number) => void;
  readonly onModule?: (line: ModuleLine) => void;
  readonly onBlock?: (line: BlockLine) => void;
  /** A weight file of the output has all its bytes, and their hashes are known. Training the scales of a whole model reads it again. */
  readonly onFile?: (path: string) => Promise<void>;
  /** Wall time of a part that has ended: what the run waited for in reading and writing files, and each whole block. */
  readonly onSpan?: (span: Span, seconds: number) => void;
}

export type Span = 'read' | 'write' | 'block';

/** Runs a part and tells how long it took. */
export async function timed<T>(events: QuantizeEvents, span: Span, part: () => Promise<T>): Promise<T> {
  const started = performance.now();
  const result = await part();
  events.onSpan?.(span, (performance.now() - started) / 1000);
  return result;
}
