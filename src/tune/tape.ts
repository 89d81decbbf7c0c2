import type { NativeRuntime, Tensor } from '../../native/binding.js';
import type { Rotation } from '../../native/cache-ops.js';
import { type ActivationName, type AttentionParams, ops } from '../../native/ops.js';
import type { LinearPlan, NormPlan } from '../model/plan.js';
import type { Batch, BlockWeights } from '../model/program.js';
import { applyLinear, applyNorm, weightOf } from '../model/weights.js';

/** An activation f32 [T,C] of a block, and the gradient of the loss with respect to it once backward() has come by. */
export interface Value {
  tensor: Tensor;
  grad?: Tensor;
  /** Whether a weight that is trained stands before it. */
  readonly wanted: boolean;
}

/**
 * A block's operations as they run, each with its vector-Jacobian product (native/ops/backward.h), which backward() runs in the
 * opposite order. Nothing that a product needs is overwritten meanwhile but by operations that need it no more. CPU only.
 */
export class Tape {
  private readonly products: (() => void)[] = [];
  private readonly owned: Tensor[] = [];

  /** `gradients`: dW f32 [N,K] of the linears that are trained, by NAME, which backward() adds to. */
  constructor(
    readonly rt: NativeRuntime,
    readonly weights: BlockWeights,
    private readonly gradients: ReadonlyMap<string, Tensor>,
  ) {}

  /** What the block is given. The tensor stays the caller's. */
  input(tensor: Tensor): Value {
    return { tensor, wanted: false };
  }

  linear(x: Value, plan: LinearPlan): Value {
    const { rt } = this;
    const gradient = this.gradients.get(plan.name);
    const y = this.made(applyLinear(rt, this.weights, plan, x.tensor), x.wanted || gradient !== undefined);
    return this.record(y, (dy) => {
      if (gradient) ops.linearWeightGradient(rt, x.tensor, dy, gradient, { accumulate: true });
      if (!x.wanted) return;
      const { dx, accumulate } = this.into(x);
      ops.linearInputGradient(rt, dy, weightOf(this.weights, `${plan.name}.weight`), dx, { accumulate });
    });
  }

  /** An RMS norm of rows of plan.size, of which x has one or several a token. */
  norm(x: Value, plan: NormPlan): Value {
    const { rt } = this;
    const rows = (tensor: Tensor) =>
      this.keep(tensor.view([tensor.shape.reduce((a, b) => a * b) / plan.size, plan.size]));
    const from = rows(x.tensor);
    const y = this.made(this.keep(applyNorm(rt, this.weights, plan, from)).view(x.tensor.shape), x.wanted);
    return this.record(y, (dy) => {
      const { dx, accumulate } = this.into(x);
      const weight = plan.weight === undefined ? undefined : weightOf(this.weights, plan.weight);
      const { epsilon: eps, offset } = plan;
      ops.rmsnormBackward(rt, from, rows(dy), weight, rows(dx), { eps, offset, accumulate });
    });
  }

  /** Turns x where it lies. */
  rope(x: Value, heads: number, headDim: number, { cos, sin, positions, rotary, style }: Rotation): Value {
    const p = { heads, headDim, rotary, style };
    ops.rope(this.rt, x.tensor, cos, sin, positions, p);
    const y: Value = { tensor: x.tensor, wanted: x.wanted };
    return this.record(y, (dy) => {
      ops.ropeBackward(this.rt, dy, cos, sin, positions, p);
      x.grad = dy;
    });
  }

  attention(q: Value, k: Value, v: Value, { starts }: Batch, p: AttentionParams, sinks: Tensor | undefined): Value {
    const { rt } = this;
    const values = [q, k, v];
    const y = rt.allocate('f32', [q.tensor.shape[0] as number, p.heads * (p.valueDim ?? p.headDim)]);
    ops.attention(rt, q.tensor, k.tensor, v.tensor, starts, y, p, sinks);
    return this.record(
      this.made(
        y,
        values.some(({ wanted }) => wanted),
      ),
      (dy) => {
        const [dq, dk, dv] = values.map(({ tensor }) => this.keep(rt.allocate('f32', tensor.shape))) as [
          Tensor,
          Tensor,
          Tensor,
        ];
        const of = { q: q.tensor, k: k.tensor, v: v.tensor, starts, dy, ...(sinks && { sinks }) };
        ops.attentionBackward(rt, of, { dq, dk, dv }, p);
        for (const [i, grad] of [dq, dk, dv].entries()) (values[i] as Value).grad = grad;
      },
    );
  }

