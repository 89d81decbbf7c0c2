import { type NativeRuntime, type Tensor, uploadTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { typeParams } from '../core/quant-type.js';
import { constantZero } from '../quantize/grid.js';
import type { QuantizedModule } from '../quantize/result.js';

/** Scales and zero points of a module as floats, f32 [N,G]; the second level of scales is in them. The caller disposes of them. */
export function gridOf(rt: NativeRuntime, module: QuantizedModule): { s: Tensor; z: Tensor } {
  const { scheme, scales, zeros, globalScale = 1 } = module;
  const count = scales.shape.reduce((a, b) => a * b, 1);
  // What codes of 1, one a group, stand for.
  const s = rt.allocate('f32', scales.shape);
  const ones = uploadTyped(rt, 'u8', scales.shape, new Uint8Array(count).fill(1));
  const one = { ...typeParams({ kind: 'int', name: 'u8', bits: 8, signed: false }) };
  ops.dequantize(rt, { codes: ones, scales }, s, one, { blockN: 1, blockK: 1, zero: 0, global: globalScale });
  const z = uploadTyped(rt, 'f32', scales.shape, new Float32Array(count).fill(constantZero(scheme)));
  if (zeros) {
    // Likewise: (0 - zero) * -1.
    const none = uploadTyped(rt, 'u8', scales.shape, new Uint8Array(count));
    const minus = uploadTyped(rt, 'f32', scales.shape, new Float32Array(count).fill(-1));
    ops.dequantize(rt, { codes: none, scales: minus, zeros }, z, one, { blockN: 1, blockK: 1 });
    for (const tensor of [none, minus]) tensor.dispose();
  }
  ones.dispose();
  return { s, z };
}
