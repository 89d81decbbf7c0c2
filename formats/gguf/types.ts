/** A tensor type of GGUF: its number, and how many bytes hold a block of how many elements along a row. */
export interface GgufType {
  readonly name: GgufTypeName;
  readonly id: number;
  readonly block: number;
  readonly bytes: number;
  /** general.file_type of a file whose weights mostly have it. */
  readonly fileType: number;
}

export type GgufTypeName =
  | 'f32'
  | 'f16'
  | 'bf16'
  | 'q4_0'
  | 'q4_1'
  | 'q5_0'
  | 'q5_1'
  | 'q8_0'
  | 'q2_k'
  | 'q3_k'
  | 'q4_k'
  | 'q5_k'
  | 'q6_k'
  | 'mxfp4';

/** The types that lpq writes; spec.md has the blocks. */
export const GGUF_TYPES: readonly GgufType[] = [
  { name: 'f32', id: 0, block: 1, bytes: 4, fileType: 0 },
  { name: 'f16', id: 1, block: 1, bytes: 2, fileType: 1 },
  { name: 'q4_0', id: 2, block: 32, bytes: 18, fileType: 2 },
  { name: 'q4_1', id: 3, block: 32, bytes: 20, fileType: 3 },
  { name: 'q5_0', id: 6, block: 32, bytes: 22, fileType: 8 },
  { name: 'q5_1', id: 7, block: 32, bytes: 24, fileType: 9 },
  { name: 'q8_0', id: 8, block: 32, bytes: 34, fileType: 7 },
  { name: 'q2_k', id: 10, block: 256, bytes: 84, fileType: 10 },
  { name: 'q3_k', id: 11, block: 256, bytes: 110, fileType: 11 },
  { name: 'q4_k', id: 12, block: 256, bytes: 144, fileType: 14 },
  { name: 'q5_k', id: 13, block: 256, bytes: 176, fileType: 16 },
  { name: 'q6_k', id: 14, block: 256, bytes: 210, fileType: 18 },
  { name: 'bf16', id: 30, block: 1, bytes: 2, fileType: 32 },
  { name: 'mxfp4', id: 39, block: 32, bytes: 17, fileType: 38 },
];

const BY_NAME = new Map(GGUF_TYPES.map((type) => [type.name, type]));
const BY_ID = new Map(GGUF_TYPES.map((type) => [type.id, type]));

export function ggufType(name: GgufTypeName): GgufType {
  return BY_NAME.get(name) as GgufType;
}

export function ggufTypeOf(id: number): GgufType | undefined {
  return BY_ID.get(id);
}

/** Bytes of a row of `columns` elements; undefined when they are no whole blocks. */
export function rowBytes({ block, bytes }: GgufType, columns: number): number | undefined {
  return columns % block === 0 ? (columns / block) * bytes : undefined;
}
