import type { ModuleLine } from './run.js';

export interface QuantizeEvents {
  readonly onPlan?: (plan: { modules: number; weights: number; blocks: number; left: readonly string[] }) => void;
  readonly onStage?: (block: number, blocks: number, stage: string) => void;
  readonly onModule?: (line: ModuleLine) => void;
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
