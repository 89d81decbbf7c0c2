import { type ErrorFacts, LpqError } from '../../src/core/error.js';
import { dtypeFacts, SAFETENSORS_DTYPES, type SafetensorsDtype, tensorBytes } from './dtypes.js';
import { JsonNumber, parseStrictJson, type StrictJson, StrictJsonError } from './strict-json.js';

/** What a writer needs to know of a tensor before its bytes: name, dtype and shape. */
export interface TensorSpec {
  readonly name: string;
  readonly dtype: SafetensorsDtype;
  readonly shape: readonly number[];
}

/** A tensor of a header; begin and end are bytes from the start of the data (after the header). */
export interface TensorEntry extends TensorSpec {
  readonly begin: number;
  readonly end: number;
}

export interface Header {
  /** In order of their bytes in the file. */
  readonly tensors: readonly TensorEntry[];
  readonly metadata: Readonly<Record<string, string>> | undefined;
  /** Where the data starts in the file: 8 + the header's length. */
  readonly dataStart: number;
}

/** The longest header that readers accept. */
export const MAX_HEADER_BYTES = 100_000_000;

/**
 * The header's length from the first 8 bytes of a file of `fileSize` bytes. Throws LPQ_SAFETENSORS when the file is too
 * short for it or the length is beyond the limit.
 */
export function headerLength(file: string, prefix: Uint8Array, fileSize: number): number {
  if (prefix.length < 8)
    fail(file, 'is shorter than the 8 bytes that hold the header length', { got: `${fileSize} bytes` });
  const length = new DataView(prefix.buffer, prefix.byteOffset, 8).getBigUint64(0, true);
  const begin = String.fromCharCode(...prefix.subarray(0, 8));
  if (length > BigInt(MAX_HEADER_BYTES) && /^[\t\n\r -~]{8}$/.test(begin))
    fail(file, 'begins with text instead of the length of the header', {
      got: JSON.stringify(begin),
      hint: 'Name a safetensors file.',
    });
  if (length > BigInt(MAX_HEADER_BYTES))
    fail(file, 'announces a header above the limit', { got: `${length} bytes`, expected: `<= ${MAX_HEADER_BYTES}` });
  if (8 + Number(length) > fileSize)
    fail(file, 'ends inside its header', {
      got: `${fileSize} bytes`,
      expected: `at least ${8 + Number(length)}`,
      hint: 'The file is truncated: download it again.',
    });
  return Number(length);
}

/**
 * Parses and checks a header against every rule of the format (spec.md). `bytes` are the header's alone, without the
 * length before it. Throws LPQ_SAFETENSORS naming the file, the tensor and the rule.
 */
export function parseHeader(file: string, bytes: Uint8Array, fileSize: number): Header {
  const root = parseRoot(file, bytes);
  let metadata: Record<string, string> | undefined;
  const entries: TensorEntry[] = [];
  for (const [name, value] of root)
    if (name === '__metadata__') metadata = parseMetadata(file, value);
    else entries.push(parseEntry(file, name, value));
  // Zero-size tensors share a begin with their neighbour, so the end decides; then names, to be definite.
  entries.sort((a, b) => a.begin - b.begin || a.end - b.end || (a.name < b.name ? -1 : 1));
  const dataStart = 8 + bytes.length;
  checkOffsets(file, entries, fileSize - dataStart);
  return { tensors: entries, metadata, dataStart };
}

/** The bytes of a file up to its data: length, JSON, spaces to a multiple of 8. `entries` in order of their bytes. */
export function encodeHeader(entries: readonly TensorEntry[], metadata: Readonly<Record<string, string>>): Uint8Array {
  // Built by hand: an object literal would move names that look like integers to the front.
  const keys = Object.keys(metadata).sort();
  const parts = keys.length
    ? [`"__metadata__":{${keys.map((key) => `${JSON.stringify(key)}:${JSON.stringify(metadata[key])}`).join(',')}}`]
    : [];
  for (const { name, dtype, shape, begin, end } of entries)
    parts.push(
      `${JSON.stringify(name)}:{"dtype":"${dtype}","shape":[${shape.join(',')}],"data_offsets":[${begin},${end}]}`,
    );
  const json = Buffer.from(`{${parts.join(',')}}`);
  const length = Math.ceil(json.length / 8) * 8;
  const bytes = Buffer.alloc(8 + length, ' ');
  bytes.writeBigUInt64LE(BigInt(length));
  json.copy(bytes, 8);
  return bytes;
}

/** Writing order inside a file: widest dtype rank first, then names by their UTF-8 bytes. */
export function compareForWriting(a: TensorSpec, b: TensorSpec): number {
  return dtypeFacts(b.dtype).rank - dtypeFacts(a.dtype).rank || compareUtf8(a.name, b.name);
}

