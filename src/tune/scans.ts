import type { Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { ShortConvPlan } from '../model/mixers/plan-conv.js';
import type { Mamba2Core, MambaCore } from '../model/mixers/plan-mamba.js';
import type { NormPlan } from '../model/plan.js';
import type { Batch } from '../model/program.js';
import { weightOf } from '../model/weights.js';
import { smoothed } from './convolution.js';
import { headsOf, joinHeads } from './heads.js';
import type { Tape, Value } from './tape.js';

/** What a state space's last linear reads, of what its first makes (src/model/mixers/mamba.ts). */
export function passScan(tape: Tape, core: Mamba2Core | MambaCore, made: Value, batch: Batch): Value {
  return core.kind === 'mamba' ? mamba(tape, core, made, batch) : mamba2(tape, core, made, batch);
}

const columnsOf = (tape: Tape, x: Value, first: number, width: number): Value =>
  headsOf(tape, x, 1, x.tensor.shape[1] as number, first, width);

function convolved(tape: Tape, { weight, bias, channels, taps }: ShortConvPlan, x: Value, batch: Batch): Value {
  const kernel = tape.keep(weightOf(tape.weights, weight).view([channels, taps]));
  return smoothed(tape, kernel, x, batch, bias === undefined ? undefined : weightOf(tape.weights, bias));
}

function mamba2(tape: Tape, core: Mamba2Core, made: Value, batch: Batch): Value {
  const { heads, headDim, groups, size, conv, norm, normFirst } = core;
  const [channels, shared] = [heads * headDim, groups * size];
  const whole = core.scales.length > 0 ? scaledColumns(tape, made, core.scales) : made;
  const gate = columnsOf(tape, whole, 0, channels);
  const mixed = convolved(tape, conv, columnsOf(tape, whole, channels, conv.channels), batch);
  const read = {
    x: columnsOf(tape, mixed, 0, channels),
    b: columnsOf(tape, mixed, channels, shared),
    c: columnsOf(tape, mixed, channels + shared, shared),
    step: columnsOf(tape, whole, channels + conv.channels, heads),
  };
  const bounds = { least: core.least, ...(Number.isFinite(core.most) && { most: core.most }) };
  const y = scanned(tape, core, read, batch, bounds);
  const silu = { kind: 'gated', activation: 'silu' } as const;
  return normFirst ? tape.gated(gate, grouped(tape, norm, y), silu) : grouped(tape, norm, tape.gated(gate, y, silu));
}

function mamba(tape: Tape, core: MambaCore, whole: Value, batch: Batch): Value {
  const { headDim: channels, size, rank, conv, select, step, stepNorm, bNorm, cNorm } = core;
  const x = convolved(tape, conv, columnsOf(tape, whole, 0, channels), batch);
  const gate = columnsOf(tape, whole, channels, channels);
  const chosen = tape.linear(x, select);
  const read = {
    x,
    b: tape.norm(columnsOf(tape, chosen, rank, size), bNorm),
    c: tape.norm(columnsOf(tape, chosen, rank + size, size), cNorm),
    step: tape.linear(tape.norm(columnsOf(tape, chosen, 0, rank), stepNorm), step),
  };
  return tape.gated(gate, scanned(tape, core, read, batch, {}), { kind: 'gated', activation: 'silu' });
}

/** Some columns of x times numbers, where they lie. */
function scaledColumns(tape: Tape, x: Value, scales: Mamba2Core['scales']): Value {
  const scale = (of: Tensor): void => {
    for (const { first, width, factor } of scales) ops.scaleRows(tape.rt, of, undefined, of, { factor, first, width });
  };
  scale(x.tensor);
  return tape.record({ tensor: x.tensor, wanted: x.wanted }, (dy) => {
    scale(dy);
    x.grad = dy;
  });
}

type Read = Record<'x' | 'b' | 'c' | 'step', Value>;

function scanned(
  tape: Tape,
  core: Mamba2Core | MambaCore,
  read: Read,
  { starts }: Batch,
  bounds: { readonly least?: number; readonly most?: number },
): Value {
  const { rt, weights } = tape;
  const { heads, headDim, groups, size } = core;
  const { x, b, c, step } = read;
  const [rate, bias, skip] = [core.rate, core.bias, core.skip].map((name) => weightOf(weights, name)) as [
    Tensor,
    Tensor,
    Tensor,
  ];
  const t = { x: x.tensor, b: b.tensor, c: c.tensor, step: step.tensor, rate, bias, skip };
  const sizes = { heads, headDim, groups, size, ...bounds };
  const y = rt.allocate('f32', x.tensor.shape);
  ops.selectiveScan(rt, t, y, { starts }, sizes);
  const wanted = Object.values(read).some((value) => value.wanted);
  return tape.record(tape.made(y, wanted), (dy) => {
    const gradient = ({ tensor }: Value) => tape.keep(rt.allocate('f32', tensor.shape));
    const out = { dx: gradient(x), db: gradient(b), dc: gradient(c), dstep: gradient(step) };
    ops.selectiveScanBackward(rt, { ...t, starts, dy }, out, sizes);
    // What b, c and the steps are made of reads x, too, and adds to this.
    [x.grad, b.grad, c.grad, step.grad] = [out.dx, out.db, out.dc, out.dstep];
  });
}

/** The norm of each group's channels, one after another of one weight. */
function grouped(tape: Tape, norm: NormPlan | undefined, y: Value): Value {
  if (!norm) return y;
  const { turns, size } = norm;
  if (turns === 1) return tape.norm(y, norm);
  const gain = weightOf(tape.weights, norm.weight as string);
  const parts = Array.from({ length: turns }, (_, turn) => {
    const own = tape.keep(gain.view([size], turn * size));
    const x = tape.norm(columnsOf(tape, y, turn * size, size), { ...norm, turns: 1 }, own);
    return { x, width: size, to: turn * size };
  });
  return joinHeads(tape, parts, 1, turns * size);
}
