import { typed } from '../../native/binding.js';
import { tell } from '../../src/core/activity.js';
import { LpqError } from '../../src/core/error.js';
import { patternsOf } from '../../src/core/patterns.js';
import type { ModuleDeclaration, Part } from '../canonical/tensors.js';
import { transposeFloats, transposeHalves, transposeWords, wordsToStream } from '../foreign/bits.js';
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
import { type GptqConfig, readGptqConfig } from './config.js';
import { GPTQ_BITS, words, type ZeroConvention } from './layout.js';
import { addSamples, conventionByMeans, sampleZeros, storedZeros, symmetricUnder, type ZeroSample } from './zeros.js';

/** A GPTQ linear whose tensors fit together, before its zero points are understood. */
export interface GptqLinear {
  readonly name: string;
  readonly bits: number;
  readonly n: number;
  readonly k: number;
  readonly groups: number;
  readonly groupSize: number | undefined;
  readonly sym: boolean;
  /** What the configuration says of the zero points. */
  readonly stated: ZeroConvention;
  readonly scaleDtype: 'f16' | 'bf16' | 'f32';
  /** I32 [K] where a feature's group is not k div the group size. */
  readonly gIdx: Int32Array | undefined;
  readonly tensors: readonly string[];
}

/** How the zero points of a checkpoint are to be read, and why. */
export interface ZeroReading {
  readonly convention: ZeroConvention;
  readonly stated: ZeroConvention;
  /** words: symmetric zero points show it; means: the weights' averages do; config: nothing but the settings. */
  readonly by: 'words' | 'means' | 'config';
}

/** Linears whose codes and zero points are averaged; more would tell no more. */
const SAMPLED = 24;

/** All GPTQ linears of a checkpoint. Throws LPQ_CONFIG for settings that cannot be used. */
export function gptqModules(ctx: ForeignContext): ForeignModules & { readonly zeros: ZeroReading | undefined } {
  const { linears, problems } = gptqLinears(ctx);
  const readings = readZeros(ctx, linears);
  const byName = new Map(linears.map((linear) => [linear.name, linear]));
  const { modules, problems: more } = readEach(byName.keys(), (name) =>
    gptqModule(ctx, byName.get(name) as GptqLinear, readings.get(name) as ZeroReading),
  );
  return { modules, problems: [...problems, ...more], zeros: mostly([...readings.values()]) };
}

/** Shapes, bits and groups of every linear, checked against each other and against the settings. */
export function gptqLinears(ctx: ForeignContext): { linears: GptqLinear[]; problems: LpqError[] } {
  const base = readGptqConfig(ctx.where, ctx.settings);
  const linears: GptqLinear[] = [];
  const problems: LpqError[] = [];
  for (const name of stems(ctx.weights, 'qweight', 'qzeros')) {
    tell(`reading ${name}`);
    try {
      linears.push(gptqLinear(ctx, name, ruled(ctx, name, base)));
    } catch (error) {
      if (!(error instanceof LpqError)) throw error;
      problems.push(error);
    }
  }
  return { linears, problems };
}

/** GPTQModel's `dynamic`: the first rule whose pattern matches the name overrides keys; '-:' leaves modules out. */
function ruled(ctx: ForeignContext, name: string, base: GptqConfig): GptqConfig {
  const { dynamic } = ctx.settings;
  if (typeof dynamic !== 'object' || dynamic === null) return base;
  // What is stored as a quantized module is one, whatever rule leaves it out.
  const rules = Object.keys(dynamic).filter((rule) => !rule.startsWith('-:'));
  const patterns = patternsOf(dynamic, `${ctx.where}: 'dynamic'`, () => rules.map((rule) => rule.replace(/^\+:/, '')));
  const rule = rules[patterns.first(name)];
  if (rule === undefined) return base;
  const change = (dynamic as Readonly<Record<string, unknown>>)[rule];
  return readGptqConfig(`${ctx.where}.dynamic`, { ...ctx.settings, ...(change as object) });
}