  gated(gate: Value, up: Value, act: ActivationName): Value {
    const { rt } = this;
    const y = rt.allocate('f32', gate.tensor.shape);
    ops.gatedActivation(rt, gate.tensor, up.tensor, y, { act });
    return this.record(this.made(y, gate.wanted || up.wanted), (dy) => {
      const [dgate, dup] = [this.keep(rt.allocate('f32', y.shape)), dy];
      ops.gatedActivationBackward(rt, { gate: gate.tensor, up: up.tensor, dy }, { dgate, dup }, { act });
      gate.grad = dgate;
      up.grad = dup;
    });
  }

  activation(x: Value, act: ActivationName): Value {
    const y = this.rt.allocate('f32', x.tensor.shape);
    ops.activation(this.rt, x.tensor, y, { act });
    return this.record(this.made(y, x.wanted), (dy) => {
      ops.activationBackward(this.rt, x.tensor, dy, dy, { act });
      x.grad = dy;
    });
  }

  /** Columns first .. first + width - 1 of x; all of x's are to be taken so, each once. */
  columns(x: Value, first: number, width: number): Value {
    const { rt } = this;
    const y = rt.allocate('f32', [x.tensor.shape[0] as number, width]);
    ops.sliceColumns(rt, x.tensor, y, { first });
    return this.record(this.made(y, x.wanted), (dy) => {
      x.grad ??= this.keep(rt.allocate('f32', x.tensor.shape));
      ops.placeColumns(rt, dy, x.grad, { first });
    });
  }

  /** x * factor, where it lies. */
  scaled(x: Value, factor: number): Value {
    if (factor === 1) return x;
    ops.scaleRows(this.rt, x.tensor, undefined, x.tensor, { factor });
    return this.record({ tensor: x.tensor, wanted: x.wanted }, (dy) => {
      ops.scaleRows(this.rt, dy, undefined, dy, { factor });
      x.grad = dy;
    });
  }

  /** h + branch. What came before h must be done with by whatever stands between it and the branch, which shares its gradient. */
  add(h: Value, branch: Value): Value {
    const y = this.rt.allocate('f32', h.tensor.shape);
    ops.add(this.rt, h.tensor, branch.tensor, y);
    return this.record(this.made(y, h.wanted || branch.wanted), (dy) => {
      branch.grad = dy;
      if (!h.wanted) return;
      h.grad = this.keep(this.rt.allocate('f32', dy.shape));
      ops.cast(this.rt, dy, h.grad);
    });
  }

  /** From the gradient with respect to `y`, which may be overwritten, back to the weights. */
  backward(y: Value, dy: Tensor): void {
    y.grad = dy;
    for (const product of this.products.toReversed()) product();
  }

  dispose(): void {
    for (const tensor of this.owned) tensor.dispose();
  }

  /** y as an operation makes it; `product` runs on the way back, where y is wanted and read by something, on its gradient. */
  record(y: Value, product: (dy: Tensor) => void): Value {
    if (y.wanted) this.products.push(() => y.grad && product(y.grad));
    return y;
  }

  /** A value of a tensor that becomes the tape's. */
  made(tensor: Tensor, wanted: boolean): Value {
    return { tensor: this.keep(tensor), wanted };
  }

  /** A tensor that goes with the tape. */
  keep(tensor: Tensor): Tensor {
    this.owned.push(tensor);
    return tensor;
  }

  /** Where a product puts the gradient of x. */
  into(x: Value): { dx: Tensor; accumulate: boolean } {
    const accumulate = x.grad !== undefined;
    x.grad ??= this.keep(this.rt.allocate('f32', x.tensor.shape));
    return { dx: x.grad, accumulate };
  }
}
