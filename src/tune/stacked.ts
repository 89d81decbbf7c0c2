import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { below } from '../model/kernels/join.js';
import type { QuantizedModule } from '../quantize/result.js';
import type { Curvature } from './curvature.js';

/** A linear to train: its unquantized weight [N,K], and what training begins with. */
export interface Trained {
  readonly name: string;
  readonly source: Tensor;
  readonly module: QuantizedModule;
  readonly curvature: Curvature;
}

/** Rows first .. first + count of a stack are a linear's. */
export interface Rows {
  readonly name: string;
  readonly module: QuantizedModule;
  readonly first: number;
  readonly count: number;
}

/** Linears one below another, which are trained as one: every operation of a target works row by row. */
export interface Stack {
  readonly source: Tensor;
  readonly module: QuantizedModule;
  readonly curvature: Curvature;
  readonly rows: readonly Rows[];
  /** Lets go of what was made for the stack. */
  dispose(): void;
}

const apart = ({ scheme, globalScale, zeros, shape }: QuantizedModule): boolean =>
  scheme.twoLevel === true || globalScale !== undefined || (zeros !== undefined && zeros.shape[0] !== shape[0]);

/** Linears that read one input and have one scheme, together; those with a level of scales of their own alone. */
export function stacksOf(rt: NativeRuntime, linears: readonly Trained[]): Stack[] {
  const parts: Trained[][] = [];
  for (const each of linears) {
    const alike = ([first]: readonly Trained[]): boolean =>
      first !== undefined &&
      first.curvature === each.curvature &&
      first.source.dtype === each.source.dtype &&
      JSON.stringify(first.module.scheme) === JSON.stringify(each.module.scheme) &&
      !apart(first.module) &&
      !apart(each.module);
    const found = parts.find(alike);
    if (found) found.push(each);
    else parts.push([each]);
  }
  return parts.map((part) => stackOf(rt, part));
}

function stackOf(rt: NativeRuntime, part: readonly Trained[]): Stack {
  const [only] = part as [Trained];
  let first = 0;
  const rows = part.map(({ name, module }) => {
    const count = module.shape[0];
    first += count;
    return { name, module, first: first - count, count };
  });
  const { curvature } = only;
  if (part.length === 1) return { source: only.source, module: only.module, curvature, rows, dispose() {} };
  const of = (tensors: readonly Tensor[]) => below(rt, tensors);
  const modules = part.map(({ module }) => module);
  const source = of(part.map((each) => each.source));
  const zeros = modules.flatMap((module) => (module.zeros ? [module.zeros] : []));
  const module: QuantizedModule = {
    ...only.module,
    shape: [first, only.module.shape[1]],
    codes: of(modules.map(({ codes }) => codes)),
    scales: of(modules.map(({ scales }) => scales)),
    ...(zeros.length > 0 && { zeros: of(zeros) }),
  };
  const dispose = (): void => {
    for (const tensor of [source, module.codes, module.scales, module.zeros]) tensor?.dispose();
  };
  return { source, module, curvature, rows, dispose };
}

/** A linear's rows of a tensor of the stack. */
export function rowsOf(tensor: Tensor, { first, count }: Rows): Tensor {
  const [, ...rest] = tensor.shape;
  const width = rest.reduce((product, size) => product * size, 1);
  return tensor.view([count, ...rest], first * width);
}
