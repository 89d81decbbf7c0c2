import type { ArtifactManifest } from '../../formats/artifact/schema.js';
import type { GgufValue } from '../../formats/gguf/metadata.js';
import type { GgufModel } from '../model/gguf/model.js';
import { type Entry, fileTypeOf, type HeaderTensor } from './gguf-header.js';
import { expectedTokenizer } from './gguf-tokenizer.js';

type Json = Readonly<Record<string, unknown>>;

const u32 = (value: number): GgufValue => ({ type: 'u32', value });
const string = (value: string): GgufValue => ({ type: 'string', value });

/** What blocks were made from, as the file says: the codes, the quantized weights, or those of the source. */
export type BlocksFrom = 'codes' | 'quantized' | 'source';

/** Every key that the file must have, in its order, for these tensors. Throws as modelPlan and expectedTokenizer. */
export function expectedEntries(
  dir: string,
  config: Json,
  model: GgufModel,
  { provenance }: ArtifactManifest,
  tensors: readonly HeaderTensor[],
  from: BlocksFrom,
  importance: readonly Entry[],
  scalars: readonly Entry[],
): Entry[] {
  const [architecture, ...entries] = model.metadata;
  return [
    architecture as Entry,
    ['general.type', string('model')],
    ['general.name', string(provenance.source.name)],
    ['general.quantized_by', string(`lpq ${provenance.lpq}`)],
    ['general.file_type', u32(fileTypeOf(mostUsed(tensors)))],
    ['general.quantization_version', u32(2)],
    ['lpq.blocks_from', string(from)],
    ...importance,
    ...entries,
    ...scalars,
    ...expectedTokenizer(dir, config, model.plan.vocab),
  ];
}

/** The type of most weights in the matrices of the blocks; among equals the first in the file. */
function mostUsed(tensors: readonly HeaderTensor[]): string {
  const weights = new Map<string, number>();
  for (const { name, type, dims } of tensors)
    if (/^blk\./.test(name) && dims.length >= 2)
      weights.set(type, (weights.get(type) ?? 0) + dims.reduce((product, size) => product * size, 1));
  const most = Math.max(0, ...weights.values());
  return [...weights].find(([, count]) => count === most)?.[0] ?? 'f32';
}
