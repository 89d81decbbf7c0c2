import * as codebook from './codebook.js';
import type { DecodeBlocks } from './half.js';
import * as nibbles from './nibbles.js';
import * as superBlocks from './super-blocks.js';

/** A type of tensors in GGUF files of any program. */
export interface SourceType {
  readonly name: string;
  readonly id: number;
  /** Elements along a row that a block holds, and its bytes. */
  readonly block: number;
  readonly bytes: number;
  /** What the elements are: numbers as they lie there, or what the blocks are decoded by, to F32. */
  readonly holds: 'F32' | 'F16' | 'BF16' | 'F64' | 'I8' | 'I16' | 'I32' | 'I64' | DecodeBlocks;
}

const ROWS: readonly (readonly [name: string, id: number, block: number, bytes: number, SourceType['holds']])[] = [
  ['F32', 0, 1, 4, 'F32'],
  ['F16', 1, 1, 2, 'F16'],
  ['Q4_0', 2, 32, 18, nibbles.q4_0],
  ['Q4_1', 3, 32, 20, nibbles.q4_1],
  ['Q5_0', 6, 32, 22, nibbles.q5_0],
  ['Q5_1', 7, 32, 24, nibbles.q5_1],
  ['Q8_0', 8, 32, 34, nibbles.q8_0],
  ['Q2_K', 10, 256, 84, superBlocks.q2_k],
  ['Q3_K', 11, 256, 110, superBlocks.q3_k],
  ['Q4_K', 12, 256, 144, superBlocks.q4_k],
  ['Q5_K', 13, 256, 176, superBlocks.q5_k],
  ['Q6_K', 14, 256, 210, superBlocks.q6_k],
  ['IQ2_XXS', 16, 256, 66, codebook.iq2_xxs],
  ['IQ2_XS', 17, 256, 74, codebook.iq2_xs],
  ['IQ3_XXS', 18, 256, 98, codebook.iq3_xxs],
  ['IQ1_S', 19, 256, 50, codebook.iq1_s],
  ['IQ4_NL', 20, 32, 18, nibbles.iq4_nl],
  ['IQ3_S', 21, 256, 110, codebook.iq3_s],
  ['IQ2_S', 22, 256, 82, codebook.iq2_s],
  ['IQ4_XS', 23, 256, 136, superBlocks.iq4_xs],
  ['I8', 24, 1, 1, 'I8'],
  ['I16', 25, 1, 2, 'I16'],
  ['I32', 26, 1, 4, 'I32'],
  ['I64', 27, 1, 8, 'I64'],
  ['F64', 28, 1, 8, 'F64'],
  ['IQ1_M', 29, 256, 56, codebook.iq1_m],
  ['BF16', 30, 1, 2, 'BF16'],
  ['TQ1_0', 34, 256, 54, nibbles.tq1_0],
  ['TQ2_0', 35, 256, 66, nibbles.tq2_0],
  ['MXFP4', 39, 32, 17, nibbles.mxfp4],
  ['NVFP4', 40, 64, 36, nibbles.nvfp4],
];

export const SOURCE_TYPES: readonly SourceType[] = ROWS.map(([name, id, block, bytes, holds]) => ({
  name,
  id,
  block,
  bytes,
  holds,
}));

/** Types that have a number and no use for weights (of activations, or withdrawn), for messages. */
const OTHERS: Readonly<Record<number, string>> = { 9: 'Q8_1', 15: 'Q8_K', 41: 'Q1_0' };

const BY_ID = new Map(SOURCE_TYPES.map((type) => [type.id, type]));

export function sourceType(id: number): SourceType | undefined {
  return BY_ID.get(id);
}

/** What a number stands for, in words. */
export function typeInWords(id: number): string {
  const name = BY_ID.get(id)?.name ?? OTHERS[id];
  return name === undefined ? `type ${id}` : `${name} (type ${id})`;
}
