import { checkpointPlace } from '../../../formats/gguf/source/places.js';
import { attentions, type GgufSubject } from './facts.js';
import type { TensorNames } from './model.js';

/** A tensor that llama.cpp wants in a block that shares keys and values, and does not read: zeros. */
export interface Unread {
  /** In the file, and in a checkpoint that has it. */
  readonly tensor: string;
  readonly name: string;
  readonly type: 'f32' | 'f16';
  readonly shape: readonly number[];
}

/** Those that the checkpoint lacks. */
export function unreadOf({ plan, names }: GgufSubject, tensors: TensorNames): readonly Unread[] {
  const { sharing = [] } = names;
  return attentions(plan).flatMap(([index, { reads, headDim, kvHeads }]) => {
    if (reads === undefined) return [];
    const made = sharing.map((part): Unread => {
      const tensor = `blk.${index}.${part}.weight`;
      const norm = part.endsWith('_norm');
      const shape = norm ? [headDim] : [kvHeads * headDim, plan.hidden];
      return { tensor, name: checkpointPlace(names, tensor)?.to ?? '', type: norm ? 'f32' : 'f16', shape };
    });
    return made.filter(({ name }) => !tensors.has(name));
  });
}

/** What a user is told of them; undefined where there are none. */
export function unreadNote(unread: readonly Unread[]): string | undefined {
  if (unread.length === 0) return undefined;
  const blocks = [...new Set(unread.map(({ tensor }) => tensor.split('.')[1]))];
  return `Blocks ${blocks[0]} to ${blocks.at(-1)} read keys and values of others. llama.cpp wants tensors for their own, which it does not read: lpq wrote zeros.`;
}
