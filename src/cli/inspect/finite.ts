import { ggufFiles } from '../../../formats/gguf/source/directory.js';
import { GgufTensors } from '../../../formats/gguf/source/tensors.js';
import { Checkpoint } from '../../../formats/safetensors/checkpoint.js';
import { describeNotFinite, findNotFiniteStored } from '../../../formats/safetensors/finite.js';
import type { Run } from '../run.js';

export interface NotFiniteTensor {
  readonly name: string;
  readonly nan: number;
  readonly infinite: number;
  /** How many of each, and where the first is. */
  readonly text: string;
}

/** The tensors of a checkpoint that hold NaN or infinity, of every float dtype. */
export async function notFiniteTensors(dir: string, run: Run): Promise<NotFiniteTensor[]> {
  const gguf = ggufFiles(dir);
  const weights = gguf ? GgufTensors.open(gguf) : Checkpoint.open(dir);
  const found: NotFiniteTensor[] = [];
  try {
    const names = [...weights.names()];
    const task = run.report.task('check', names.length, false);
    for (const [i, name] of names.entries()) {
      run.interrupt.check();
      task.update(i, name);
      const tensor = weights.tensor(name);
      const wrong = await findNotFiniteStored(tensor, weights.dtype(name));
      tensor.dispose();
      weights.advise(name, 'dontneed');
      if (wrong) {
        const { nan, infinite } = wrong;
        found.push({ name, nan, infinite, text: describeNotFinite(wrong, weights.shape(name)) });
      }
    }
    task.end();
  } finally {
    weights.close();
  }
  return found;
}
