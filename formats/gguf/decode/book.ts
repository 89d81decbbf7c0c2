/** Numbers of a codebook: each the place of one of `levels` in `bits` bits, the first lowest, in base64. Made at the first call. */
export function book(bits: number, levels: readonly number[], lines: readonly string[]): () => Int8Array {
  let made: Int8Array | undefined;
  return () => {
    if (made) return made;
    const bytes = Buffer.from(lines.join(''), 'base64');
    made = new Int8Array((bytes.length * 8) / bits);
    for (let i = 0, bit = 0; i < made.length; i++, bit += bits) {
      const pair = (bytes[bit >> 3] as number) | ((bytes[(bit >> 3) + 1] ?? 0) << 8);
      made[i] = levels[(pair >> (bit & 7)) & (2 ** bits - 1)] as number;
    }
    return made;
  };
}
