import { type NativeRuntime, readTyped, type Tensor } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { asRead } from '../../model/activations.js';
import type { ModelPlan } from '../../model/plan.js';
import type { BlockWeights } from '../../model/program.js';
import { applyLinear, weightOf } from '../../model/weights.js';
import { Tape, type WeightGradient } from '../tape.js';
import { NextTokens } from './next-tokens.js';
import { sizesOf } from './sizes.js';

/** What the head is computed with: its own weights, those of the unquantized model, and where its weight's gradient goes, if it is trained. */
export interface Head {
  readonly plan: ModelPlan;
  readonly weights: BlockWeights;
  readonly source: BlockWeights;
  readonly gradient?: WeightGradient | undefined;
  /** Where gradients of the final norm go, by its weight's full name. */
  readonly norms?: ReadonlyMap<string, WeightGradient>;
}

/** What next-token distributions are compared with: those of the unquantized model, by what its head reads, f32 [T,K], or the tokens. */
export type Wanted = Tensor | NextTokens;

/**
 * KL(unquantized || quantized) of next-token distributions, summed over the tokens, or the loss of the text's next tokens: h f32 [T,C] final
 * states. `gradient`: also that of the mean over tokens with respect to h, the caller's. The same bytes for any number of threads.
 */
export async function headLoss(
  rt: NativeRuntime,
  { plan, weights, source, gradient: trained, norms = new Map() }: Head,
  h: Tensor,
  target: Wanted,
  gradient: boolean,
): Promise<{ readonly sum: number; readonly gradient: Tensor | undefined }> {
  const { finalNorm, projectOut, head, vocab } = plan;
  const tape = new Tape(rt, weights, norms, gradient);
  const tokens = h.shape[0] as number;
  const sums = rt.allocate('f64', [tokens]);
  try {
    const given = tape.input(h);
    const normed = finalNorm ? tape.norm(given, finalNorm) : given;
    const x = projectOut ? tape.linear(normed, projectOut) : normed;
    const dx = tape.keep(rt.allocate('f32', gradient ? x.tensor.shape : [0, head.k]));
    const part = Math.max(1, Math.min(tokens, Math.floor(sizesOf(rt).logits / (4 * vocab))));
    for (let first = 0; first < tokens; first += part) {
      const count = Math.min(part, tokens - first);
      const rows = (tensor: Tensor, width: number) => tensor.view([count, width], first * width);
      const [own, lost] = [rows(x.tensor, head.k), sums.view([count], first)];
      const other = target instanceof NextTokens ? undefined : rows(target, head.k);
      const logits = logitsOf(rt, plan, weights, own);
      const wanted = other ? logitsOf(rt, plan, source, other) : (target as NextTokens).logits(rt, first, count, vocab);
      const dlogits = plan.logits.softCap > 0 ? rt.allocate('f32', logits.shape) : logits;
      ops.divergence(rt, logits, wanted, { dlogits, sums: lost }, { factor: 1 / tokens });
      if (target instanceof NextTokens) target.leaveOut(rt, dlogits, first);
      if (gradient) {
        backThrough(rt, plan, logits, dlogits);
        if (typeof trained === 'function') {
          const form = weights.activations?.get(head.name);
          const read = form ? asRead(rt, own, form) : own;
          trained(read, dlogits);
          if (form) read.dispose();
        }
        const into = rows(dx, head.k);
        ops.linearInputGradient(rt, dlogits, weightOf(weights, `${head.name}.weight`), into);
        into.dispose();
      }
      if (dlogits !== logits) dlogits.dispose();
      for (const tensor of [own, other, lost, logits, wanted]) tensor?.dispose();
      await rt.sync(); // memory of one part at a time
    }
    if (gradient) tape.backward(x, dx);
    const rowSums = await readTyped<Float64Array>(rt, sums);
    const sum = rowSums.reduce((a, b) => a + b, 0);
    return { sum, gradient: gradient ? given.grad?.view(h.shape) : undefined };
  } finally {
    tape.dispose();
    sums.dispose();
  }
}

function logitsOf(rt: NativeRuntime, { head, logits }: ModelPlan, weights: BlockWeights, x: Tensor): Tensor {
  const y = applyLinear(rt, weights, head, x);
  const { scale, softCap: cap } = logits;
  if (scale !== 1 || cap > 0) ops.softCap(rt, y, y, { scale, cap });
  return y;
}

/** From the gradient of logits to that of what the head's linear makes, in place. */
function backThrough(rt: NativeRuntime, { logits: plan }: ModelPlan, logits: Tensor, dlogits: Tensor): void {
  const { scale, softCap: cap } = plan;
  if (cap > 0) ops.softCapBackward(rt, logits, dlogits, dlogits, { scale, cap });
  else if (scale !== 1) ops.scaleRows(rt, dlogits, undefined, dlogits, { factor: scale });
}
