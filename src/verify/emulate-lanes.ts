import { readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import type { PackedModule } from '../../formats/artifact/schema.js';
import { allocate, fromTyped, type Tensor, typed } from '../../native/binding.js';
import { quantType, typeParams } from '../core/quant-type.js';
import { bitsOf } from './floats.js';
import type { EmulatedPart, Emulator } from './layout.js';
import type { ModuleContext } from './module.js';
import { convertExact, type EmulatorResult, emulate, settle } from './native.js';
import { partShape, type TileRules, tileCodes } from './tile-rules.js';

/** A program of share/verify, and what it is told beside the module's shape. */
export interface LaneProgram {
  readonly program: string;
  /** Tiles of the same features stand together. */
  readonly experts?: boolean;
}
export type ProgramOf = (module: PackedModule, name: string) => LaneProgram;

const folder = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..', 'share', 'verify');

export const laneProgram = (name: string): string => readFileSync(path.join(folder, `${name}.lanes`), 'utf8');

/** Runs modules through the program that `choose` names. */
export function laneEmulator(rules: TileRules, choose: ProgramOf): Emulator {
  return {
    strip: (module) => Number(/^features = (\d+)$/m.exec(laneProgram(choose(module, '').program))?.[1]),
    run: (ctx, part) => emulateLanes(rules, choose(part.module, part.name), ctx, part),
  };
}

/** A part through emulate_lanes.cpp; undefined when a scale or zero point is no fp16 number. */
async function emulateLanes(
  rules: TileRules,
  { program, experts }: LaneProgram,
  ctx: ModuleContext,
  { prefix, module, parts, strips }: EmulatedPart,
): Promise<EmulatorResult | undefined> {
  const { runtime, weights } = ctx;
  const { bits, flip, zero } = tileCodes(rules, module);
  const stored = rules.scales(module);
  const [, k] = partShape(module);
  const [np, kp] = module.padded;
  const scales = await halfScales(ctx, parts.get('scales')!);
  if (!scales) return undefined;
  const order = module.canonical.g_idx !== undefined && weights.tensor(`${prefix}.permutation`);
  const packed = {
    packed: rules.codes,
    scales: stored.name,
    ...(stored.zeros && { zeros: stored.zeros.name }),
    ...(rules.sparse && { meta: 'meta' }),
  };
  const inputs = [
    scales,
    halfZeros(parts.get('zeros'), scales.shape, zero, flip),
    parts.get('codes')!,
    ...(order ? [order] : []),
    ...Object.values(packed).map((suffix) => weights.tensor(`${prefix}.${suffix}`)),
  ];
  const result = await emulate(runtime, 'lanes', inputs, {
    ...typeParams(quantType(module.type)),
    // Codes that were made unsigned are numbers as they are stored.
    ...(flip ? { signed: 0 } : {}),
    program: laneProgram(program),
    tensors: Object.keys(packed).join(' '),
    experts: experts === true,
    k,
    np,
    kp,
    groups: stored.padded,
    group: module.granularity.kind === 'group' ? module.granularity.size : kp,
    flip,
    zero: zero ?? 0,
    hasZeros: stored.zeros !== undefined,
    zeroBits: { I32: bits, U8: 8, F16: 16 }[stored.zeros?.dtype ?? 'F16'],
    hasOrder: order !== false,
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
  const values = zeros && typed<Int16Array | Uint8Array>(zeros);
  const bits = bitsOf('f16');
  return fromTyped(
    'f16',
    shape,
    Uint16Array.from({ length: count }, (_, i) => bits(values ? values[i]! + flip : (constant ?? 0))),
  );
}