function gptqLinear(ctx: ForeignContext, name: string, config: GptqConfig): GptqLinear {
  const qweight = required(ctx, `${name}.qweight`, ['I32', 'U32'], 2);
  const scales = required(ctx, `${name}.scales`, FLOAT_DTYPES, 2);
  const qzeros = required(ctx, `${name}.qzeros`, ['I32', 'U32'], 2);
  const { bits } = config;
  const [rows, n] = qweight.shape as [number, number];
  const [groups, scaleColumns] = scales.shape as [number, number];
  const zeroWidth = qzeros.shape[1] as number;
  const gIdxName = `${name}.g_idx`;
  const indexed = ctx.weights.has(gIdxName);
  if (!indexed && config.descAct) required(ctx, gIdxName, ['I32'], 1);
  const k = indexed ? (required(ctx, gIdxName, ['I32', 'I64'], 1).shape[0] as number) : (rows * 32) / bits;
  if (scaleColumns === n * 8 && zeroWidth === n)
    foreign(`module '${name}' of ${ctx.dir} is not stored in GPTQ's form`, {
      got: `qweight [${qweight.shape}], scales [${scales.shape}]`,
      expected: `qweight [K x bits / 32, ${scaleColumns}]`,
      hint: "Its qweight is [K, N/8], AWQ's: correct quant_method in config.json.",
    });
  requireShape(ctx, scales, [groups, n], `one column for each of qweight's ${n}`);
  const shown = GPTQ_BITS.find((each) => words(n, each) === zeroWidth && words(k, each) === rows);
  if (words(k, bits) !== rows || words(n, bits) !== zeroWidth) {
    if (shown !== undefined && indexed)
      foreign(`module '${name}' of ${ctx.dir} does not have the number of bits that the settings state`, {
        got: `${shown}-bit tensors`,
        expected: `${bits} bits, as ${ctx.where} says`,
        hint: `Correct bits in ${ctx.where}.`,
      });
    requireShape(ctx, qzeros, [groups, words(n, bits)], `ceil(N x bits / 32) of N = ${n}, ${bits} bits`);
    requireShape(ctx, qweight, [words(k, bits), n], `ceil(K x bits / 32) of K = ${k}, ${bits} bits`);
  }
  requireShape(ctx, qzeros, [groups, words(n, bits)], `a row for each of the ${groups} groups of scales`);
  const size = config.granularity.kind === 'channel' ? k : config.granularity.size;
  if (groupsIn(ctx, name, size, k) !== groups)
    foreign(`module '${name}' of ${ctx.dir} does not have the number of groups that the settings state`, {
      got: `${groups} rows of scales`,
      expected: `${k / size}: ${k} input features in groups of ${size}`,
      ...(Number.isInteger(k / groups) && { hint: `If its groups are of ${k / groups}, correct group_size.` }),
    });
  return {
    name,
    bits,
    n,
    k,
    groups,
    groupSize: config.granularity.kind === 'channel' ? undefined : size,
    sym: config.sym,
    stated: config.convention,
    scaleDtype: FLOATS[scales.dtype as keyof typeof FLOATS],
    gIdx: indexed ? otherGroups(namedGroups(ctx, gIdxName, groups), k, size) : undefined,
    tensors: [qweight.name, qzeros.name, scales.name, ...(indexed ? [gIdxName] : [])],
  };
}

/** `index`, where a feature's group is not k div the group size. */
function otherGroups(index: Int32Array, k: number, size: number): Int32Array | undefined {
  return index.length === k && index.every((group, i) => group === Math.floor(i / size)) ? undefined : index;
}

/**
 * How each linear's zero points are to be read. Symmetric words are certain, linear by linear. Asymmetric ones follow
 * the means over the whole checkpoint where those leave no doubt, else the settings.
 */
