import type { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import type { PackedRow } from '../../pack/pack-checkpoint.js';
import type { Run } from '../run.js';

/** Tells by how many ranks a pack for one can be shared; nothing of targets whose readers cut tensors themselves. */
export async function tellSharing(
  input: CanonicalCheckpoint,
  rows: readonly PackedRow[],
  target: string,
  run: Run,
): Promise<void> {
  const { packTarget } = await import('../../pack/targets/index.js');
  if (!packTarget(target).tensorParallel) return;
  const { printSharing, sharingOf } = await import('../../pack/share-blocks.js');
  const packed = rows.filter(({ action }) => action !== 'fallback').map(({ name }) => name);
  const sharing = sharingOf(input, packed);
  run.report.event('sharing', { ...sharing }, printSharing(sharing));
}
