import path from 'node:path';
import type { Tensor } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import { SafetensorsFile } from '../safetensors/read.js';
import type { ShardPlan } from '../safetensors/shard-plan.js';
import { floatTensor } from './float-tensor.js';
import { moduleTensors, type Part } from './tensors.js';
import type { CanonicalPlan } from './write.js';

/** Modules of a checkpoint that is still being written, mapped; for those whose tensors are known to be whole. */
export class WrittenModules {
  private readonly shards = new Map<string, string>();
  private readonly opened = new Map<string, SafetensorsFile>();

  constructor(
    private readonly dir: string,
    shards: ShardPlan,
    private readonly plan: CanonicalPlan,
  ) {
    for (const { file, tensors } of shards.shards) for (const { name } of tensors) this.shards.set(name, file);
  }

  /** A part of a module as CanonicalCheckpoint.part gives it. The caller disposes of it. */
  part(name: string, part: Part): Tensor | undefined {
    const module = this.plan.modules.get(name);
    if (!module) throw new LpqError('LPQ_INTERNAL', `module '${name}' was not declared`);
    const spec = moduleTensors(name, module).get(part);
    if (!spec) return undefined;
    return this.file(spec.name).tensor(spec.name, part === 'scales' ? module.scales.dtype : undefined);
  }

  /** A carried tensor as a source gives it (floatTensor), mapped. The caller disposes of it. */
  carried(name: string): Tensor {
    return floatTensor(this.file(name), name);
  }

  close(): void {
    for (const file of this.opened.values()) file.close();
    this.opened.clear();
  }

  private file(tensor: string): SafetensorsFile {
    const name = this.shards.get(tensor) as string;
    const file = this.opened.get(name) ?? SafetensorsFile.open(path.join(this.dir, name));
    this.opened.set(name, file);
    return file;
  }
}
