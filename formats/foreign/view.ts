import { type DType, fromTyped, type Tensor } from '../../native/binding.js';
import { moduleTensors, type Part } from '../canonical/tensors.js';
import type { Checkpoint } from '../safetensors/checkpoint.js';
import { dtypeFacts } from '../safetensors/dtypes.js';
import type { TensorEntry } from '../safetensors/header.js';
import type { ForeignModule } from './module.js';
import { Overlay } from './overlay.js';

interface VirtualTensor {
  readonly entry: TensorEntry;
  readonly module: ForeignModule;
  readonly part: Part;
}

/**
 * A foreign checkpoint as if its tensors were canonical ones: MODULE.codes, MODULE.scales, ... are decoded when they are
 * asked for, carried tensors are the file's own. Nothing is written.
 */
export class CanonicalView extends Overlay<Checkpoint, VirtualTensor> {
  constructor(file: Checkpoint, modules: readonly ForeignModule[]) {
    super(file);
    for (const module of modules) {
      for (const name of module.tensors) this.consumed.add(name);
      for (const [part, spec] of moduleTensors(module.name, module.declaration)) {
        const bytes = (spec.shape.reduce((a, b) => a * b, 1) * dtypeFacts(spec.dtype).bits) / 8;
        this.made.set(spec.name, { entry: { ...spec, begin: 0, end: bytes }, module, part });
      }
    }
  }

  tensor(name: string, as?: DType): Tensor {
    const found = this.made.get(name);
    if (!found) {
      this.spec(name);
      return this.file.tensor(name, as);
    }
    const { entry, module, part } = found;
    return fromTyped(as ?? (dtypeFacts(entry.dtype).native as DType), entry.shape, module.decode(part));
  }

  advise(name: string, advice: 'willneed' | 'dontneed'): void {
    const found = this.made.get(name);
    if (!found) this.file.advise(name, advice);
    else if (found.part === 'codes') for (const tensor of found.module.tensors) this.file.advise(tensor, advice);
  }
}
