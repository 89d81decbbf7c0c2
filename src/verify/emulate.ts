import type { PackedModule } from '../../formats/artifact/schema.js';
import { allocate, fromTyped, type Tensor, typed } from '../../native/binding.js';
import { quantType, typeParams, valueRange } from '../core/quant-type.js';
import type { Decoded, DecodedPart } from './decode.js';
import { decodePart } from './decode-tiles.js';
import { COMET_STRIP, cometEmulation } from './emulate-comet.js';
import { isSymmetric } from './layouts.js';
import type { ModuleContext } from './module.js';
import { convertExact, type EmulatorResult, emulateMarlin, emulateSparse, emulateTiles, settle } from './native.js';
import { codeTensor, partShape, rankPrefixes, TILE_LAYOUTS, tileCodes, tileScales } from './tile-layouts.js';

/** Strips (the columns of a tile) that a large module is sampled with. */
const SAMPLED = 4;
const ALL_BELOW = 8;

const LARGEST_HALF = 65504;

type Parts = ReadonlyMap<DecodedPart, Tensor>;

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
  if (!TILE_LAYOUTS.includes(module.layout) || decoded.problems.length > 0) return undefined;
  const { max } = valueRange(quantType(module.type));
  if (max > LARGEST_HALF) return undefined;
  let ratio: number | undefined;
  for (const prefix of rankPrefixes(name, module)) {
    const scratch: Decoded = { parts: new Map(), problems: [] };
    const parts = module.ranks
      ? await decodePart(ctx.runtime, ctx.weights, name, prefix, module, scratch)
      : decoded.parts;
    const strips = chooseStrips(module, tileColumns(module, name), ctx.seed);
    const own = OWN[module.layout] ?? (isClassic(module) ? classic : undefined);
    const result = own
      ? await own(ctx, prefix, module, parts, strips)
      : await general(ctx, name, prefix, module, parts, strips);
    if (module.ranks) for (const tensor of parts.values()) tensor.dispose();
    if (!result) return undefined;
    ctx.recorder.count('emulator', strips.length);
    report(ctx, name, prefix, module, result);
    ratio = Math.max(ratio ?? 0, result.ratio);
  }
  return ratio;
}

/** Layouts whose kernel has an emulator of its own. */
const OWN: Readonly<Partial<Record<string, typeof sparse>>> = { sparse_marlin: sparse, comet: cometEmulation };

/** What MARLIN's own kernel reads: emulated with its very instructions, per-channel scales after the sum. */
function isClassic(module: PackedModule): boolean {
  const { layout, canonical, granularity, padded } = module;
  const whole = granularity.kind === 'channel' || padded[1] === partShape(module)[1];
  return layout === 'marlin' && quantType(module.type).bits === 4 && isSymmetric(module) && !canonical.g_idx && whole;
}

/** The metadata selects of each four activations the two that the kept weights meet. */
async function sparse(
  ctx: ModuleContext,
  prefix: string,
  module: PackedModule,
  parts: Parts,
  strips: readonly number[],
): Promise<EmulatorResult> {
  const type = quantType(module.type);
  const [packed, meta, packedScales] = ['B', 'meta', 's'].map((suffix) =>
    ctx.weights.tensor(`${prefix}.${suffix}`),
  ) as [Tensor, Tensor, Tensor];
  const result = await emulateSparse(
    ctx.runtime,
    { packed, meta, packedScales, codes: parts.get('codes')!, mask: parts.get('mask')!, scales: parts.get('scales')! },
    {
      bits: type.bits,
      k: partShape(module)[1],
      zero: module.zeros.kind === 'const' ? module.zeros.value : 0,
      signed: type.kind === 'int' && type.signed,
      seed: ctx.seed,
      strips,
    },
  );
  for (const tensor of [packed, meta, packedScales]) tensor.dispose();
  return result;
}

async function classic(
  ctx: ModuleContext,
  prefix: string,
  module: PackedModule,
  parts: Parts,
  strips: readonly number[],
): Promise<EmulatorResult> {
  const type = quantType(module.type);
  const packed = ctx.weights.tensor(`${prefix}.B`);
  const packedScales = ctx.weights.tensor(`${prefix}.s`);
  const result = await emulateMarlin(
    ctx.runtime,
    { packed, packedScales, codes: parts.get('codes')!, scales: parts.get('scales')! },
    {
      k: partShape(module)[1],
      zero: module.zeros.kind === 'const' ? module.zeros.value : 0,
      signed: type.kind === 'int' && type.signed,
      seed: ctx.seed,
      strips,
    },
  );
  packed.dispose();
  packedScales.dispose();
  return result;
}

