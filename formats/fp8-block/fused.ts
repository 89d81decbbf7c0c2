import { type ForeignContext, foreign, required, requireShape } from '../foreign/module.js';
import { type ScaleGrid, scaleGrid } from '../foreign/scales.js';

/** FP8 matrices of all experts in one tensor [E, rows, columns], each in blocks of its own. */
export interface FusedFp8 {
  /** model.language_model.layers.0.mlp.experts.gate_up_proj */
  readonly name: string;
  /** Its scales: NAME_scale_inv or NAME_scale. */
  readonly scales: string;
  readonly experts: number;
  readonly rows: number;
  readonly columns: number;
  /** Of one expert's matrix, as it lies. */
  readonly grid: ScaleGrid;
}

/** Every FP8 tensor of all experts, with scales of the same blocks as other weights. Throws LPQ_FOREIGN. */
export function fusedFp8(ctx: ForeignContext, block: readonly [number, number] | undefined): FusedFp8[] {
  return fusedNames(ctx).map((name) => {
    const [experts, rows, columns] = ctx.weights.shape(name) as [number, number, number];
    const scales = ctx.weights.has(`${name}_scale`) ? `${name}_scale` : `${name}_scale_inv`;
    const entry = required(ctx, scales, ['F32', 'BF16', 'F16', 'F8_E8M0'], 3);
    const grid = scaleGrid(rows, columns, block ?? [rows, columns]);
    if (!block && `${entry.shape.slice(1)}` !== '1,1')
      foreign(`tensor '${scales}' of ${ctx.dir} has scales that no weight_block_size explains`, {
        got: `[${entry.shape}]`,
        expected: `weight_block_size in ${ctx.where}, or [${experts}, 1, 1]`,
      });
    requireShape(
      ctx,
      entry,
      [experts, grid.rows, grid.columns],
      `a scale for each block of an expert's [${rows}, ${columns}]`,
    );
    return { name, scales, experts, rows, columns, grid };
  });
}

/** Names of the tensors that hold all experts in FP8. */
export function fusedNames({ weights }: Pick<ForeignContext, 'weights'>): string[] {
  return [...weights.names()].filter(
    (name) => weights.dtype(name) === 'F8_E4M3' && weights.shape(name).length === 3 && !/_scale(_inv)?$/.test(name),
  );
}
