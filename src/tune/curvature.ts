import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { uploadTyped } from '../../native/binding.js';
import { gptqOps } from '../../native/gptq-ops.js';
import { ops } from '../../native/ops.js';

/** Second moments of what some linears read, K channels, and their inverse. */
export class Curvature {
  private readonly h: Tensor;
  private made: { readonly m: Tensor; readonly inverse: Tensor } | undefined;

  constructor(
    private readonly rt: NativeRuntime,
    private readonly k: number,
  ) {
    this.h = rt.allocate(rt.momentDtype, [k, k]);
    ops.zero(rt, this.h);
  }

  /** x f32 [T,K]. */
  add(x: Tensor): void {
    if (x.shape[0] !== 0) ops.gramAccumulate(this.rt, x, this.h);
  }

  /** `damp`: a fraction of the mean of the diagonal, added to it. */
  finish(damp: number): void {
    const { rt, h, k } = this;
    ops.gramFinish(rt, h);
    const order = uploadTyped(
      rt,
      'i32',
      [k],
      Int32Array.from({ length: k }, (_, i) => i),
    );
    const [u, m, inverse] = [rt.allocate('f32', [k, k]), rt.allocate('f32', [k, k]), rt.allocate('f32', [k, k])];
    const [dead, info] = [rt.allocate('u8', [k]), rt.allocate('f64', [3])];
    gptqOps.factor(rt, h, order, { u, m, dead, info }, damp);
    rt.enqueue('gemm', [u, u], [inverse], { transA: true });
    for (const tensor of [h, order, u, dead, info]) tensor.dispose();
    this.made = { m, inverse };
  }

  /** f32 [K,K]: the damped moments. */
  get m(): Tensor {
    return (this.made as { m: Tensor }).m;
  }

  get inverse(): Tensor {
    return (this.made as { inverse: Tensor }).inverse;
  }

  dispose(): void {
    for (const tensor of this.made ? Object.values(this.made) : [this.h]) tensor.dispose();
  }
}