/** emulate_tiles.cpp; undefined when a scale or zero point is no fp16 number. */
async function general(
  ctx: ModuleContext,
  name: string,
  prefix: string,
  module: PackedModule,
  parts: Parts,
  strips: readonly number[],
): Promise<EmulatorResult | undefined> {
  const { runtime, weights } = ctx;
  const { bits, flip, form, zero } = tileCodes(name, module);
  const stored = tileScales(module);
  const [, k] = partShape(module);
  const [np, kp] = module.padded;
  const scales = await halfScales(ctx, parts.get('scales')!);
  if (!scales) return undefined;
  const zeros = halfZeros(parts.get('zeros'), scales.shape, zero, flip);
  const part = (suffix: string): Tensor => weights.tensor(`${prefix}.${suffix}`);
  const marlin = module.layout === 'marlin';
  const separate = stored.zeros === 'U8' || stored.zeros === 'F16' || stored.zeros === 'I32';
  const ordered = module.canonical.g_idx !== undefined;
  const inputs = [
    part(marlin ? 'B' : 'packed'),
    scales,
    zeros,
    parts.get('codes')!,
    part(stored.zeros === 'fused' ? 'scales_zeros' : marlin ? 's' : 'scales'),
    ...(separate ? [part(marlin ? 'zp' : 'zeros')] : []),
    ...(ordered ? [part('permutation')] : []),
  ];
  const type = quantType(module.type);
  const result = await emulateTiles(runtime, inputs, {
    ...typeParams(type),
    // Codes that were made unsigned are numbers as they are stored.
    ...(flip ? { signed: 0 } : {}),
    form,
    scaleForm: stored.form,
    bits,
    k,
    np,
    kp,
    gp: stored.padded,
    group: module.granularity.kind === 'group' ? module.granularity.size : kp,
    flip,
    zero: zero ?? 0,
    fused: stored.zeros === 'fused',
    hasZeros: separate,
    zeroBits: stored.zeros === 'I32' ? bits : stored.zeros === 'U8' ? 8 : 16,
    hasOrder: ordered,
    seed: ctx.seed,
    strips,
  });
  const mine = new Set<Tensor | undefined>(parts.values());
  for (const tensor of inputs) if (!mine.has(tensor)) tensor.dispose();
  return result;
}

/** Scales in f16, undefined when one of them is no f16 number. */
async function halfScales({ runtime }: ModuleContext, scales: Tensor): Promise<Tensor | undefined> {
  if (scales.dtype === 'f16') return scales;
  const wide = allocate('f32', scales.shape);
  if (scales.dtype === 'bf16') runtime.enqueue('verify_convert_exact', [scales], [wide, allocate('i64', [5])]);
  else typed(wide).set(Float32Array.from(scales.bytes(), (e) => 2 ** (e - 127)));
  await settle(runtime);
  const half = convertExact(runtime, wide, 'f16');
  await settle(runtime);
  wide.dispose();
  if (half.wrong().count === 0) return half.output;
  half.output.dispose();
  return undefined;
}

/** Zero points of the codes as they are stored, F16. */
function halfZeros(
  zeros: Tensor | undefined,
  shape: readonly number[],
  constant: number | undefined,
  flip: number,
): Tensor {
  if (zeros?.dtype === 'f16') return zeros;
  const count = shape.reduce((all, size) => all * size, 1);
  const values = zeros ? typed<Int16Array | Uint8Array>(zeros) : undefined;
  return fromTyped(
    'f16',
    shape,
    Uint16Array.from({ length: count }, (_, i) => halfBits(values ? values[i]! + flip : (constant ?? 0))),
  );
}

/** f16 bits of a number that it holds exactly and that is normal or 0. */
function halfBits(value: number): number {
  if (value === 0) return 0;
  const exponent = Math.floor(Math.log2(Math.abs(value)));
  return (value < 0 ? 0x8000 : 0) | ((exponent + 15) << 10) | ((Math.abs(value) / 2 ** exponent - 1) * 1024);
}

function report(ctx: ModuleContext, name: string, prefix: string, module: PackedModule, result: EmulatorResult): void {
  const { registers, outputs } = result;
  if (registers.count > 0)
    ctx.recorder.failures.push({
      check: 'emulator',
      module: name,
      tensor: `${prefix}.${codeTensor(module.layout)}`,
      row: registers.row,
      column: registers.column,
      got: registers.got,
      expected: registers.expected,
      message:
        module.layout === 'comet'
          ? `module '${name}': the emulated kernel's sum of the block of row ${registers.row} at column ${registers.column} is ` +
            `${registers.got}, not ${registers.expected} (${registers.count} such sums)`
          : `module '${name}': a lane of the emulated kernel dequantizes row ${registers.row}, column ${registers.column} to ` +
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
}

function tileColumns(module: PackedModule, name: string): number {
  const columns = { marlin: 64, sparse_marlin: 64, tilus: 32, turbomind_a: 16, comet: COMET_STRIP } as const;
  const { form } = tileCodes(name, module);
  return columns[form as keyof typeof columns] ?? 32;
}

function chooseStrips(module: PackedModule, strip: number, seed: number): number[] {
  const all = module.padded[0] / strip;
  if (all <= ALL_BELOW) return Array.from({ length: all }, (_, i) => i);
  const strips = new Set([0, Math.ceil(partShape(module)[0] / strip) - 1]);
  // A linear congruential step (Numerical Recipes) is random enough to pick columns.
  for (let state = seed >>> 0; strips.size < SAMPLED; ) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    strips.add(Math.floor((state / 2 ** 32) * all));
  }
  return [...strips].sort((a, b) => a - b);
}
