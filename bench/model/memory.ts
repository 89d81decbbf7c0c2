import type { NativeRuntime } from '../../native/binding.js';

/** What operations take of a device beside the tensors of a program. */
export class Scratch {
  /** Taken once and kept: cuBLAS's workspace, counters. */
  private kept = 0;

  constructor(private readonly rt: NativeRuntime) {}

  /**
   * The most bytes of scratch while `work` ran, with what operations have kept since this was made; 0 on the CPU, which does not count.
   * `work` is to leave as many tensors as it found.
   */
  async during(work: () => Promise<void>): Promise<number> {
    await this.rt.sync();
    this.rt.resetPeak();
    const before = this.rt.memory();
    await work();
    const after = this.rt.memory();
    if (!before || !after) return 0;
    const most = this.kept + Math.max(0, after.peakUsed - before.used);
    this.kept += Math.max(0, after.used - before.used);
    return most;
  }
}
