import { type KvModelScheme, kvModelWidths } from '../../formats/kv/scheme.js';
import type { NativeRuntime, Tensor } from '../../native/binding.js';
import type { AttentionParams } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import type { AttentionTensors } from '../model/program.js';
import type { CacheShape, KeyValueCache } from './cache.js';
import type { Step } from './step.js';

type Attended<Layer> = [layer: Layer, step: Step, t: AttentionTensors, p: AttentionParams, sinks: Tensor | undefined];

/** What caches of few bits share wherever they lie: whole prompts are packed as they end, later tokens come one by one. */
export abstract class PackedCache<Layer> implements KeyValueCache {
  readonly pieces = false;
  readonly room = 0;
  protected readonly layers: (Layer | undefined)[];

  constructor(
    protected readonly rt: NativeRuntime,
    protected readonly scheme: KvModelScheme,
    protected readonly shape: CacheShape,
  ) {
    this.layers = Array.from({ length: shape.blocks });
  }

  get form(): string {
    return `${kvModelWidths(this.scheme)} (${this.scheme.form})`;
  }

  get bytes(): number {
    return this.tensors().reduce((sum, tensor) => sum + tensor.byteLength, 0);
  }

  tensors(): readonly Tensor[] {
    return this.layers.flatMap((layer) => (layer ? this.tensorsOf(layer) : []));
  }

  begin(): void {}

  attend(block: number, step: Step, t: AttentionTensors, p: AttentionParams, sinks: Tensor | undefined): void {
    if (t.reads !== undefined)
      throw new LpqError(
        'LPQ_USAGE',
        `block ${block} reads the keys of block ${t.reads}, which a packed cache does not share`,
        {
          hint: 'Use --kv 16.',
        },
      );
    if (t.selected)
      throw new LpqError(
        'LPQ_USAGE',
        `an indexer chooses the keys of block ${block}, which a packed cache does not do`,
        {
          hint: 'Use --kv 16.',
        },
      );
    this.layers[block] ??= this.layer(block, p);
    const layer = this.layers[block];
    const newer = step.entries.filter(({ past }) => past > 0).length;
    if (newer === 0) this.prefill(layer, step, t, p, sinks);
    else if (newer === step.tokens) this.decode(layer, step, t, p, sinks);
    else throw new LpqError('LPQ_INTERNAL', 'prompts come in separate steps, and later tokens one for each sequence');
  }

  dispose(): void {
    for (const tensor of this.tensors()) tensor.dispose();
    this.layers.fill(undefined);
  }

  protected abstract tensorsOf(layer: Layer): readonly Tensor[];
  /** Memory for a block. Throws LPQ_USAGE for attention that such a cache is not read by. */
  protected abstract layer(block: number, p: AttentionParams): Layer;
  /** Whole prompts. */
  protected abstract prefill(...of: Attended<Layer>): void;
  /** One token of each sequence. */
  protected abstract decode(...of: Attended<Layer>): void;
}
