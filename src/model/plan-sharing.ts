import { type Config, settingNumber } from './config.js';
import type { AttentionTable } from './tables/attention.js';

/** Whose keys and values a block reads, and whether others read its own (AttentionPlan). */
export interface Sharing {
  readonly reads?: number;
  readonly kept?: number;
}

/** How many blocks come last that read the keys and values of another. Throws LPQ_CONFIG. */
function sharing(config: Config, { sharedKv }: AttentionTable, layers: number): number {
  if (sharedKv === undefined) return 0;
  const count = settingNumber(config, sharedKv);
  if (Number.isSafeInteger(count) && count >= 0 && count < layers) return count;
  throw config.error(
    (sharedKv as { keys: readonly string[] }).keys[0] as string,
    'is out of range',
    count,
    `an integer from 0 to ${layers - 1}, for the first block has keys of its own`,
  );
}

/** Whether a block reads the keys and values of another. */
export function readsAnother(config: Config, table: AttentionTable, index: number, layers: number): boolean {
  return index >= layers - sharing(config, table, layers);
}

/** `slides`: whether a block has a window. A block reads those of the last block of its kind that has some. Throws LPQ_CONFIG. */
export function sharingOf(
  config: Config,
  table: AttentionTable,
  index: number,
  layers: number,
  slides: (index: number) => boolean,
): Sharing {
  const first = layers - sharing(config, table, layers);
  if (first === layers) return {};
  const kind = slides(index);
  let source = first - 1;
  while (source >= 0 && slides(source) !== kind) source--;
  if (index < first) {
    const asked = Array.from({ length: layers - first }, (_, i) => slides(first + i)).includes(kind);
    return source === index && asked ? { kept: index } : {};
  }
  if (source >= 0) return { reads: source };
  throw config.error(
    'layer_types',
    `has no block like block ${index} before block ${first} whose keys and values it could read`,
    kind ? 'sliding_attention' : 'full_attention',
    'a block of its kind among those with keys of their own',
  );
}

/** Sizes of one block's attention. */
export interface AttentionSizes {
  readonly headDim: number;
  readonly kvHeads: number;
  readonly keysAsValues: boolean;
}

/** `common`: what holds where nothing else is said. Throws LPQ_CONFIG for a setting of a block that no class reads block by block. */
export function attentionSizes(
  config: Config,
  { full }: AttentionTable,
  index: number,
  sliding: boolean,
  common: Omit<AttentionSizes, 'keysAsValues'>,
): AttentionSizes {
  if (!full) return { ...common, keysAsValues: false };
  const keysAsValues = !sliding && config.flag(full.keysAsValues);
  const written = config.object(full.byBlock);
  if (written) {
    const own = written.object(String(index));
    for (const key of Object.keys(own?.raw ?? {}))
      if (key !== 'head_dim' && key !== 'num_key_value_heads')
        throw config.error(
          full.byBlock,
          `has a setting of block ${index} that lpq does not know`,
          key,
          'head_dim or num_key_value_heads',
        );
    return {
      headDim: own?.count(['head_dim'], common.headDim) ?? common.headDim,
      kvHeads: own?.count(['num_key_value_heads'], common.kvHeads) ?? common.kvHeads,
      keysAsValues,
    };
  }
  if (sliding) return { ...common, keysAsValues };
  const headDim = settingNumber(config, full.headDim);
  const kvHeads = config.flag(full.keysAsValues) ? config.count([full.kvHeads], common.kvHeads) : common.kvHeads;
  return { headDim, kvHeads, keysAsValues };
}
