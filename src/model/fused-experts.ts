import { allocate, createRuntime, type NativeRuntime, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import type { Architecture } from './architecture.js';
import { ARCHITECTURES } from './architectures/index.js';
import type { KvForm, MixedWeight, WeightSource } from './source.js';

/** Where one expert's matrix [N, K] or bias [N] lies in the tensor of all experts. */
export interface Slice {
  readonly tensor: string;
  /** [N, K] or [N]. */
  readonly shape: readonly number[];
  /** In elements: element (n, k) is at first + n * rowStep + k * columnStep. */
  readonly first: number;
  readonly rowStep: number;
  readonly columnStep: number;
}

/**
 * A source whose experts are linears of their own, whichever way the checkpoint holds them: the names of a tensor of all
 * experts are replaced by those of the slices, EXPERT.weight and EXPERT.bias.
 */
export interface ExpertSource extends WeightSource {
  readonly slices: ReadonlyMap<string, Slice>;
}

/** Tensors of all experts that stay open, for sources that decode them: two matrices and two biases of a block. */
const OPEN_TENSORS = 4;

const views = new WeakMap<WeightSource, WeightSource>();

/** `source`, or where its architecture fuses experts (GPT-OSS) its ExpertSource; the same one each time. Throws LPQ_TENSOR_SHAPE. */
export function expertSource(source: WeightSource): WeightSource {
  const known = views.get(source);
  if (known) return known;
  const slices = expertSlices(source);
  const view = slices.size > 0 ? new SplitExperts(source, slices) : source;
  views.set(source, view);
  return view;
}

/** The slices of a source that `expertSource` gave. */
export function slicesOf(source: WeightSource): ReadonlyMap<string, Slice> {
  return (source as Partial<ExpertSource>).slices ?? new Map();
}

/** Every linear and bias inside tensors of all experts, by its own name. */
function expertSlices(source: WeightSource): Map<string, Slice> {
  const { model_type: type, architectures } = source.config;
  const classes = Array.isArray(architectures) ? architectures : [];
  const table = ARCHITECTURES.find((each) =>
    type === undefined ? classes.includes(each.className) : each.modelType === type,
  );
  const slices = new Map<string, Slice>();
  const { fused = [] } = table?.experts ?? {};
  if (!table || fused.length === 0) return slices;
  const ends = fused.flatMap(({ tensor, bias, parts }) => [
    { end: tensor, bias: false, parts },
    { end: bias, bias: true, parts },
  ]);
  for (const name of source.names())
    for (const { end, bias, parts } of ends) {
      const prefix = blockPrefix(table, name, end);
      if (prefix === undefined) continue;
      for (const [part, slice] of sliced(name, source.shape(name), parts, bias, source.dir)) {
        const linear = (table.experts as NonNullable<Architecture['experts']>).names[part];
        const expert = prefix + linear.replace('{expert}', String(slice.expert));
        slices.set(`${expert}.${bias ? 'bias' : 'weight'}`, slice.slice);
      }
    }
  return slices;
}

/** 'model.layers.7.' of a name in a block that ends so; undefined of any other. */
function blockPrefix(table: Architecture, name: string, end: string): string | undefined {
  if (!name.endsWith(end)) return undefined;
  const prefix = name.slice(0, -end.length);
  const [before = '', after = ''] = table.names.block.split('{layer}');
  const index = prefix.slice(before.length, prefix.length - after.length);
  return prefix === before + index + after && /^\d+$/.test(index) ? prefix : undefined;
}

type Part = 'gate' | 'up' | 'down';

function* sliced(
  tensor: string,
  shape: readonly number[],
  parts: readonly Part[],
  bias: boolean,
  dir: string,
): Generator<[Part, { expert: number; slice: Slice }]> {
  const turns = parts.length;
  const columns = shape.at(-1) ?? 0;
  if (shape.length !== (bias ? 2 : 3) || columns % turns !== 0)
    throw new LpqError('LPQ_TENSOR_SHAPE', `tensor '${tensor}' of ${dir} is no tensor of all experts`, {
      got: `[${shape.join(', ')}]`,
      expected: `[experts, ${bias ? '' : 'in_features, '}${turns > 1 ? `${turns} * ` : ''}out_features]`,
      hint: 'config.json and the weights are not of one model.',
    });
  const [experts, k] = shape as [number, number];
  const n = columns / turns;
  for (let expert = 0; expert < experts; expert++)
    for (const [turn, part] of parts.entries()) {
      const first = expert * (bias ? columns : k * columns) + turn;
      const size = bias ? [n] : [n, k];
      yield [part, { expert, slice: { tensor, shape: size, first, rowStep: turns, columnStep: bias ? 0 : columns } }];
    }
}

class SplitExperts implements ExpertSource {
  private runtime: NativeRuntime | undefined;
  private readonly open = new Map<string, Promise<Tensor>>();
  private readonly whole: ReadonlySet<string>;

  constructor(
    private readonly source: WeightSource,
    readonly slices: ReadonlyMap<string, Slice>,
  ) {
    this.whole = new Set([...slices.values()].map(({ tensor }) => tensor));
  }

  get dir(): string {
    return this.source.dir;
  }

  get config(): Record<string, unknown> {
    return this.source.config;
  }

  *names(): Iterable<string> {
    for (const name of this.source.names()) if (!this.whole.has(name)) yield name;
    yield* this.slices.keys();
  }

  has(name: string): boolean {
    return this.slices.has(name) || (!this.whole.has(name) && this.source.has(name));
  }

  shape(name: string): readonly number[] {
    return this.slices.get(name)?.shape ?? this.source.shape(name);
  }

  quantized(name: string): boolean {
    return this.source.quantized?.(name) ?? false;
  }

  packed(name: string): ReturnType<NonNullable<WeightSource['packed']>> {
    return this.source.packed?.(name);
  }

  mixed(name: string): Promise<MixedWeight> | undefined {
    return this.source.mixed?.(name);
  }

  get kv(): KvForm | undefined {
    return this.source.kv;
  }

  /** A slice is copied, and turned over where the checkpoint holds it transposed; its dtype stays. */
  async tensor(name: string): Promise<Tensor> {
    const slice = this.slices.get(name);
    if (!slice) return this.source.tensor(name);
    const whole = await this.fetch(slice.tensor);
    const { first, rowStep, columnStep, shape } = slice;
    const part = allocate(whole.dtype, shape);
    const matrix = part.view([shape[0] as number, shape[1] ?? 1]);
    this.runtime ??= createRuntime();
    ops.stridedMatrix(this.runtime, whole, matrix, { first, rowStep, columnStep });
    matrix.dispose();
    await this.runtime.sync();
    return part;
  }

  private fetch(name: string): Promise<Tensor> {
    const known = this.open.get(name);
    this.open.delete(name);
    const tensor = known ?? this.source.tensor(name);
    this.open.set(name, tensor); // the one asked for last comes last
    for (const [oldest, held] of this.open) {
      if (this.open.size <= OPEN_TENSORS) break;
      this.open.delete(oldest);
      // After whoever waits for it too has enqueued its work, which keeps what it reads.
      held.then(
        (old) => old.dispose(),
        () => {},
      );
    }
    tensor.catch(() => this.open.delete(name));
    return tensor;
  }
}
