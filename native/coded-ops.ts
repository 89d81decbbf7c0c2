import { type NativeRuntime, type OpParams, readTyped, type Tensor } from './binding.js';

/** What native/ops/coded.h asks of a weight's codes. */
export interface CodedShape {
  readonly n: number;
  readonly k: number;
  /** Columns of a scale, a multiple of 32; 0: one a row. */
  readonly group: number;
  readonly zero: number;
  readonly global: number;
}

/** Products over codes of 1 to 8 bits on the CPU, part of the operation table (ops.ts). */
export const codedOps = {
  /** The block that linearCodes reads, of codes U8 [N,K], scales and zeros [N,G], order I32 [2,K] (native/ops/coded.h). Waits for it. */
  layCodes: async (
    rt: NativeRuntime,
    t: { codes: Tensor; scales: Tensor; zeros?: Tensor | undefined; order?: Tensor | undefined },
    type: OpParams,
    shape: CodedShape,
  ): Promise<Tensor> => {
    const params = { ...type, ...shape, hasZeros: t.zeros !== undefined, ordered: t.order !== undefined };
    const bytes = rt.allocate('i64', [1]);
    rt.enqueue('coded_bytes', [], [bytes], params);
    const [count] = await readTyped<BigInt64Array>(rt, bytes);
    bytes.dispose();
    const block = rt.allocate('u8', [Number(count)]);
    rt.enqueue(
      'lay_codes',
      [t.codes, t.scales, ...[t.zeros, t.order].filter((each) => each !== undefined)],
      [block],
      params,
    );
    await rt.sync();
    return block;
  },

  /** y = x Wᵀ + bias, all f32. */
  linearCodes: (rt: NativeRuntime, x: Tensor, block: Tensor, bias: Tensor | undefined, y: Tensor) =>
    rt.enqueue('linear_codes', bias ? [x, block, bias] : [x, block], [y]),
} as const;
