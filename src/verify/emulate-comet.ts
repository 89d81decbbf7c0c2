import type { PackedModule } from '../../formats/artifact/schema.js';
import type { Tensor } from '../../native/binding.js';
import type { DecodedPart } from './decode.js';
import { wideScales } from './decode-comet.js';
import type { ModuleContext } from './module.js';
import { type EmulatorResult, emulateComet } from './native.js';

/** Output features of a block of layout comet. */
export const COMET_STRIP = 16;

/** Sampled strips of a part through the emulated W4Ax kernel (native/cpu/verify/emulate_comet.cpp): integer sums must be exact. */
export async function cometEmulation(
  ctx: ModuleContext,
  prefix: string,
  _module: PackedModule,
  parts: ReadonlyMap<DecodedPart, Tensor>,
  strips: readonly number[],
): Promise<EmulatorResult> {
  const { runtime, weights, seed } = ctx;
  const scales = await wideScales(runtime, parts.get('scales')!);
  const own = ['packed', 'scales', 'bits', 'clip', 'blocks'].map((suffix) => weights.tensor(`${prefix}.${suffix}`));
  const permutation = parts.get('permutation');
  const inputs = [...own, parts.get('codes')!, scales, ...(permutation ? [permutation] : [])];
  const result = await emulateComet(runtime, inputs, { seed, strips });
  for (const tensor of [...own, scales]) tensor.dispose();
  return result;
}
