import { typed } from '../../native/binding.js';
import type { CanonicalModule } from '../canonical/schema.js';
import type { Part } from '../canonical/tensors.js';
import { codesToStream, fieldOf, wordsToStream } from '../foreign/bits.js';
import {
  FLOAT_DTYPES,
  FLOATS,
  type ForeignContext,
  type ForeignModule,
  type ForeignModules,
  foreign,
  groupsIn,
  inPlace,
  namedGroups,
  readEach,
  required,
  requireShape,
  stems,
} from '../foreign/module.js';
import { fp4Module } from './fp4-modules.js';
import { packedWords, packingsOf, type WordPacking } from './layout.js';
import { plainModule } from './plain-modules.js';
import { readWeightSchemes, schemeOf, type WeightScheme, type WeightSchemes } from './read-schemes.js';

/** All quantized linears of a compressed-tensors checkpoint. Throws LPQ_CONFIG for settings that cannot be used. */
export function compressedModules(ctx: ForeignContext): ForeignModules {
  const schemes = readWeightSchemes(ctx.where, ctx.settings);
  const packed = stems(ctx.weights, 'weight_packed');
  const plain = stems(ctx.weights, 'weight_scale').filter((name) => !ctx.weights.has(`${name}.weight_packed`));
  return readEach([...packed, ...plain], (name) => {
    const scheme = requireScheme(ctx, schemes, name);
    switch (scheme.format) {
      case 'pack-quantized':
        return packedModule(ctx, name, scheme);
      case 'nvfp4-pack-quantized':
      case 'mxfp4-pack-quantized':
        return fp4Module(ctx, name, scheme);
      default:
        return plainModule(ctx, name, scheme);
    }
  });
}

function requireScheme(ctx: ForeignContext, schemes: WeightSchemes, name: string): WeightScheme {
  return (
    schemeOf(ctx.where, schemes, name) ??
    foreign(`module '${name}' of ${ctx.dir} is quantized, but the settings leave it out`, {
      got: `targets ${schemes.schemes.flatMap(({ targets }) => targets).join(', ')}; ignore ${schemes.ignore.join(', ')}`,
      hint: `Add it to the targets of a group in ${ctx.where}.`,
    })
  );
}

function packedModule(ctx: ForeignContext, name: string, scheme: WeightScheme): ForeignModule {
  const { bits } = scheme;
  if (scheme.type !== 'int') foreign(`${ctx.where}: pack-quantized holds integers, not ${scheme.type} codes`);
  const words = required(ctx, `${name}.weight_packed`, ['I32'], 2);
  const scale = required(ctx, `${name}.weight_scale`, FLOAT_DTYPES, 2);
  const shape = required(ctx, `${name}.weight_shape`, ['I64', 'I32'], 1);
  requireShape(ctx, shape, [2], 'N and K');
  const stored = ctx.weights.tensor(shape.name);
  const [n, k] = [...typed<ArrayLike<number | bigint> & Iterable<number | bigint>>(stored)].map(Number) as [
    number,
    number,
  ];
  stored.dispose();
  if (![n, k].every((dim) => Number.isSafeInteger(dim) && dim > 0 && dim < 2 ** 31))
    foreign(`tensor '${shape.name}' of ${ctx.dir} holds no shape`, { got: `[${n}, ${k}]` });
  const [rows, width] = words.shape as [number, number];
  const fitting = packingsOf(k, bits, width);
  if (rows !== n || fitting.length === 0)
    foreign(`tensor '${words.name}' of ${ctx.dir} does not have the shape that its module needs`, {
      got: `[${rows}, ${width}]`,
      expected: `[${n}, ${packedWords(k, bits, 'dense')}] for the [${n}, ${k}] of weight_shape in ${bits} bits`,
      hint: `If the weights have other bits, correct num_bits in ${ctx.where}.`,
    });
  const groups = groupsOf(ctx, name, scheme, k);
  requireShape(ctx, scale, [n, groups], `a scale for each of ${groups} groups`);
  // Few codes fill the same number of words in either packing: then the zero points' words tell, else it is the newer one.
  const known = scheme.symmetric ? fitting : zeroPackings(ctx, name, { bits, n, groups, fitting });
  const packing = known[0] as WordPacking;
  const zeros = scheme.symmetric ? undefined : () => readZeros(ctx, name, { bits, n, groups, packing });
  const gIdx = scheme.actorder === 'group' ? readGroupIndex(ctx, name, k, groups) : undefined;
  const granularity: CanonicalModule['granularity'] =
    scheme.groupSize === undefined ? { kind: 'channel' } : { kind: 'group', size: scheme.groupSize };
  return {
    name,
    declaration: {
      type: `u${bits}`,
      shape: [n, k],
      granularity,
      scales: { dtype: FLOATS[scale.dtype as keyof typeof FLOATS], block: [1, k / groups], global: false },
      zeros: zeros ? { kind: 'int', dtype: 'u8' } : { kind: 'const', value: 2 ** (bits - 1) },
      ...inPlace(ctx),
      groupIndex: gIdx !== undefined,
      ...(packing === 'whole' && 32 % bits !== 0 && { packing }),
    },
    tensors: [
      words.name,
      scale.name,
      shape.name,
      ...(zeros ? [`${name}.weight_zero_point`] : []),
      ...(ctx.weights.has(`${name}.weight_g_idx`) ? [`${name}.weight_g_idx`] : []),
    ],
    notes: packing === 'whole' && 32 % bits !== 0 ? [`its ${bits}-bit codes fill whole words (before 0.13)`] : [],
    decode(part: Part): ArrayBufferView {
      if (part === 'scales') return typed<Uint16Array>(ctx.weights.tensor(scale.name));
      if (part === 'zeros' && zeros) return zeros();
      if (part === 'g_idx' && gIdx) return gIdx;
      const data = typed<Int32Array>(ctx.weights.tensor(words.name));
      if (packing === 'dense') return wordsToStream(data, n, k, bits);
      const codes = new Uint8Array(n * k);
      const perWord = Math.floor(32 / bits);
      for (let row = 0; row < n; row++)
        for (let i = 0; i < k; i++) codes[row * k + i] = fieldOf(data, row * width, 1, i, bits, perWord);
      return codesToStream(codes, n, k, bits);
    },
  };
}

