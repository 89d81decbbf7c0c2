import type { PackedModule } from '../../formats/artifact/schema.js';
import { quantType } from '../core/quant-type.js';
import type { Decoded } from './decode.js';
import { isSymmetric } from './layouts.js';
import type { ModuleContext } from './module.js';
import { emulateMarlin } from './native.js';

/** Columns that a warp of the kernel owns, and how many strips of them a large module is sampled with. */
const STRIP = 64;
const SAMPLED = 4;
const ALL_BELOW = 8;

/**
 * Runs a module through the emulated kernel of its layout: all 64-column strips of a small one, else the first, the last
 * that holds weights and two drawn from the seed. Returns the largest error / bound; undefined for layouts without one.
 */
export async function emulateModule(
  ctx: ModuleContext,
  name: string,
  module: PackedModule,
  decoded: Decoded,
): Promise<number | undefined> {
  const type = quantType(module.type);
  const { zeros, canonical, ranks } = module;
  if (module.layout !== 'marlin' || type.bits !== 4 || zeros.kind === 'int' || canonical.g_idx || ranks)
    return undefined;
  const codes = decoded.parts.get('codes');
  const scales = decoded.parts.get('scales');
  const whole = module.granularity.kind === 'channel' || module.padded[1] === module.shape[1];
  if (!codes || !scales || !isSymmetric(module) || !whole) return undefined;
  const strips = chooseStrips(module, ctx.seed);
  const packed = ctx.weights.tensor(`${name}.B`);
  const packedScales = ctx.weights.tensor(`${name}.s`);
  const result = await emulateMarlin(
    ctx.runtime,
    { packed, packedScales, codes, scales },
    {
      k: module.shape[1],
      zero: module.zeros.kind === 'const' ? module.zeros.value : 0,
      signed: type.kind === 'int' && type.signed,
      seed: ctx.seed,
      strips,
    },
  );
  packed.dispose();
  packedScales.dispose();
  ctx.recorder.count('emulator', strips.length);
  const { registers, outputs } = result;
  if (registers.count > 0)
    ctx.recorder.failures.push({
      check: 'emulator',
      module: name,
      tensor: `${name}.B`,
      row: registers.row,
      column: registers.column,
      got: registers.got,
      expected: registers.expected,
      message:
        `module '${name}': a lane of the emulated kernel dequantizes row ${registers.row}, column ${registers.column} to ` +
        `fp16 0x${registers.got.toString(16)}, not 0x${registers.expected.toString(16)} (${registers.count} such values)`,
    });
  if (outputs.count > 0)
    ctx.recorder.failures.push({
      check: 'emulator',
      module: name,
      row: outputs.column,
      got: outputs.got,
      expected: outputs.expected,
      message:
        `module '${name}': the emulated kernel's output for row ${outputs.column} (token ${outputs.row}) is ${outputs.got}, ` +
        `fp64 says ${outputs.expected} within ${outputs.bound} (${outputs.count} such outputs)`,
    });
  return result.ratio;
}

function chooseStrips(module: PackedModule, seed: number): number[] {
  const all = module.padded[0] / STRIP;
  if (all <= ALL_BELOW) return Array.from({ length: all }, (_, i) => i);
  const strips = new Set([0, Math.ceil(module.shape[0] / STRIP) - 1]);
  // A linear congruential step (Numerical Recipes) is random enough to pick columns.
  for (let state = seed >>> 0; strips.size < SAMPLED; ) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    strips.add(Math.floor((state / 2 ** 32) * all));
  }
  return [...strips].sort((a, b) => a - b);
}
