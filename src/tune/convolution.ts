import type { Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { ConvCore } from '../model/mixers/plan.js';
import type { Batch } from '../model/program.js';
import { weightOf } from '../model/weights.js';
import type { Tape, Value } from './tape.js';

/** c * conv(b * x) of b, c and x beside each other. */
export function convolution(tape: Tape, { conv }: ConvCore, x: Value, { starts }: Batch): Value {
  const { rt, weights } = tape;
  const { channels, taps } = conv;
  const weight = tape.keep(weightOf(weights, conv.weight).view([channels, taps]));
  const bias = conv.bias === undefined ? undefined : weightOf(weights, conv.bias);
  const columns = { act: 'none', first: 2 * channels, times: 0, gate: channels } as const;
  const y = rt.allocate('f32', [x.tensor.shape[0] as number, channels]);
  ops.shortConv(rt, x.tensor, { weight, bias }, y, { starts }, columns);
  return tape.record(tape.made(y, x.wanted), (dy) => {
    x.grad = tape.keep(rt.allocate('f32', x.tensor.shape));
    ops.shortConvBackward(rt, { x: x.tensor, weight, bias, starts, dy }, x.grad, columns);
  });
}

/** A short convolution of all of x, with SiLU. */
export function smoothed(tape: Tape, weight: Tensor, x: Value, { starts }: Batch, bias?: Tensor): Value {
  const { rt } = tape;
  const y = rt.allocate('f32', x.tensor.shape);
  ops.shortConv(rt, x.tensor, { weight, bias }, y, { starts }, { act: 'silu' });
  return tape.record(tape.made(y, x.wanted), (dy) => {
    x.grad = tape.keep(rt.allocate('f32', x.tensor.shape));
    ops.shortConvBackward(rt, { x: x.tensor, weight, bias, starts, dy }, x.grad, { act: 'silu' });
  });
}
