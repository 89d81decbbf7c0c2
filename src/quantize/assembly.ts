import { allocate, type Tensor } from '../../native/binding.js';
import type { LinearRef } from '../model/program.js';
import type { Part } from './lanes.js';
import { disposeModule, type QuantizedModule, tensorsOf } from './result.js';
import type { ErrorSums } from './stored.js';

/** One quantized module with how well it went, on its way to the checkpoint. */
export interface FinishedModule {
  readonly linear: LinearRef;
  readonly result: QuantizedModule;
  /** tr(D H Dᵀ) / tr(W H Wᵀ); null where no statistics were taken. */
  readonly relativeError: number | null;
  readonly tokens: number | null;
}

/** Quantized rows of a module, in the CPU's memory. */
export interface FinishedPart {
  readonly part: Part;
  readonly result: QuantizedModule;
  readonly sums: ErrorSums | undefined;
  readonly tokens: number | null;
}

/** Puts the rows that several devices quantized together again, and hands on every module that is whole. */
export class Assembly {
  private readonly open = new Map<string, FinishedPart[]>();

  constructor(private readonly onModule: (module: FinishedModule) => Promise<void>) {}

  /** Takes the part's tensors over. */
  async add(part: FinishedPart): Promise<void> {
    const { linear } = part.part;
    const parts = [...(this.open.get(linear.name) ?? []), part];
    if (parts.reduce((sum, { part: { rows } }) => sum + rows, 0) < linear.n) {
      this.open.set(linear.name, parts);
      return;
    }
    this.open.delete(linear.name);
    parts.sort((a, b) => a.part.first - b.part.first);
    const result = parts.length === 1 ? part.result : joined(linear, parts);
    try {
      await this.onModule({ linear, result, relativeError: relativeError(parts), tokens: part.tokens });
    } finally {
      disposeModule(result);
    }
  }

  /** Lets go of what never became whole. */
  dispose(): void {
    for (const { result } of [...this.open.values()].flat()) disposeModule(result);
    this.open.clear();
  }
}

function relativeError(parts: readonly FinishedPart[]): number | null {
  let [error, norm] = [0, 0];
  for (const { sums } of parts) {
    if (!sums) return null;
    error += sums.error;
    norm += sums.norm;
  }
  return norm > 0 ? error / norm : 0;
}

/** One module of consecutive runs of rows; disposes of theirs. */
function joined(linear: LinearRef, parts: readonly FinishedPart[]): QuantizedModule {
  const results = parts.map(({ result }) => result);
  const { scheme, quality } = results[0] as QuantizedModule;
  const seconds = Math.max(...results.map(({ quality: { seconds = 0 } }) => seconds));
  const notes = [...new Set(results.flatMap(({ quality: { note } }) => (note === undefined ? [] : [note])))];
  const tensors = tensorsOf(results[0] as QuantizedModule).map(([name]) => {
    const parts = results.map((result) => result[name] as Tensor);
    return [name, stacked(linear.n, parts)] as const;
  });
  const module = {
    scheme,
    shape: [linear.n, linear.k] as const,
    ...(Object.fromEntries(tensors) as Pick<QuantizedModule, 'codes' | 'scales'>),
    quality: { ...quality, seconds, ...(notes.length > 0 && { note: notes.join('; ') }) },
  };
  for (const result of results) disposeModule(result);
  return module;
}

/** Matrices one under another, [n, columns] in all. */
function stacked(n: number, tensors: readonly Tensor[]): Tensor {
  const { dtype, shape } = tensors[0] as Tensor;
  const whole = allocate(dtype, [n, ...shape.slice(1)]);
  let at = 0;
  for (const tensor of tensors) {
    const bytes = tensor.bytes();
    whole.bytes(at, bytes.byteLength).set(bytes);
    at += bytes.byteLength;
  }
  return whole;
}
