import { createHash } from 'node:crypto';
import type { TensorSpec } from '../formats/safetensors/header.js';
import { allocate, type DType, type NativeRuntime, type Tensor } from '../native/binding.js';
import { LpqError } from '../src/core/error.js';
import { architectureOf } from '../src/model/architectures/index.js';
import { buildGraph } from '../src/model/graph.js';
import { planModel } from '../src/model/plan.js';
import type { Block } from '../src/model/program.js';
import { type ByteDraw, benchOps, type WeightDraw } from './ops.js';
import type { ModelShape } from './shapes.js';

/** How the bytes of a tensor are made: bf16 by rows, or bytes as they come. */
export type Draw = { readonly floats: WeightDraw } | { readonly bytes: ByteDraw };

/** A tensor of a synthetic checkpoint. */
export interface DrawnTensor {
  readonly spec: TensorSpec;
  readonly draw: (seed: number) => Draw;
  /** Weights that it stands for. */
  readonly parameters: number;
}

const product = (dims: readonly number[]) => dims.reduce((a, b) => a * b, 1);

/** The tensors of a shape with this config. Throws LPQ_CONFIG, LPQ_USAGE for low-bit weights of another kind than GPT-OSS has. */
export function tensorsOf(shape: ModelShape, config: Record<string, unknown>): DrawnTensor[] {
  const { quantization_config: settings, ...wide } = config as { quantization_config?: { quant_method?: string } };
  const architecture = architectureOf(wide, shape.name);
  const graph = buildGraph(planModel(architecture, wide, shape.name));
  const floats = (tensors: Iterable<readonly [string, readonly number[]]>) =>
    [...tensors].map(([name, dims]) => floatTensor(name, dims, shape.blocks));
  if (settings === undefined) return [graph.outer, ...graph.blocks.map(({ tensors }) => tensors)].flatMap(floats);
  if (settings.quant_method !== 'mxfp4')
    throw new LpqError('LPQ_USAGE', `a benchmark makes no weights of ${settings.quant_method}`, {
      expected: 'quantization_config with quant_method mxfp4, or none',
      hint: 'Take quantization_config out of config.json.',
    });
  const { fused = [], names } = architecture.experts ?? {};
  const published = fused.map(({ tensor, bias, parts }) => ({
    ...{ tensor, bias },
    linears: parts.map((part) => names?.[part] as string),
  }));
  return [
    ...floats(graph.outer),
    ...graph.blocks.flatMap((block) => {
      const { rest, made } = inMxfp4(block, published, shape.blocks);
      return [...floats(rest), ...made];
    }),
  ];
}

function floatTensor(name: string, dims: readonly number[], blocks: number): DrawnTensor {
  const spec = { name, dtype: 'BF16', shape: dims } as const;
  return { spec, draw: (seed) => ({ floats: drawOf(name, dims, blocks, seed) }), parameters: product(dims) };
}

interface Published {
  readonly tensor: string;
  readonly bias?: string | undefined;
  /** Names of an expert's linears that share it. */
  readonly linears: readonly string[];
}

/** Codes of a block of an MXFP4 weight, with one scale. */
const MX = 32;

/** The experts of a block as GPT-OSS publishes them, all of them in one tensor of codes and one of scales, and the block's other tensors. */
function inMxfp4(
  { tensors }: Block,
  published: readonly Published[],
  blocks: number,
): { rest: [string, readonly number[]][]; made: DrawnTensor[] } {
  const rest = new Map(tensors);
  const made: DrawnTensor[] = [];
  for (const { tensor, bias, linears } of published) {
    const patterns = linears.map((name) => new RegExp(`^(.*)${name.replace('{expert}', '\\d+')}\\.(weight|bias)$`));
    const own = [...tensors.keys()].filter((name) => patterns.some((pattern) => pattern.test(name)));
    const weights = own.filter((name) => name.endsWith('.weight'));
    const first = weights[0];
    if (first === undefined) continue;
    for (const name of own) rest.delete(name);
    const prefix = patterns.map((pattern) => pattern.exec(first)?.[1]).find((found) => found !== undefined);
    const [n, k] = tensors.get(first) as readonly [number, number];
    const experts = weights.length / linears.length;
    const rows = n * linears.length;
    const name = `${prefix}${tensor}`;
    made.push(...mxfp4Tensors(name, [experts, rows, k], blocks));
    if (bias && own.length > weights.length) made.push(floatTensor(`${prefix}${bias}`, [experts, rows], blocks));
  }
  return { rest: [...rest], made };
}

