import { readdirSync, rmSync } from 'node:fs';
import path from 'node:path';
import { SafetensorsFile } from '../../formats/safetensors/read.js';
import { writeSafetensors } from '../../formats/safetensors/write.js';
import type { Tensor } from '../../native/binding.js';

const FILE = /^state-(\d+)\.safetensors$/;

/** What a stopped run left of its steps on the whole model: f32 tensors by name, and the rest as JSON. */
export interface SavedState {
  readonly step: number;
  readonly note: string;
  /** The caller disposes of it. */
  tensor(name: string): Tensor;
}

/**
 * Keeps where steps on the whole model stand, beside the journal of a run (formats/directory/partial.ts), whose identity is theirs, too: a
 * file `state-STEP.safetensors`, whole and on the disk when it has its name.
 */
export class ModelState {
  constructor(private readonly root: string) {}

  /** Hands the latest state to `use`; false: there is none. */
  async load(use: (state: SavedState) => Promise<void>): Promise<boolean> {
    const step = Math.max(-1, ...this.steps());
    if (step < 0) return false;
    const file = SafetensorsFile.open(this.file(step));
    try {
      await use({ step, note: file.metadata?.note ?? '', tensor: (name) => file.tensor(name) });
    } finally {
      file.close();
    }
    return true;
  }

  /** f32 tensors in the CPU's memory. Replaces what was saved. Throws LPQ_DISK_FULL, LPQ_OUTPUT_WRITE. */
  async save(step: number, tensors: ReadonlyMap<string, Tensor>, note: string): Promise<void> {
    const old = this.steps().filter((each) => each !== step);
    rmSync(this.file(step), { force: true });
    const specs = [...tensors].map(([name, data]) => ({ name, dtype: 'F32' as const, shape: data.shape, data }));
    await writeSafetensors(this.file(step), specs, { note });
    for (const each of old) rmSync(this.file(each), { force: true });
  }

  private file(step: number): string {
    return path.join(this.root, `state-${step}.safetensors`);
  }

  private steps(): number[] {
    return readdirSync(this.root).flatMap((name) => {
      const step = FILE.exec(name)?.[1];
      return step === undefined ? [] : [Number(step)];
    });
  }
}
