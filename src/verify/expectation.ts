import type { PackedModule } from '../../formats/artifact/schema.js';
import { groupSizeOf } from '../core/granularity.js';
import { quantType } from '../core/quant-type.js';
import type { LayoutTensor, VerifiedLayout } from './layout.js';
import { layoutOf } from './layouts/index.js';
import { rankPrefixes } from './tile-rules.js';

/** A tensor that a packed module must have. */
export interface Expected extends Omit<LayoutTensor, 'suffix'> {
  readonly name: string;
}

/** A module as its layout sees it, or why the layout cannot hold it. */
export interface Expectation {
  readonly tensors: readonly Expected[];
  /** Clauses; empty when the layout can hold the module. */
  readonly problems: readonly string[];
}

/** The tensors that `name` must have, and nothing else. */
export function expectation(name: string, module: PackedModule): Expectation {
  const layout = layoutOf(module.layout);
  const problems = [...soundness(module, layout)];
  if (layout && problems.length === 0) problems.push(...layout.problems(module));
  if (!layout || problems.length > 0) return { tensors: [], problems };
  const tensors = rankPrefixes(name, module).flatMap((prefix) =>
    layout.tensors(module).map(({ suffix, ...rest }) => ({ name: `${prefix}.${suffix}`, ...rest })),
  );
  return { tensors, problems };
}

/** Contradictions inside the manifest's entry, whatever the layout. */
function* soundness(module: PackedModule, layout: VerifiedLayout | undefined): Generator<string> {
  const [n, k] = module.shape;
  const [blockN, blockK] = module.scales.block;
  try {
    quantType(module.type);
  } catch {
    yield `'${module.type}' is not a quantized type`;
    return;
  }
  if (!layout) yield `'${module.layout}' is not a layout`;
  if (k % groupSizeOf(module.granularity, k) !== 0) yield `its groups do not divide K = ${k}`;
  else if (blockK !== groupSizeOf(module.granularity, k) || n % blockN !== 0)
    yield `scale blocks of [${blockN}, ${blockK}] contradict the granularity or N = ${n}`;
  const zeros = module.zeros.kind === 'int' || module.zeros.kind === 'float';
  if (zeros !== (module.canonical.zeros !== undefined)) yield 'zeros and the canonical hash of zeros contradict';
  if (module.scales.global !== (module.canonical.global_scale !== undefined))
    yield 'scales.global and the canonical hash of global_scale contradict';
  if (module.layout !== 'dense' && module.canonical.weight !== undefined) yield 'only a dense module has a weight hash';
  if (module.packing !== undefined && !layout?.wholeWords)
    yield `layout ${module.layout} has one packing, not words of ${module.packing} codes`;
  const { activations } = module;
  if (activations && !layout?.activations) yield `layout ${module.layout} is for activations of 16 bits`;
  if (activations && (activations.bits.length !== k / 128 || activations.clip.length !== k / 128))
    yield `${activations.bits.length} blocks of activations are not K / 128 = ${k / 128}`;
  if ((module.inputMost !== undefined) !== (layout?.input === true))
    yield layout?.input
      ? 'lpq.json does not state the largest magnitude of its input'
      : `layout ${module.layout} stores no scale of the input, but lpq.json states its largest magnitude`;
  if (layout?.tiles) return;
  if (`${module.padded}` !== `${[n, k]}`)
    yield `a padded shape of [${module.padded}] does not suit [${n}, ${k}] in layout ${module.layout}`;
  if (module.ranks) yield `layout ${module.layout} has no tensors for each rank`;
}
