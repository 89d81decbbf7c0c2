import type { NativeRuntime, OpParams, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';

/** What bytes() hands out at once, with room to spare. */
const CHUNK = 2 ** 30;

/** A CUDA device that lays out codes: they go there, are packed, and come back. */
export class LayoutDevice {
  private readonly pending: Promise<void>[] = [];

  constructor(readonly runtime: NativeRuntime) {}

  /** Enqueues layout_pack of tensors in the CPU's memory. `matrix` must hold its values, `packed` does after finish(). */
  pack(matrix: Tensor, packed: Tensor, params: OpParams, order?: Tensor): void {
    const { runtime } = this;
    const inputs = [matrix, ...(order ? [order] : [])].map((tensor) => runtime.upload(tensor));
    const output = runtime.allocate(packed.dtype, packed.shape);
    ops.layoutPack(runtime, inputs[0]!, output, params, inputs[1]);
    const arrived = runtime.download(output).then((host) => {
      for (let at = 0; at < packed.byteLength; at += CHUNK) {
        const length = Math.min(CHUNK, packed.byteLength - at);
        packed.bytes(at, length).set(host.bytes(at, length));
      }
      host.dispose();
    });
    arrived.catch(() => {}); // finish() tells of it
    this.pending.push(arrived);
    for (const tensor of [...inputs, output]) tensor.dispose();
  }

  /** Settles when everything has come back. Rejects with the first failure. */
  async finish(): Promise<void> {
    const outcomes = await Promise.allSettled(this.pending.splice(0));
    for (const outcome of outcomes) if (outcome.status === 'rejected') throw outcome.reason;
  }
}
