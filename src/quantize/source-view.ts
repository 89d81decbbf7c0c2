import type { SourceCheckpoint } from '../../formats/canonical/source.js';
import type { TensorSpec } from '../../formats/safetensors/header.js';
import { whenHere } from '../../formats/safetensors/stream.js';
import type { Tensor } from '../../native/binding.js';
import type { TensorRewrite } from '../model/folded.js';
import { expertSource, type Slice, slicesOf } from '../model/fused-experts.js';
import type { WeightSource } from '../model/source.js';

/**
 * The source of a quantization, with experts that share one tensor as linears of their own: so they are quantized, and
 * what is not quantized of such a tensor is carried under the same names.
 */
export class SourceView implements WeightSource {
  private readonly view: WeightSource;
  private readonly slices: ReadonlyMap<string, Slice>;
  /** Of the files behind it. */
  readonly weights: {
    fingerprint(): string;
    advise(name: string, advice: 'willneed' | 'dontneed'): void;
  };

  /** `rewrite`: what every tensor passes on its way out. Throws LPQ_TENSOR_SHAPE for a tensor of experts that is none. */
  constructor(
    private readonly source: SourceCheckpoint,
    private readonly rewrite?: TensorRewrite,
  ) {
    this.view = expertSource(source);
    this.slices = slicesOf(this.view);
    this.weights = {
      fingerprint: () => source.weights.fingerprint(),
      // Neighbours of a slice in the same pages are wanted next.
      advise: (name, advice) => {
        if (!this.slices.has(name)) source.weights.advise(name, advice);
      },
    };
  }

  get dir(): string {
    return this.source.dir;
  }

  get config(): Record<string, unknown> {
    return this.source.config;
  }

  get part(): readonly number[] | undefined {
    return this.source.part;
  }

  names(): Iterable<string> {
    return this.view.names();
  }

  has(name: string): boolean {
    return this.view.has(name);
  }

  shape(name: string): readonly number[] {
    return this.view.shape(name);
  }

  async tensor(name: string): Promise<Tensor> {
    return this.rewritten(name, await this.view.tensor(name));
  }

  /** What `stored` gives. */
  spec(name: string): TensorSpec {
    const slice = this.slices.get(name);
    if (!slice) return this.source.weights.spec(name);
    const { dtype } = this.source.weights.spec(slice.tensor);
    return { name, dtype: dtype === 'F64' ? 'F32' : dtype, shape: slice.shape };
  }

  /** The tensor's bytes as they are, of any dtype. */
  async stored(name: string): Promise<Tensor> {
    const { weights } = this.source;
    const tensor = this.slices.has(name)
      ? await this.view.tensor(name)
      : ((await weights.load?.(name)) ?? (await whenHere(() => weights.tensor(name))));
    return this.rewritten(name, tensor);
  }

  private rewritten(name: string, tensor: Tensor): Tensor {
    if (!this.rewrite) return tensor;
    const made = this.rewrite(name, tensor);
    if (made !== tensor) tensor.dispose();
    return made;
  }

  close(): void {
    this.source.close();
  }
}
