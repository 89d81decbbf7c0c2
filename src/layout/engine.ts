import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { LayoutDevice } from './device.js';
import type { MemoryLayout, PackMode } from './memory.js';

/** A runtime of the CPU; with `layouts`, a CUDA device lays out codes for it. */
export type PackRuntime = NativeRuntime & { readonly layouts?: LayoutDevice };

export interface PackOptions {
  /** The matrix holds bitstream rows U8 [rows, ceil(columns * bits / 8)], of this many columns, instead of elements. */
  readonly streamColumns?: number;
  /** Added to every code, modulo 2^bits: 2^(bits-1) stores a two's complement code as unsigned. */
  readonly bias?: number;
}

/**
 * Enqueues the packing of `matrix` [rows, columns] (U8 codes, bitstream rows, or 16- and 32-bit elements of any dtype)
 * into `packed` (any dtype, layout.bytes bytes). The matrix may be smaller than the layout: what is missing becomes `pad`,
 * a code as it is stored, after the bias. `order` I32 [columns] takes column c of the layout from column order[c].
 * `packed` holds its values after allPacked(rt).
 */
export function pack(
  rt: PackRuntime,
  layout: MemoryLayout,
  matrix: Tensor,
  packed: Tensor,
  options: PackOptions & { pad?: number; order?: Tensor; keep?: boolean } = {},
): void {
  const { pad = 0, keep = false, order } = options;
  const all = { ...layoutParams(layout, options), pad, keep: keep ? 1 : 0 };
  // Only codes are worth the way to a device; and what is small may still be waiting in the queue to be made.
  if (rt.layouts && options.streamColumns !== undefined && !keep) rt.layouts.pack(matrix, packed, all, order);
  else ops.layoutPack(rt, matrix, packed, all, order);
}

/** Settles when everything that pack() enqueued is there. */
export async function allPacked(rt: PackRuntime): Promise<void> {
  const [here, there] = await Promise.allSettled([rt.sync(), rt.layouts?.finish()]);
  for (const outcome of [here, there]) if (outcome.status === 'rejected') throw outcome.reason;
}

/** Enqueues the inverse: `packed` -> `matrix`, whose missing rows and columns are left out. */
export function unpack(
  rt: NativeRuntime,
  layout: MemoryLayout,
  packed: Tensor,
  matrix: Tensor,
  options: PackOptions = {},
): void {
  ops.layoutUnpack(rt, packed, matrix, layoutParams(layout, options));
}

/** The params of layout_pack and layout_unpack that stand for a layout. */
export function layoutParams(layout: MemoryLayout, options: PackOptions) {
  const modes: [number, PackMode][] = [
    ...layout.rows.map((mode): [number, PackMode] => [0, mode]),
    ...layout.columns.map((mode): [number, PackMode] => [1, mode]),
  ];
  return {
    bits: layout.bits,
    modeDims: modes.map(([dim]) => dim),
    modeSizes: modes.map(([, mode]) => mode.size),
    modeStrides: modes.map(([, mode]) => mode.stride),
    modeStream: modes.map(([, mode]) => (mode.stream ? 1 : 0)),
    unit: layout.unit?.bits ?? 0,
    unitStride: layout.unit?.stride ?? 0,
    ...(layout.wordOrder && { wordOrder: layout.wordOrder }),
    base: layout.base ?? 0,
    bias: options.bias ?? 0,
    ...(options.streamColumns === undefined ? {} : { streamed: 1, columns: options.streamColumns }),
  };
}
