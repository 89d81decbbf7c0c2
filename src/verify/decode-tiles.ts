import type { PackedModule } from '../../formats/artifact/schema.js';
import type { TensorReader } from '../../formats/safetensors/read.js';
import { allocate, fromTyped, type NativeRuntime, type Tensor, typed } from '../../native/binding.js';
import type { Decoded } from './decode.js';
import { firstWrong, note, type Parts, problem, readScales, setScales, setZeros, unfuse } from './decode-scales.js';
import { laneEmulator } from './emulate-lanes.js';
import type { VerifiedLayout } from './layout.js';
import { decodeTiles, settle, type Wrong } from './native.js';
import { checkPermutation } from './streams.js';
import { partShape, rankPrefixes, type TileRules, tileCodes, tileProblems } from './tile-rules.js';

/** A layout of fragments, whose tensors a module has once, or once for each rank that shares it. */
export function tileLayout(rules: TileRules): VerifiedLayout {
  const { name, codes, activations, emulator, kernel } = rules;
  const run = typeof emulator === 'function' ? laneEmulator(rules, emulator) : emulator;
  return {
    name,
    problems: (module) => tileProblems(rules, module),
    tensors: (module) => rules.tensors(module),
    decode: (...args) => decodeTileModule(rules, ...args),
    tiles: { codes, decodePart: (...args) => decodePart(rules, ...args), emulator: run },
    ...(activations && { activations }),
    ...(kernel && { kernel }),
  };
}

/** A module in a layout of tiles: every rank's part is decoded, and the parts are joined. */
async function decodeTileModule(
  rules: TileRules,
  rt: NativeRuntime,
  weights: TensorReader,
  name: string,
  module: PackedModule,
  decoded: Decoded,
): Promise<void> {
  const parts: Parts[] = [];
  for (const prefix of rankPrefixes(name, module))
    parts.push(await decodePart(rules, rt, weights, name, prefix, module, decoded));
  const first = parts[0]!;
  const { ranks } = module;
  for (const part of ['codes', 'mask', 'scales', 'zeros', 'g_idx', 'permutation'] as const) {
    const pieces = parts.map((each) => each.get(part));
    if (!first.has(part)) continue;
    // Whole-row scales of parts of K, and orders of columns, are the same for every rank.
    const alike =
      part === 'g_idx' ||
      part === 'permutation' ||
      (part !== 'codes' && part !== 'mask' && ranks?.split === 'k' && module.granularity.kind === 'channel');
    if (!ranks) decoded.parts.set(part, pieces[0]!);
    else if (alike) {
      for (const [rank, piece] of pieces.entries())
        problem(decoded, `${name}.rank${rank}`, `its ${part} are not those of rank 0`, unlike(piece!, pieces[0]!));
      decoded.parts.set(part, pieces[0]!);
      for (const piece of pieces.slice(1)) piece!.dispose();
    } else {
      decoded.parts.set(part, join(pieces as Tensor[], ranks.split));
      for (const piece of pieces) piece!.dispose();
    }
  }
  const group = decoded.parts.get('g_idx');
  if (group) decoded.group = group;
}

/** One rank's part, or the whole. The caller disposes of what it returns. */
async function decodePart(
  rules: TileRules,
  rt: NativeRuntime,
  weights: TensorReader,
  name: string,
  prefix: string,
  module: PackedModule,
  decoded: Decoded,
): Promise<Parts> {
  const part = { rt, weights, name, prefix, module, decoded };
  const [n, k] = partShape(module);
  const [np, kp] = module.padded;
  const stored = tileCodes(rules, module);
  const { bits, flip, pad, zero } = stored;
  const scales = rules.scales(module);
  const parts: Parts = new Map();
  const packedName = `${prefix}.${rules.codes}`;
  const packed = weights.tensor(packedName);
  const permutation = weights.has(`${prefix}.permutation`) ? weights.tensor(`${prefix}.permutation`) : undefined;
  const order = permutation && readOrder(`${prefix}.permutation`, module, permutation, parts, decoded);
  const shape = { bits, n, k, np, kp, flip, pad };
  const { codes, take } = rules.codesOf?.(part, packed, shape) ?? {
    codes: decodeTiles(rt, rules.form(name, module), packed, shape, order),
    take: undefined,
  };
  const read = readScales(rt, weights, prefix, scales, n, np, bits);
  await settle(rt);
  note(decoded, packedName, codes, 'a code in the padding is not the padding code');
  parts.set('codes', codes.output);
  take?.(parts);
  note(decoded, read.name, read.scales, 'the scale of a padding column or group is not 0');
  if (scales.fused) await unfuse(rt, read, module, stored, parts, decoded);
  else if (rules.takeScales) await rules.takeScales(part, read, parts);
  else {
    setScales(read.name, module, read.scales.output, parts, decoded);
    if (read.zeros) {
      note(decoded, read.zeros.name, read.zeros.pending, 'the zero point of a padding column or group is not 0');
      setZeros(read.zeros.name, module, flip, zero, read.zeros.pending.output, parts, decoded);
    }
  }
  packed.dispose();
  permutation?.dispose();
  return parts;
}

/**
 * What `permutation` says: the canonical permutation itself, or g_idx, sorted by group with features of a group in order.
 * Returns the order to undo, for g_idx.
 */
function readOrder(
  tensor: string,
  module: PackedModule,
  stored: Tensor,
  parts: Parts,
  decoded: Decoded,
): Tensor | undefined {
  const values = typed<Int32Array>(stored);
  const k = values.length;
  const sound = checkPermutation(tensor, stored, decoded);
  if (module.canonical.permutation !== undefined) {
    parts.set('permutation', stored.view(stored.shape));
    return undefined;
  }
  const group = new Int32Array(k);
  if (!sound) {
    parts.set('g_idx', fromTyped('i32', [k], group));
    return undefined;
  }
  const size = module.granularity.kind === 'group' ? module.granularity.size : k;
  for (let j = 0; j < k; j++) group[values[j]!] = Math.floor(j / size);
  const ordered = (value: number, j: number) => j % size === 0 || value >= values[j - 1]!;
  const fall = firstWrong(values, k, (j) => values[j - 1]!, ordered);
  problem(decoded, tensor, 'the input features of a group are not in order', fall);
  parts.set('g_idx', fromTyped('i32', [k], group));
  return stored;
}

/** The parts of ranks side by side: one under another (n), or row by row (k). */
function join(pieces: readonly Tensor[], split: 'n' | 'k'): Tensor {
  const [rows, columns] = pieces[0]!.shape as [number, number];
  const count = pieces.length;
  const whole = allocate(pieces[0]!.dtype, split === 'n' ? [rows * count, columns] : [rows, columns * count]);
  const to = whole.bytes();
  const rowBytes = pieces[0]!.byteLength / rows;
  for (const [rank, piece] of pieces.entries()) {
    const from = piece.bytes();
    if (split === 'n') to.set(from, rank * from.length);
    else
      for (let row = 0; row < rows; row++)
        to.set(from.subarray(row * rowBytes, (row + 1) * rowBytes), (row * count + rank) * rowBytes);
  }
  return whole;
}

function unlike(got: Tensor, expected: Tensor): Wrong | undefined {
  const want = expected.bytes();
  return firstWrong(got.bytes(), got.byteLength / got.shape[0]!, (i) => want[i]!);
}