export function readZeros(ctx: ForeignContext, linears: readonly GptqLinear[]): Map<string, ZeroReading> {
  const readings = new Map<string, ZeroReading>();
  const open: GptqLinear[] = [];
  for (const linear of linears) {
    const { name, sym, bits, groups, n, stated } = linear;
    tell(`zero points of ${name}`);
    const convention = sym ? symmetricUnder(int32(ctx, `${name}.qzeros`), groups, n, bits) : undefined;
    if (convention) readings.set(name, { convention, stated, by: 'words' });
    else open.push(linear);
  }
  // Above 4 bits a step is too small against the spread of the weights for their mean to tell.
  const telling = open.filter(({ bits }) => bits <= 4);
  const step = Math.max(1, Math.ceil(telling.length / SAMPLED));
  const samples: ZeroSample[] = [];
  for (let i = 0; i < telling.length; i += step) {
    const linear = telling[i] as GptqLinear;
    tell(`zero points of ${linear.name}`, i, telling.length);
    const size = linear.groupSize ?? linear.k;
    const { gIdx } = linear;
    const group = gIdx ? (k: number) => gIdx[k] as number : (k: number) => Math.floor(k / size);
    samples.push(sampleZeros(int32(ctx, `${linear.name}.qweight`), int32(ctx, `${linear.name}.qzeros`), group, linear));
  }
  const seen = conventionByMeans(addSamples(samples));
  for (const { name, stated } of open)
    readings.set(name, seen ? { convention: seen, stated, by: 'means' } : { convention: stated, stated, by: 'config' });
  return readings;
}

function mostly(readings: readonly ZeroReading[]): ZeroReading | undefined {
  return readings.find(({ convention, stated }) => convention !== stated) ?? readings[0];
}

function gptqModule(ctx: ForeignContext, linear: GptqLinear, reading: ZeroReading): ForeignModule {
  const { name, bits, n, k, groups, groupSize, gIdx, scaleDtype } = linear;
  const middle = 2 ** (bits - 1);
  const trueZeros = (): Uint8Array<ArrayBuffer> => {
    const stored = storedZeros(int32(ctx, `${name}.qzeros`), groups, n, bits);
    const shift = reading.convention === 'v1' ? 1 : 0;
    const out = new Uint8Array(n * groups);
    // A stored -1 of v1 is a zero point of 0: one that reads it as 2^bits is out of range.
    for (let g = 0; g < groups; g++)
      for (let row = 0; row < n; row++)
        out[row * groups + g] = ((stored[g * n + row] as number) + shift) & (2 ** bits - 1);
    return out;
  };
  const constant = linear.sym && reading.by === 'words';
  const contradictions: string[] = [];
  if (reading.convention !== reading.stated)
    contradictions.push(
      `${ctx.where} states ${named(reading.stated)}, but ${reading.by === 'words' ? 'its symmetric zero points are stored as in' : 'the means of the weights show'} ${named(reading.convention)}, so lpq reads them that way`,
    );
  if (linear.sym && !constant)
    contradictions.push(
      'the settings say sym, but its zero points are not all the middle one: kernels that ignore them compute wrong results',
    );
  const declaration: ModuleDeclaration = {
    type: `u${bits}`,
    shape: [n, k],
    granularity: groupSize === undefined ? { kind: 'channel' } : { kind: 'group', size: groupSize },
    scales: { dtype: scaleDtype, block: [1, groupSize ?? k], global: false },
    zeros: constant ? { kind: 'const', value: middle } : { kind: 'int', dtype: 'u8' },
    ...inPlace(ctx),
    groupIndex: gIdx !== undefined,
  };
  return {
    name,
    declaration,
    tensors: linear.tensors,
    notes: [],
    contradictions,
    decode(part: Part): ArrayBufferView {
      if (part === 'codes') {
        const qweight = int32(ctx, `${name}.qweight`);
        return wordsToStream(transposeWords(qweight, words(k, bits), n), n, k, bits);
      }
      if (part === 'scales') {
        const tensor = ctx.weights.tensor(`${name}.scales`);
        return scaleDtype === 'f32'
          ? transposeFloats(typed<Float32Array>(tensor), groups, n)
          : transposeHalves(typed<Uint16Array>(tensor), groups, n);
      }
      if (part === 'zeros') return trueZeros();
      if (part === 'g_idx' && gIdx) return gIdx;
      throw new LpqError('LPQ_INTERNAL', `a GPTQ module has no ${part}`);
    },
  };
}

/** gptq (v1) or gptq_v2, as checkpoint_format says it. */
function named(convention: ZeroConvention): string {
  return convention === 'v1' ? 'gptq (zero points minus one)' : 'gptq_v2 (zero points as they are)';
}

function int32(ctx: ForeignContext, name: string): Int32Array {
  return typed<Int32Array>(ctx.weights.tensor(name, 'i32'));
}