/** Scales in a row. Throws LPQ_FOREIGN when the groups do not divide K. */
function groupsOf(ctx: ForeignContext, name: string, { strategy, groupSize }: WeightScheme, k: number): number {
  if (strategy !== 'group' && strategy !== 'tensor_group' && strategy !== 'channel' && strategy !== 'tensor')
    foreign(`${ctx.where}: strategy ${strategy} cannot pack '${name}'`, { got: strategy });
  return groupSize === undefined ? 1 : groupsIn(ctx, name, groupSize, k);
}

/** Checks weight_zero_point, and says which of the packings that the weights fit its words fit too. */
function zeroPackings(
  ctx: ForeignContext,
  name: string,
  { bits, n, groups, fitting }: { bits: number; n: number; groups: number; fitting: readonly WordPacking[] },
): WordPacking[] {
  const entry = required(ctx, `${name}.weight_zero_point`, ['I32'], 2);
  const [height, columns] = entry.shape as [number, number];
  const own = packingsOf(n, bits, height).filter((kind) => fitting.includes(kind));
  if (own.length > 0 && columns === groups) return own;
  return foreign(`tensor '${entry.name}' of ${ctx.dir} does not have the shape that its module needs`, {
    got: `[${height}, ${columns}]`,
    expected: `[${packedWords(n, bits, fitting[0] as WordPacking)}, ${groups}]`,
  });
}

/** U8 [N, G]. */
function readZeros(
  ctx: ForeignContext,
  name: string,
  { bits, n, groups, packing }: { bits: number; n: number; groups: number; packing: WordPacking },
): Uint8Array<ArrayBuffer> {
  const perWord = packing === 'dense' ? 0 : Math.floor(32 / bits);
  const data = typed<Int32Array>(ctx.weights.tensor(`${name}.weight_zero_point`));
  const out = new Uint8Array(n * groups);
  for (let row = 0; row < n; row++)
    for (let g = 0; g < groups; g++) out[row * groups + g] = fieldOf(data, g, groups, row, bits, perWord);
  return out;
}

function readGroupIndex(ctx: ForeignContext, name: string, k: number, groups: number): Int32Array {
  const entry = required(ctx, `${name}.weight_g_idx`, ['I32'], 1);
  requireShape(ctx, entry, [k], 'a group for each input feature');
  return namedGroups(ctx, entry.name, groups);
}
