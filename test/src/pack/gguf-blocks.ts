// Blocks of GGUF read element by element, written from the table of the format and nothing else.

/** Bytes and weights of a block. */
export const BLOCKS: Readonly<Record<string, readonly [bytes: number, size: number]>> = {
  q4_0: [18, 32],
  q4_1: [20, 32],
  q5_0: [22, 32],
  q5_1: [24, 32],
  q8_0: [34, 32],
  q2_k: [84, 256],
  q3_k: [110, 256],
  q4_k: [144, 256],
  q5_k: [176, 256],
  q6_k: [210, 256],
  mxfp4: [17, 32],
};

export function half(bits: number): number {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  const magnitude = exponent === 0 ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (exponent - 25);
  return bits >> 15 ? -magnitude : magnitude;
}

const f = Math.fround;

/** Value of element e of the block that starts at `at`. Products and differences are rounded to f32 one by one. */
export function blockValue(type: string, bytes: Uint8Array, at: number, e: number): number {
  const u8 = (offset: number): number => bytes[at + offset]!;
  const i8 = (offset: number): number => (u8(offset) << 24) >> 24;
  const f16 = (offset: number): number => half(u8(offset) | (u8(offset + 1) << 8));
  const nibble = (offset: number): number => (e < 16 ? u8(offset + e) & 15 : u8(offset + e - 16) >> 4);
  const fifth = (offset: number): number => ((u8(offset + (e >> 3)) >> (e & 7)) & 1) << 4;
  const h = Math.floor(e / 128);
  const j = Math.floor((e % 128) / 32);
  const l = e % 32;
  switch (type) {
    case 'q4_0':
      return f((nibble(2) - 8) * f16(0));
    case 'q4_1':
      return f(f(nibble(4) * f16(0)) + f16(2));
    case 'q5_0':
      return f(((nibble(6) | fifth(2)) - 16) * f16(0));
    case 'q5_1':
      return f(f((nibble(8) | fifth(4)) * f16(0)) + f16(2));
    case 'q8_0':
      return f(i8(2 + e) * f16(0));
    case 'mxfp4': {
      const q = nibble(1);
      return (q & 8 ? -1 : 1) * ([0, 0.5, 1, 1.5, 2, 3, 4, 6][q & 7] as number) * 2 ** (u8(0) - 127);
    }
    case 'q2_k': {
      const sc = u8(Math.floor(e / 16));
      const q = (u8(16 + 32 * h + l) >> (2 * j)) & 3;
      return f(f(f(f16(80) * (sc & 15)) * q) - f(f16(82) * (sc >> 4)));
    }
    case 'q3_k': {
      const i = Math.floor(e / 16);
      const low = i < 8 ? u8(96 + i) & 15 : u8(96 + i - 8) >> 4;
      const sc = low | (((u8(104 + (i % 4)) >> (2 * Math.floor(i / 4))) & 3) << 4);
      const high = (u8(l) >> (4 * h + j)) & 1;
      const q = ((u8(32 + 32 * h + l) >> (2 * j)) & 3) - (high ? 0 : 4);
      return f(f(f16(108) * (sc - 32)) * q);
    }
    case 'q4_k':
    case 'q5_k': {
      const s = Math.floor(e / 32);
      const t = (i: number): number => u8(4 + i);
      const sc = s < 4 ? t(s) & 63 : (t(s + 4) & 15) | ((t(s - 4) >> 6) << 4);
      const m = s < 4 ? t(s + 4) & 63 : (t(s + 4) >> 4) | ((t(s) >> 6) << 4);
      const byte = u8((type === 'q4_k' ? 16 : 48) + 32 * Math.floor(e / 64) + l);
      const low = s & 1 ? byte >> 4 : byte & 15;
      const q = type === 'q4_k' ? low : low | (((u8(16 + l) >> s) & 1) << 4);
      return f(f(f(f16(0) * sc) * q) - f(f16(2) * m));
    }
    default: {
      const byte = u8(64 * h + 32 * (j & 1) + l);
      const q = (j >> 1 ? byte >> 4 : byte & 15) | (((u8(128 + 32 * h + l) >> (2 * j)) & 3) << 4);
      return f(f(f16(208) * i8(192 + Math.floor(e / 16))) * (q - 32));
    }
  }
}

/** A matrix of blocks, row-major. */
export function decodeMatrix(type: string, bytes: Uint8Array, rows: number, columns: number): Float32Array {
  const [width, size] = BLOCKS[type] as readonly [number, number];
  const rowBytes = (columns / size) * width;
  return Float32Array.from({ length: rows * columns }, (_, i) => {
    const column = i % columns;
    return blockValue(
      type,
      bytes,
      Math.floor(i / columns) * rowBytes + Math.floor(column / size) * width,
      column % size,
    );
  });
}
