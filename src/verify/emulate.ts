import type { PackedModule } from '../../formats/artifact/schema.js';
import { quantType, valueRange } from '../core/quant-type.js';
import type { Decoded } from './decode.js';
import { sampled } from './kernel-data.js';
import type { Emulator } from './layout.js';
import { layoutOf } from './layouts/index.js';
import type { ModuleContext } from './module.js';
import { type EmulatorResult, placeOf, type Wrong } from './native.js';
import { partShape, rankPrefixes } from './tile-rules.js';

/** Strips (the columns of a tile) that a large module is sampled with. */
const SAMPLED = 4;
const ALL_BELOW = 8;

const LARGEST_HALF = 65504;

/**
 * Runs a module, rank by rank, through the emulated kernel of its layout: all strips of a small one, else the first, the
 * last that holds weights and two drawn from the seed. Returns the largest error / bound; undefined where no fp16 kernel
 * can be emulated: codes or scales that fp16 does not hold, and layouts that lpq has no kernel for.
 */
export async function emulateModule(
  ctx: ModuleContext,
  name: string,
  module: PackedModule,
  decoded: Decoded,
): Promise<number | undefined> {
  const tiles = layoutOf(module.layout)?.tiles;
  if (!tiles || decoded.problems.length > 0) return undefined;
  const { max } = valueRange(quantType(module.type));
  if (max > LARGEST_HALF) return undefined;
  let ratio: number | undefined;
  for (const prefix of rankPrefixes(name, module)) {
    const scratch: Decoded = { parts: new Map(), problems: [] };
    const parts = module.ranks
      ? await tiles.decodePart(ctx.runtime, ctx.weights, name, prefix, module, scratch)
      : decoded.parts;
    const strips = chooseStrips(module, tiles.emulator.strip(module), ctx.seed);
    const result = await tiles.emulator.run(ctx, { name, prefix, module, parts, strips });
    if (module.ranks) for (const tensor of parts.values()) tensor.dispose();
    if (!result) return undefined;
    ctx.recorder.count('emulator', strips.length);
    report(ctx, name, `${prefix}.${tiles.codes}`, tiles.emulator, result);
    ratio = Math.max(ratio ?? 0, result.ratio);
  }
  return ratio;
}

function wrongHalf({ row, column, got, expected, count }: Wrong): string {
  const halves = `fp16 0x${got.toString(16)}, not 0x${expected.toString(16)} (${count} such values)`;
  return `a lane of the emulated kernel dequantizes row ${row}, column ${column} to ${halves}`;
}

function report(ctx: ModuleContext, name: string, tensor: string, emulator: Emulator, result: EmulatorResult): void {
  const { registers, outputs } = result;
  const { failures } = ctx.recorder;
  const facts = { check: 'emulator', module: name } as const;
  if (registers.count > 0) {
    const message = `module '${name}': ${(emulator.wrong ?? wrongHalf)(registers)}`;
    failures.push({ ...facts, tensor, ...placeOf(registers), message });
  }
  if (outputs.count === 0) return;
  // Of outputs a row is a token, a column an output feature.
  const { row: token, column: row, got, expected, bound, count } = outputs;
  const message =
    `module '${name}': the emulated kernel's output for row ${row} (token ${token}) is ${got}, ` +
    `fp64 says ${expected} within ${bound} (${count} such outputs)`;
  failures.push({ ...facts, row, got, expected, message });
}

function chooseStrips(module: PackedModule, strip: number, seed: number): number[] {
  const all = module.padded[0] / strip;
  if (all <= ALL_BELOW) return Array.from({ length: all }, (_, i) => i);
  return sampled(all, SAMPLED, [0, Math.ceil(partShape(module)[0] / strip) - 1], seed);
}
