import { type NativeRuntime, type Tensor, uploadTyped } from '../../native/binding.js';
import type { Rotation } from '../../native/cache-ops.js';
import { multiplied } from '../../native/multiplied.js';
import { type ActivationName, type AttentionParams, ops } from '../../native/ops.js';
import { asRead } from '../model/activations.js';
import { attendSelected, type Selection } from '../model/indexer.js';
import { xieluTensors } from '../model/mlp.js';
import type { LinearPlan, NormPlan } from '../model/plan.js';
import type { GatePlan } from '../model/plan-experts.js';
import type { XieluPlan } from '../model/plan-mlp.js';
import type { Batch, BlockWeights } from '../model/program.js';
import { applyDense, applyNorm, splitNames, weightOf } from '../model/weights.js';

/** An activation f32 [T,C] of a block, and the gradient of the loss with respect to it once backward() has come by. */
export interface Value {
  tensor: Tensor;
  grad?: Tensor;
  /** Whether a weight that is trained stands before it. */
  readonly wanted: boolean;
}

/**
 * Where the gradient of a linear's weight goes: added to dW f32 [N,K], or made by the caller of the linear's input and that of its output.
 * Or nowhere: the caller only wants what the linear reads.
 */
export type WeightGradient = Tensor | ((x: Tensor, dy: Tensor) => void) | Reader;

export interface Reader {
  reads(x: Tensor): void;
}

/** The action of a gate on the values that it multiplies. */
export type GatedPlan = Exclude<GatePlan, { readonly kind: 'plain' }>;

/**
 * A block's operations as they run, each with its vector-Jacobian product (native/ops/backward.h), which backward() runs in the
 * opposite order. Nothing that a product needs is overwritten meanwhile but by operations that need it no more. `rt` computes in f32 (runtime.ts).
 */
export class Tape {
  private readonly products: (() => void)[] = [];
  private readonly owned: Tensor[] = [];
  /** Keys and values that later blocks read, and those read of earlier ones, as states carry them (src/model/kept-keys.ts). */
  readonly shared = new Map<string, Value>();
  readonly read = new Map<string, Value>();

  /** `gradients`: of the linears that are trained, by NAME. `through`: gradients go on to what the block is given. */
  constructor(
    readonly rt: NativeRuntime,
    readonly weights: BlockWeights,
    private readonly gradients: ReadonlyMap<string, WeightGradient>,
    private readonly through = false,
  ) {}

  /** What the block is given. The tensor stays the caller's. */
  input(tensor: Tensor): Value {
    return { tensor, wanted: this.through };
  }

  /** What nothing is trained through. */
  constant(tensor: Tensor): Value {
    return { tensor, wanted: false };
  }

  linear(x: Value, plan: LinearPlan): Value {
    const { rt } = this;
    const sink = this.gradients.get(plan.name);
    const gradient = sink && 'reads' in sink ? undefined : sink;
    const form = this.weights.activations?.get(plan.name);
    const read = form ? this.keep(asRead(rt, x.tensor, form)) : x.tensor;
    if (sink && 'reads' in sink) sink.reads(read);
    const y = this.made(applyDense(rt, this.weights, plan, read), x.wanted || gradient !== undefined);
    return this.record(y, (dy) => {
      if (typeof gradient === 'function') gradient(read, dy);
      else if (gradient) ops.linearWeightGradient(rt, read, dy, gradient, { accumulate: true });
      if (!x.wanted) return;
      const weight = weightOf(this.weights, `${plan.name}.weight`);
      // Through rounding, gradients go as if it were none.
      if (form?.order) this.give(x, this.ungathered(dy, weight, form.order));
      else {
        const { dx, accumulate } = this.into(x);
        ops.linearInputGradient(rt, dy, weight, dx, { accumulate });
      }
    });
  }

  /** The gradient with respect to x of a linear that reads column order[j] of it as its column j. */
  private ungathered(dy: Tensor, weight: Tensor, order: Int32Array): Tensor {
    const { rt } = this;
    const shape = [dy.shape[0] as number, order.length];
    const [read, dx] = [rt.allocate('f32', shape), this.keep(rt.allocate('f32', shape))];
    const inverse = new Int32Array(order.length);
    for (const [column, channel] of order.entries()) inverse[channel] = column;
    const places = uploadTyped(rt, 'i32', [order.length], inverse);
    ops.linearInputGradient(rt, dy, weight, read, { accumulate: false });
    ops.gatherColumns(rt, read, places, dx);
    for (const tensor of [read, places]) tensor.dispose();
    return dx;
  }

  /**
   * A norm of rows of plan.size; x has one or several rows per token. `gain` replaces its weight. A gradient under the weight's full name is
   * given what the norm makes without weight and bias, and the gradient with respect to what it makes.
   */
  norm(x: Value, plan: NormPlan, gain?: Tensor): Value {
    const { rt } = this;
    const rows = (tensor: Tensor) =>
      this.keep(tensor.view([tensor.shape.reduce((a, b) => a * b) / plan.size, plan.size]));
    const from = rows(x.tensor);
    const { epsilon: eps, offset, turns } = plan;
    const apart = gain ?? (plan.split && this.gainsOf(plan));
    const normed = apart ? rt.allocate('f32', from.shape) : applyNorm(rt, this.weights, plan, from);
    if (apart && plan.kind === 'layer') ops.layernorm(rt, from, apart, undefined, normed, { eps, offset, turns });
    else if (apart) ops.rmsnorm(rt, from, apart, normed, { eps, offset });
    const sink = apart || plan.turns > 1 ? undefined : this.gradients.get(plan.weight ?? '');
    const gradient = typeof sink === 'function' ? sink : undefined;
    const y = this.made(this.keep(normed).view(x.tensor.shape), x.wanted || gradient !== undefined);
    return this.record(y, (dy) => {
      if (gradient) {
        const bare = rt.allocate('f32', from.shape);
        if (plan.kind === 'layer') ops.layernorm(rt, from, undefined, undefined, bare, { eps, offset: 0, turns });
        else ops.rmsnorm(rt, from, undefined, bare, { eps, offset: 0 });
        gradient(bare, rows(dy));
        bare.dispose();
      }
      if (!x.wanted) return;
      const { dx, accumulate } = this.into(x);
      const weight = apart ?? (plan.weight === undefined ? undefined : weightOf(this.weights, plan.weight));
      const p = { eps, offset, accumulate };
      if (plan.kind === 'layer') ops.layernormBackward(rt, from, rows(dy), weight, rows(dx), { ...p, turns });
      else ops.rmsnormBackward(rt, from, rows(dy), weight, rows(dx), p);
    });
  }

