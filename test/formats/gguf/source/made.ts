import { mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { ByteSink, type GgufValue, writeEntry } from '../../../../formats/gguf/metadata.js';

export interface Part {
  readonly name: string;
  /** Fastest first. */
  readonly dims: readonly number[];
  readonly type?: number;
  readonly offset?: number;
}

export const text = (value: string): GgufValue => ({ type: 'string', value });
export const number = (value: number): GgufValue => ({ type: 'u32', value });

const LLAMA: Readonly<Record<string, GgufValue>> = {
  'general.architecture': text('llama'),
  'llama.embedding_length': number(8),
  'llama.attention.head_count': number(2),
  'llama.block_count': number(0),
  'llama.feed_forward_length': number(8),
  'llama.context_length': number(16),
  'llama.attention.layer_norm_rms_epsilon': { type: 'f32', value: 1e-5 },
};
export const EMBEDDING: Part = { name: 'token_embd.weight', dims: [8, 4] };
export const NORM: Part = { name: 'output_norm.weight', dims: [8] };

/** A file put together by hand; F32 tensors 256 bytes apart whose elements count up from 0. */
export function madeIn(
  dir: string,
  keys: Readonly<Record<string, GgufValue | undefined>>,
  parts: readonly Part[],
  name: string,
): string {
  const sink = new ByteSink();
  const entries = Object.entries({ ...LLAMA, ...keys }).filter(([, value]) => value !== undefined);
  sink.bytes(Buffer.from('GGUF'));
  sink.u32(3);
  sink.u64(parts.length);
  sink.u64(entries.length);
  for (const [key, value] of entries) writeEntry(sink, key, value as GgufValue);
  for (const [i, { name: own, dims, type = 0, offset = 256 * i }] of parts.entries()) {
    sink.string(own);
    sink.u32(dims.length);
    for (const size of dims) sink.u64(size);
    sink.u32(type);
    sink.u64(offset);
  }
  sink.pad(32);
  const data = Float32Array.from({ length: 64 * parts.length }, (_, i) => i);
  sink.bytes(new Uint8Array(data.buffer));
  const file = path.join(dir, name);
  mkdirSync(path.dirname(file), { recursive: true });
  writeFileSync(file, sink.joined());
  return file;
}
