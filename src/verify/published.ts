import { openSource } from '../../formats/canonical/source.js';
import { openForeign } from '../../formats/foreign/open.js';
import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { typed } from '../../native/binding.js';
import { tell } from '../core/activity.js';
import { expertSource } from '../model/fused-experts.js';
import { quantizedWeight } from './dequantize.js';
import { compare, convertExact } from './native.js';

/** One module of a checkpoint that another tool quantized, decoded. */
export interface DecodedModule {
  readonly name: string;
  readonly weights: number;
  /** Values that are NaN or infinite. */
  readonly notFinite: number;
  /** Weights in which the two readings differ, and the first of them; absent where there is one reading. */
  readonly differing?: {
    readonly count: number;
    readonly row: number;
    readonly column: number;
    /** f32 bits. */
    readonly got: number;
    readonly expected: number;
  };
}

/**
 * Decodes every module of a directory that lpq did not write: its codes and scales in canonical form, with the verifier's
 * own arithmetic. What is published in low bits is also read as quantize and eval read it, as floats, by other code, and
 * compared weight by weight; both multiply once, so they agree to the last bit. Throws what openForeign throws, LPQ_ABORTED.
 */
export async function decodeForeignDirectory(
  dir: string,
  rt: NativeRuntime,
  floats: boolean,
  onModule: (module: DecodedModule, done: number, total: number) => void = () => {},
): Promise<DecodedModule[]> {
  const { canonical } = openForeign(dir);
  const source = floats ? openSource(dir, rt) : undefined;
  // Linears of experts that share a tensor have names of their own here, as in canonical form.
  const view = source && expertSource(source);
  try {
    const names = canonical.moduleNames();
    const decoded: DecodedModule[] = [];
    for (const name of names) {
      tell(`decoding ${name}`, decoded.length, names.length);
      const weight = await quantizedWeight(rt, canonical, name, 'f32');
      const notFinite = typed<Float32Array>(weight).reduce((sum, value) => sum + (Number.isFinite(value) ? 0 : 1), 0);
      const other = view?.has(`${name}.weight`) ? await view.tensor(`${name}.weight`) : undefined;
      const differing = other && (await difference(rt, other, weight));
      decoded.push({
        name,
        weights: weight.shape.reduce((a, b) => a * b, 1),
        notFinite,
        ...(differing && { differing }),
      });
      weight.dispose();
      canonical.weights.advise(`${name}.codes`, 'dontneed');
      onModule(decoded.at(-1) as DecodedModule, decoded.length, names.length);
    }
    return decoded;
  } finally {
    canonical.close();
    source?.close();
  }
}

/** Takes `other`: f32, or bf16, whose every value is one of f32. */
async function difference(
  rt: NativeRuntime,
  other: Tensor,
  weight: Tensor,
): Promise<NonNullable<DecodedModule['differing']>> {
  const wide = other.dtype === 'f32' ? other : convertExact(rt, other, 'f32').output;
  const found = await compare(rt, wide, weight, { rows: weight.shape[0] as number, bits: 32 });
  wide.dispose();
  if (wide !== other) other.dispose();
  return found;
}
