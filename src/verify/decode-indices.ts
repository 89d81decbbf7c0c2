import type { PackedModule } from '../../formats/artifact/schema.js';
import { typed } from '../../native/binding.js';
import { groupLength } from '../core/granularity.js';
import type { Decoded } from './decode.js';

/** g_idx (`suffix`) that nothing in the canonical checkpoint stands behind must be k div g; any g_idx must name groups. */
export function checkIndices(name: string, suffix: string, module: PackedModule, decoded: Decoded): void {
  const [, k] = module.shape;
  const size = groupLength(module.granularity, k);
  const inspect = (what: string, ok: (v: number, i: number) => boolean) => {
    if (!decoded.group) return;
    const values = typed<Int32Array>(decoded.group);
    const at = values.findIndex((value, i) => !ok(value, i));
    if (at < 0) return;
    const count = values.reduce((sum, value, i) => sum + (ok(value, i) ? 0 : 1), 0);
    const wrong = { count, row: 0, column: at, got: values[at]!, expected: Math.floor(at / size) };
    decoded.problems.push({ tensor: `${name}.${suffix}`, wrong, what });
  };
  if (module.canonical.g_idx === undefined)
    inspect('an input feature is in the wrong group', (v, i) => v === Math.floor(i / size));
  else inspect('an input feature is in no group', (v) => v >= 0 && v < k / size);
  const seen = new Uint8Array(k);
  const permutation = decoded.parts.get('permutation');
  const first = (v: number) => v >= 0 && v < k && seen[v]++ === 0;
  if (permutation && !typed<Int32Array>(permutation).every(first))
    decoded.problems.push({
      tensor: `${name}.permutation`,
      wrong: { count: 1, row: 0, column: 0, got: 0, expected: 0 },
      what: 'it is not a permutation of the input features',
    });
}