/** Codes drawn evenly of the sixteen of e2m1, whose root mean square is 2.9, and scales around what gives them fan-in scale. */
function mxfp4Tensors(name: string, [experts, n, k]: readonly [number, number, number], blocks: number): DrawnTensor[] {
  const std = writesToStream(name, blocks) / Math.sqrt(k);
  const middle = 127 + Math.round(Math.log2(std / 2.9));
  const bytes = (
    of: string,
    shape: readonly number[],
    least: number,
    most: number,
    parameters: number,
  ): DrawnTensor => ({
    spec: { name: of, dtype: 'U8', shape },
    draw: (seed) => ({ bytes: { seed: hash(`${seed}/${of}`), least, most } }),
    parameters,
  });
  return [
    bytes(`${name}_blocks`, [experts, n, k / MX, MX / 2], 0, 255, experts * n * k),
    bytes(`${name}_scales`, [experts, n, k / MX], middle - 1, middle + 1, 0),
  ];
}

/** Memory that pieces are drawn into, one after another. */
export class PieceMemory {
  private readonly memory = new Map<DType, Tensor>();

  constructor(private readonly size: number) {}

  /**
   * Bytes [at, at + length) of a tensor, at most `size` and in whole units (unitOf), over memory that the next piece is drawn into.
   */
  async draw(rt: NativeRuntime, { shape }: Shaped, draw: Draw, at: number, length: number): Promise<Uint8Array> {
    const whole = this.of('bytes' in draw ? 'u8' : 'bf16');
    if ('bytes' in draw) {
      const piece = whole.view([length]);
      benchOps.synthBytes(rt, piece, draw.bytes, at);
      piece.dispose();
    } else {
      const row = rowBytes(shape);
      const piece = whole.view(shape.length === 1 ? shape : [length / row, row / 2]);
      benchOps.synthWeights(rt, piece, draw.floats, at / row);
      piece.dispose();
    }
    await rt.sync();
    return whole.bytes(0, length);
  }

  dispose(): void {
    for (const tensor of this.memory.values()) tensor.dispose();
  }

  private of(dtype: 'u8' | 'bf16'): Tensor {
    const known = this.memory.get(dtype) ?? allocate(dtype, [dtype === 'u8' ? this.size : this.size / 2]);
    this.memory.set(dtype, known);
    return known;
  }
}

type Shaped = Pick<TensorSpec, 'shape'>;

/** Bytes of the least piece that can be drawn. */
export function unitOf({ shape }: Shaped, draw: Draw): number {
  return 'bytes' in draw ? 8 : rowBytes(shape);
}

const rowBytes = (shape: readonly number[]) => 2 * (shape.at(-1) as number);

const writesToStream = (name: string, blocks: number): number =>
  /\.(o_proj|down_proj)(\.weight)?$/.test(name) ? 1 / Math.sqrt(2 * blocks) : 1;

/**
 * How a tensor of this name is drawn. Matrices have fan-in scale, so that activations stay near 1 through any number of
 * blocks; the two that write to the residual stream are smaller by the square root of their number, as they are
 * initialised. Norm weights single out a few channels, the same ones in all blocks: that makes the outliers of the
 * activations that quantizers have to cope with.
 */
function drawOf(name: string, dims: readonly number[], blocks: number, seed: number): WeightDraw {
  const own = hash(`${seed}/${name}`);
  const plain = { seed: own, columnSeed: own, rowSpread: 0, columnSpread: 0, outlierShare: 0, outlierGain: 1 };
  if (dims.length === 1) {
    if (name.endsWith('.bias')) return { ...plain, std: 0.1 };
    const shared = { columnSeed: hash(`${seed}/residual`), columnSpread: 0.2, outlierShare: 1 / 256, outlierGain: 6 };
    return { ...plain, mean: 1, std: 0.05, ...shared };
  }
  if (/embed/.test(name)) return { ...plain, std: 0.02, rowSpread: 0.2 };
  const std = writesToStream(name, blocks) / Math.sqrt(dims[1] as number);
  return { ...plain, std, rowSpread: 0.25, columnSpread: 0.25, outlierShare: 1 / 512, outlierGain: 3 };
}

/** 48 bits of a text's hash. */
function hash(text: string): number {
  return createHash('sha256').update(text).digest().readUIntBE(0, 6);
}
