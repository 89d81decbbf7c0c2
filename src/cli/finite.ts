import { setImmediate } from 'node:timers/promises';
import { Checkpoint } from '../../formats/safetensors/checkpoint.js';
import { type Tensor, typed } from '../../native/binding.js';
import type { Run } from './run.js';

export interface NotFinite {
  readonly name: string;
  readonly nan: number;
  readonly infinite: number;
}

/** Elements looked at between two looks at the clock. */
const CHUNK = 2 ** 24;

/** The F16, BF16 and F32 tensors of a checkpoint that hold NaN or infinity, with how many. */
export async function notFiniteTensors(dir: string, run: Run): Promise<NotFinite[]> {
  const weights = Checkpoint.open(dir);
  const found: NotFinite[] = [];
  try {
    const names = [...weights.names()].filter((name) => /^(F16|BF16|F32)$/.test(weights.dtype(name)));
    const task = run.report.task('check', names.length, false);
    for (const [i, name] of names.entries()) {
      const tensor = weights.tensor(name);
      const { nan, infinite } = await countNotFinite(tensor, () => run.interrupt.check());
      tensor.dispose();
      weights.advise(name, 'dontneed');
      if (nan + infinite > 0) found.push({ name, nan, infinite });
      task.update(i + 1, name);
    }
    task.end();
  } finally {
    weights.close();
  }
  return found;
}

/** A float is not finite where every exponent bit is set: infinity with an empty fraction, NaN otherwise. */
async function countNotFinite(tensor: Tensor, check: () => void): Promise<{ nan: number; infinite: number }> {
  const [exponent, fraction] =
    tensor.dtype === 'f16' ? [0x7c00, 0x03ff] : tensor.dtype === 'bf16' ? [0x7f80, 0x007f] : [0x7f800000, 0x007fffff];
  const total = tensor.shape.reduce((a, b) => a * b, 1);
  let [nan, infinite] = [0, 0];
  for (let first = 0; first < total; first += CHUNK) {
    check();
    const part = tensor.view([Math.min(CHUNK, total - first)], first);
    const raw = typed<Uint16Array | Float32Array>(part);
    const bits = raw instanceof Float32Array ? new Uint32Array(raw.buffer, raw.byteOffset, raw.length) : raw;
    for (let i = 0; i < bits.length; i++) {
      if (((bits[i] as number) & exponent) !== exponent) continue;
      if (((bits[i] as number) & fraction) === 0) infinite++;
      else nan++;
    }
    part.dispose();
    await setImmediate();
  }
  return { nan, infinite };
}