  /** The weights [turns, size] of a norm with a separate tensor for each head. */
  private gainsOf(plan: NormPlan): Tensor {
    const { turns, size } = plan;
    const gains = this.keep(this.rt.allocate('f32', [turns, size]));
    for (const [turn, name] of splitNames(plan).entries())
      ops.cast(this.rt, weightOf(this.weights, name), this.keep(gains.view([size], turn * size)));
    return gains;
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

  /** `selection`: the keys that tokens see, which are fixed. */
  attention(
    q: Value,
    k: Value,
    v: Value,
    { starts }: Batch,
    p: AttentionParams,
    { sinks, selection }: { readonly sinks?: Tensor | undefined; readonly selection?: Selection | undefined } = {},
  ): Value {
    const { rt } = this;
    const values = [q, k, v];
    const y = rt.allocate('f32', [q.tensor.shape[0] as number, p.heads * (p.valueDim ?? p.headDim)]);
    const given = { q: q.tensor, k: k.tensor, v: v.tensor };
    const chosen = selection && { choices: selection.choices, block: selection.block };
    if (selection) attendSelected(rt, { ...given, y }, selection, { starts }, p);
    else ops.attention(rt, q.tensor, k.tensor, v.tensor, starts, y, multiplied(rt, p), sinks);
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
        const of = { ...given, starts, dy, ...(selection && { selected: selection.indices }), ...(sinks && { sinks }) };
        ops.attentionBackward(rt, of, { dq, dk, dv }, { ...p, ...chosen });
        for (const [i, grad] of [dq, dk, dv].entries()) this.give(values[i] as Value, grad);
      },
    );
  }

  gated(gate: Value, up: Value, plan: GatedPlan): Value {
    const { rt } = this;
    const y = rt.allocate('f32', gate.tensor.shape);
    if (plan.kind === 'clamped')
      ops.clampedSwiglu(rt, gate.tensor, up.tensor, y, { alpha: plan.alpha, limit: plan.limit });
    else if (plan.kind === 'limited') ops.limitedGate(rt, gate.tensor, up.tensor, y, { limit: plan.limit });
    else ops.gatedActivation(rt, gate.tensor, up.tensor, y, { act: plan.activation });
    return this.record(this.made(y, gate.wanted || up.wanted), (dy) => {
      const [of, out] = [
        { gate: gate.tensor, up: up.tensor, dy },
        { dgate: this.keep(rt.allocate('f32', y.shape)), dup: dy },
      ];
      if (plan.kind === 'clamped') ops.clampedSwigluBackward(rt, of, out, { alpha: plan.alpha, limit: plan.limit });
      else if (plan.kind === 'limited') ops.limitedGateBackward(rt, of, out, { limit: plan.limit });
      else ops.gatedActivationBackward(rt, of, out, { act: plan.activation });
      this.give(gate, out.dgate);
      this.give(up, out.dup);
    });
  }

  activation(x: Value, act: ActivationName | XieluPlan): Value {
    const { rt } = this;
    const y = rt.allocate('f32', x.tensor.shape);
    const learned = typeof act === 'string' ? undefined : xieluTensors(this.weights, act);
    if (learned) ops.xielu(rt, x.tensor, learned, y);
    else ops.activation(rt, x.tensor, y, { act: act as ActivationName });
    return this.record(this.made(y, x.wanted), (dy) => {
      if (learned) ops.xieluBackward(rt, x.tensor, learned, dy, dy);
      else ops.activationBackward(rt, x.tensor, dy, dy, { act: act as ActivationName });
      this.give(x, dy);
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

  /** h + branch, which takes the sum's gradient over. */
  add(h: Value, branch: Value): Value {
    const y = this.rt.allocate('f32', h.tensor.shape);
    ops.add(this.rt, h.tensor, branch.tensor, y);
    return this.record(this.made(y, h.wanted || branch.wanted), (dy) => {
      if (h.wanted) {
        const own = this.keep(this.rt.allocate('f32', dy.shape));
        ops.cast(this.rt, dy, own);
        this.give(h, own);
      }
      this.give(branch, dy);
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

  /** Adds to the gradient of x; the tensor may become it. */
  give(x: Value, gradient: Tensor): void {
    if (x.grad) ops.add(this.rt, x.grad, gradient, x.grad);
    else x.grad = gradient;
  }

  /** Where a product puts the gradient of x. */
  into(x: Value): { dx: Tensor; accumulate: boolean } {
    const accumulate = x.grad !== undefined;
    x.grad ??= this.keep(this.rt.allocate('f32', x.tensor.shape));
    return { dx: x.grad, accumulate };
  }
}
