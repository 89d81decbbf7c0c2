import { allocate, createRuntime, type NativeRuntime, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import type { Architecture } from './architecture.js';
import { knownArchitecture } from './architectures/index.js';
import { asNamed } from './named.js';
import { settingsOf } from './settings.js';
import type { ActivationForm, KvForm, MixedWeight, WeightSource } from './source.js';
import type { FusedExpertsTable } from './tables/experts.js';

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
  const slices = new Map<string, Slice>();
  const known = knownArchitecture(source.config);
  const { experts } = known ?? {};
  if (!known || !experts?.fused) return slices;
  const table = asNamed(known, source);
  const config = settingsOf(table, source.config, source.dir);
  const hidden = config.count(table.sizes?.hidden ?? ['hidden_size']);
  const inner = config.count(experts.intermediate);
  for (const name of source.names())
    for (const fused of experts.fused)
      for (const bias of [false, true]) {
        const prefix = blockPrefix(table, name, bias ? fused.bias : fused.tensor);
        if (prefix === undefined) continue;
        const down = fused.parts.includes('down');
        const form = { ...fused, bias, n: down ? hidden : inner, k: down ? inner : hidden };
        for (const [part, expert, slice] of sliced(name, source.shape(name), form, source.dir)) {
          const linear = prefix + (experts.names[part] as string).replace('{expert}', String(expert));
          slices.set(`${linear}.${bias ? 'bias' : 'weight'}`, slice);
        }
      }
  return slices;
}

/** 'model.layers.7.' of a name in a block that ends so; undefined of any other. */
function blockPrefix(table: Architecture, name: string, end: string | undefined): string | undefined {
  if (end === undefined || !name.endsWith(end)) return undefined;
  const prefix = name.slice(0, -end.length);
  const numbered = [table.names.block, table.prediction?.block ?? ''].some((block) => {
    const [before = '', after = ''] = block.split('{layer}');
    const index = prefix.slice(before.length, prefix.length - after.length);
    return prefix === before + index + after && /^\d+$/.test(index);
  });
  return numbered ? prefix : undefined;
}

type Part = 'gate' | 'up' | 'down';

interface FusedForm extends Omit<FusedExpertsTable, 'bias'> {
  readonly bias: boolean;
  /** Of one part. */
  readonly n: number;
  readonly k: number;
}

/** Where each expert's part lies. Throws LPQ_TENSOR_SHAPE for a tensor that has not the sizes of config.json. */
function* sliced(
  tensor: string,
  shape: readonly number[],
  { parts, interleaved, stored, bias, n, k }: FusedForm,
  dir: string,
): Generator<[Part, number, Slice]> {
  const turns = parts.length;
  const rows = turns * n;
  const [experts = 0, ...sizes] = shape;
  const is = (...want: number[]) => `${sizes}` === `${want}`;
  const outIn = !bias && stored !== 'in-out' && is(rows, k);
  const inOut = !bias && stored !== 'out-in' && is(k, rows);
  if (!outIn && !inOut && !(bias && is(rows)))
    throw new LpqError('LPQ_TENSOR_SHAPE', `tensor '${tensor}' of ${dir} is not a tensor of all experts`, {
      got: `[${shape.join(', ')}]`,
      expected: bias
        ? `[experts, ${rows}]`
        : [...(stored === 'out-in' ? [] : [[k, rows]]), ...(stored === 'in-out' ? [] : [[rows, k]])]
            .map((each) => `[experts, ${each.join(', ')}]`)
            .join(' or '),
      hint: 'config.json and the weights belong to different models.',
    });
  // Steps from one output feature to the next, and from one input feature to the next.
  const [out, into] = bias ? [1, 0] : outIn ? [k, 1] : [1, rows];
  for (let expert = 0; expert < experts; expert++)
    for (const [turn, part] of parts.entries()) {
      const first = expert * rows * (bias ? 1 : k) + turn * out * (interleaved ? 1 : n);
      const rowStep = interleaved ? turns * out : out;
      yield [part, expert, { tensor, shape: bias ? [n] : [n, k], first, rowStep, columnStep: into }];
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

  reads(name: string): ActivationForm | undefined {
    return this.source.reads?.(name);
  }

  mixed(name: string): Promise<MixedWeight> | undefined {
    return this.source.mixed?.(name);
  }

  get kv(): KvForm | undefined {
    return this.source.kv;
  }

  get latents(): WeightSource['latents'] {
    return this.source.latents;
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
