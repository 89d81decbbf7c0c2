import type { DType } from '../../native/binding.js';

/** What a dtype of the format means: its width, its place in the writing order, and the native dtype that reads it. */
export interface DtypeFacts {
  readonly bits: number;
  /** Writers put higher ranks first, so that every tensor lands on a multiple of its element size. */
  readonly rank: number;
  /** Undefined for what no native tensor holds (below 8 bits, complex, FNUZ floats): such tensors read as raw u8. */
  readonly native: DType | undefined;
}

export type SafetensorsDtype =
  | 'BOOL'
  | 'F4'
  | 'F6_E2M3'
  | 'F6_E3M2'
  | 'U8'
  | 'I8'
  | 'F8_E5M2'
  | 'F8_E4M3'
  | 'F8_E8M0'
  | 'F8_E4M3FNUZ'
  | 'F8_E5M2FNUZ'
  | 'I16'
  | 'U16'
  | 'F16'
  | 'BF16'
  | 'I32'
  | 'U32'
  | 'F32'
  | 'C64'
  | 'F64'
  | 'I64'
  | 'U64';

const LOW_TO_HIGH: readonly (readonly [SafetensorsDtype, number, DType | undefined])[] = [
  ['BOOL', 8, 'bool'],
  ['F4', 4, undefined],
  ['F6_E2M3', 6, undefined],
  ['F6_E3M2', 6, undefined],
  ['U8', 8, 'u8'],
  ['I8', 8, 'i8'],
  ['F8_E5M2', 8, 'f8_e5m2'],
  ['F8_E4M3', 8, 'f8_e4m3'],
  ['F8_E8M0', 8, 'f8_e8m0'],
  ['F8_E4M3FNUZ', 8, undefined],
  ['F8_E5M2FNUZ', 8, undefined],
  ['I16', 16, 'i16'],
  ['U16', 16, 'u16'],
  ['F16', 16, 'f16'],
  ['BF16', 16, 'bf16'],
  ['I32', 32, 'i32'],
  ['U32', 32, 'u32'],
  ['F32', 32, 'f32'],
  ['C64', 64, undefined],
  ['F64', 64, 'f64'],
  ['I64', 64, 'i64'],
  ['U64', 64, 'u64'],
];

/** Every dtype of the format by its name in the header. */
export const SAFETENSORS_DTYPES: ReadonlyMap<string, DtypeFacts> = new Map(
  LOW_TO_HIGH.map(([name, bits, native], rank) => [name, { bits, rank, native }]),
);

/** Facts of a dtype that is known to be one. */
export function dtypeFacts(dtype: SafetensorsDtype): DtypeFacts {
  return SAFETENSORS_DTYPES.get(dtype) as DtypeFacts;
}

const FROM_NATIVE: ReadonlyMap<DType, SafetensorsDtype> = new Map(
  LOW_TO_HIGH.flatMap(([name, , native]) => (native ? [[native, name] as const] : [])),
);

/** The header's name of a native dtype: bf16 -> BF16. */
export function fromNativeDtype(dtype: DType): SafetensorsDtype {
  return FROM_NATIVE.get(dtype) as SafetensorsDtype;
}

/** Bytes of one element of a native dtype. */
export function nativeBytes(dtype: DType): number {
  return dtypeFacts(fromNativeDtype(dtype)).bits / 8;
}

/**
 * Bytes of a tensor, or a sentence that says why it has none: a product beyond 2^53-1 (multiplied in order, as the
 * reference reader does, so a later 0 does not rescue it), or elements below a byte that do not fill the last one.
 */
export function tensorBytes(dtype: SafetensorsDtype, shape: readonly number[]): number | string {
  let count = 1;
  for (const dim of shape) {
    if (dim !== 0 && count > Number.MAX_SAFE_INTEGER / dim) return 'the product of its shape overflows';
    count *= dim;
  }
  const { bits } = dtypeFacts(dtype);
  if (count > Number.MAX_SAFE_INTEGER / bits) return 'its size in bits overflows';
  if ((count * bits) % 8 !== 0) return `${count} elements of ${bits} bits do not fill whole bytes`;
  return (count * bits) / 8;
}
