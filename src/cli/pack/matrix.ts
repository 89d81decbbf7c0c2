import { openQuantized } from '../../../formats/canonical/source.js';
import { planPack } from '../../pack/plan.js';
import type { Run } from '../run.js';
import { columnOf, matrixRows, printMatrix, targetNames } from './target-matrix.js';

/** `pack --dry-run --target all`, or a list: every module by every target. */
export async function printPackMatrix(
  dir: string,
  targets: string,
  { ranks, experts }: { readonly ranks: number; readonly experts: number },
  run: Run,
): Promise<void> {
  const input = await openQuantized(dir, { blank: true });
  try {
    const names = input.moduleNames();
    const plan = (target: string) => planPack(input, target, ranks, experts);
    const columns = targetNames(targets).map((target) => columnOf(target, () => plan(target)));
    run.report.result(
      { command: 'pack', dryRun: true, ranks, targets: matrixRows(columns, names) },
      printMatrix(columns, names),
    );
  } finally {
    input.close();
  }
}