/** Order of the UTF-8 bytes of two names. */
export function compareUtf8(a: string, b: string): number {
  const common = Math.min(a.length, b.length);
  let i = 0;
  while (i < common && a.charCodeAt(i) === b.charCodeAt(i)) i++;
  if (i === common) return a.length - b.length;
  // UTF-16 units are in that order too, but for surrogates, which stand for what comes after U+FFFF.
  const rank = (unit: number) => (unit >= 0xd800 && unit < 0xe000 ? unit + 0x10000 : unit);
  return rank(a.charCodeAt(i)) - rank(b.charCodeAt(i));
}

function parseRoot(file: string, bytes: Uint8Array): Map<string, StrictJson> {
  if (bytes[0] !== 0x7b)
    fail(file, "has a header that does not begin with '{'", {
      hint: 'This is not a safetensors file, or its first bytes are damaged.',
    });
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch (cause) {
    return fail(file, 'has a header that is not UTF-8', { cause });
  }
  try {
    return parseStrictJson(text) as Map<string, StrictJson>;
  } catch (cause) {
    if (!(cause instanceof StrictJsonError)) throw cause;
    return fail(file, `has a header that is not valid JSON: ${cause.message}`, { cause });
  }
}

function parseMetadata(file: string, value: StrictJson): Record<string, string> {
  if (!(value instanceof Map)) return fail(file, 'has a __metadata__ that is not an object of strings');
  for (const [key, text] of value)
    if (typeof text !== 'string')
      fail(file, `has a __metadata__ entry '${key}' that is not a string`, { got: print(text) });
  return Object.fromEntries(value) as Record<string, string>;
}

function parseEntry(file: string, name: string, value: StrictJson): TensorEntry {
  const bad = (rule: string, facts?: ErrorFacts): never => fail(file, `tensor '${name}': ${rule}`, facts);
  if (!(value instanceof Map)) return bad('its entry is not an object', { got: print(value) });
  const dtype = value.get('dtype');
  if (typeof dtype !== 'string' || !SAFETENSORS_DTYPES.has(dtype))
    return bad('its dtype is unknown', { got: print(dtype), expected: [...SAFETENSORS_DTYPES.keys()].join(', ') });
  const integers = (key: string): number[] => {
    const list = value.get(key);
    if (!Array.isArray(list)) return bad(`its ${key} is not a list of integers`, { got: print(list) });
    return list.map((item) => {
      const text = item instanceof JsonNumber ? item.text : '';
      if (!/^[0-9]+$/.test(text) || !Number.isSafeInteger(Number(text)))
        return bad(`its ${key} holds something that is not an integer from 0 to 2^53-1`, { got: print(item) });
      return Number(text);
    });
  };
  const shape = integers('shape');
  const offsets = integers('data_offsets');
  if (offsets.length !== 2)
    return bad('its data_offsets are not [begin, end]', { got: print(value.get('data_offsets')) });
  const [begin, end] = offsets as [number, number];
  if (end < begin) return bad('its data_offsets end before they begin', { got: `[${begin}, ${end}]` });
  const bytes = tensorBytes(dtype as SafetensorsDtype, shape);
  if (typeof bytes === 'string') return bad(bytes, { got: `${dtype} [${shape}]` });
  if (end - begin !== bytes)
    return bad('its data_offsets do not match its dtype and shape', {
      got: `${end - begin} bytes`,
      expected: `${bytes} bytes for ${dtype} [${shape}]`,
    });
  return { name, dtype: dtype as SafetensorsDtype, shape, begin, end };
}

function checkOffsets(file: string, entries: readonly TensorEntry[], dataBytes: number): void {
  let cursor = 0;
  for (const { name, begin, end } of entries) {
    if (begin > cursor)
      fail(file, `has a hole before tensor '${name}'`, { got: `begin ${begin}`, expected: `begin ${cursor}` });
    if (begin < cursor)
      fail(file, `has a tensor '${name}' that overlaps the one before it`, {
        got: `begin ${begin}`,
        expected: `begin ${cursor}`,
      });
    cursor = end;
  }
  if (cursor > dataBytes)
    fail(file, 'ends before its last tensor does', {
      got: `${dataBytes} bytes of data`,
      expected: `${cursor}`,
      hint: 'The file is truncated: download it again.',
    });
  if (cursor < dataBytes)
    fail(file, 'has bytes after its last tensor', { got: `${dataBytes} bytes of data`, expected: `${cursor}` });
}

function fail(file: string, rule: string, facts?: ErrorFacts): never {
  throw new LpqError('LPQ_SAFETENSORS', `${file} ${rule}`, facts);
}

function print(value: StrictJson | undefined): string {
  if (value === undefined) return 'nothing';
  const plain = (v: StrictJson): unknown =>
    v instanceof JsonNumber
      ? Number(v.text)
      : v instanceof Map
        ? Object.fromEntries(v)
        : Array.isArray(v)
          ? v.map(plain)
          : v;
  return value instanceof JsonNumber ? value.text : JSON.stringify(plain(value)).slice(0, 100);
}
