import { allocate, type MappedFile, mapFile, type Tensor } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import type { HashedFacts } from '../safetensors/hash.js';
import { type GgufHeader, type HeaderValue, type Refuse, readHeader } from './header.js';
import type { GgufValue } from './metadata.js';
import { type GgufType, ggufTypeOf, rowBytes } from './types.js';

/** A matrix (or a vector as one row) of a GGUF file; stacked experts are a matrix each, called NAME[i]. */
export interface GgufMatrix {
  readonly name: string;
  readonly type: GgufType;
  readonly rows: number;
  readonly columns: number;
  /** Dimensions in the file: 1, 2 or 3. */
  readonly rank: number;
  /** Bytes of a row, and of the matrix. */
  readonly rowBytes: number;
  readonly bytes: number;
  /** Where it starts in the file. */
  readonly position: number;
}

/** A GGUF file of version 3, mapped. What opens has tensors of known types, aligned, inside the file and apart. */
export class GgufFile {
  private constructor(
    readonly path: string,
    readonly metadata: ReadonlyMap<string, GgufValue>,
    private readonly matrices: ReadonlyMap<string, GgufMatrix>,
    private readonly map: MappedFile,
  ) {}

  /** Throws LPQ_FILE, and LPQ_ARTIFACT for what breaks a rule of the format. */
  static open(path: string): GgufFile {
    const map = mapFile(path);
    try {
      const refuse = refusal(path);
      const header = readHeader(map, [3], refuse);
      const metadata = new Map([...header.metadata].map(([key, value]) => [key, artifactValue(key, value, refuse)]));
      return new GgufFile(path, metadata, matricesOf(header, refuse), map);
    } catch (error) {
      map.close();
      throw error;
    }
  }

  names(): string[] {
    return [...this.matrices.keys()];
  }

  has(name: string): boolean {
    return name.split('+').every((part) => this.matrices.has(part));
  }

  /** FIRST+SECOND: two of one type, the rows of one behind those of the other. Throws LPQ_TENSOR_MISSING, LPQ_ARTIFACT. */
  matrix(name: string): GgufMatrix {
    const [first, second] = name.split('+');
    if (first !== undefined && second !== undefined) return joined(name, this.matrix(first), this.matrix(second));
    const found = this.matrices.get(name);
    if (found) return found;
    throw new LpqError('LPQ_TENSOR_MISSING', `${this.path} has no tensor '${name}'`);
  }

  /** What the hash of a matrix covers beside its bytes. Throws LPQ_TENSOR_MISSING. */
  spec(name: string): HashedFacts {
    const { type, rows, columns, rank } = this.matrix(name);
    return { name, dtype: type.name, shape: rank === 1 ? [columns] : [rows, columns] };
  }

  /** Its bytes, mapped: U8 [rows, rowBytes]; of f32, f16 and bf16 the elements [rows, columns]. */
  tensor(name: string): Tensor {
    const parts = name.split('+');
    if (parts.length > 1) return rowsOf(parts.map((part) => this.tensor(part)));
    const { type, rows, columns, rowBytes: width, position } = this.matrix(name);
    if (type.name === 'f32' || type.name === 'f16' || type.name === 'bf16')
      return this.map.tensor(type.name, [rows, columns], position);
    return this.map.tensor('u8', [rows, width], position);
  }

  close(): void {
    this.map.close();
  }
}

function joined(name: string, first: GgufMatrix, second: GgufMatrix): GgufMatrix {
  const facts = ({ type, rows, columns, rank }: GgufMatrix) =>
    `${type.name} [${rows}, ${columns}] of ${rank} dimensions`;
  if (facts(first) !== facts(second))
    throw new LpqError('LPQ_ARTIFACT', `'${first.name}' and '${second.name}' are no halves of one matrix`, {
      got: facts(second),
      expected: facts(first),
    });
  return { ...first, name, rows: 2 * first.rows, bytes: 2 * first.bytes };
}

/** The rows of all, in a tensor of its own. Disposes of the parts. */
function rowsOf(parts: readonly Tensor[]): Tensor {
  const [first] = parts as [Tensor];
  const whole = allocate(first.dtype, [
    parts.reduce((sum, { shape }) => sum + (shape[0] ?? 0), 0),
    first.shape[1] ?? 1,
  ]);
  const bytes = whole.bytes();
  let at = 0;
  for (const part of parts) {
    bytes.set(part.bytes(), at);
    at += part.byteLength;
    part.dispose();
  }
  return whole;
}

function refusal(path: string): Refuse {
  return (what, got) => {
    throw new LpqError('LPQ_ARTIFACT', `${path} breaks a rule of GGUF: ${what.slice(0, 300)}`, {
      ...(got !== undefined && { got: String(got) }),
      hint: 'The file is damaged, or another program wrote it: pack the model again.',
    });
  };
}

function matricesOf({ tensors, alignment, dataStart, size }: GgufHeader, refuse: Refuse): Map<string, GgufMatrix> {
  const matrices = new Map<string, GgufMatrix>();
  let end = 0;
  for (const { name, dims, type: id, offset } of tensors.toSorted((a, b) => a.offset - b.offset)) {
    const type = ggufTypeOf(id);
    if (!type) return refuse(`tensor '${name}' has a type that lpq does not read`, id);
    const [columns = 1, rows = 1, slices = 1] = dims;
    const width = rowBytes(type, columns);
    if (width === undefined) return refuse(`tensor '${name}' has rows of ${columns}, which are not whole blocks`);
    if (offset % alignment !== 0) refuse(`tensor '${name}' is not aligned`, offset);
    if (offset < end) refuse(`tensor '${name}' overlaps the one before it`, offset);
    const bytes = rows * width;
    end = offset + slices * bytes;
    if (!Number.isSafeInteger(end) || dataStart + end > size)
      refuse(`tensor '${name}' reaches beyond the end of the file`, dataStart + end);
    for (let slice = 0; slice < slices; slice++) {
      const own = dims.length === 3 ? `${name}[${slice}]` : name;
      if (matrices.has(own)) refuse(`tensor '${own}' appears twice`);
      const position = dataStart + offset + slice * bytes;
      matrices.set(own, { name: own, type, rows, columns, rank: dims.length, rowBytes: width, bytes, position });
    }
  }
  return matrices;
}

/** The kinds of values that lpq writes, by their numbers. */
const SCALARS = { 4: 'u32', 5: 'i32', 6: 'f32', 7: 'bool', 8: 'string' } as const;
const ARRAYS = { 5: 'i32s', 6: 'f32s', 7: 'bools', 8: 'strings' } as const;

function artifactValue(key: string, { kind, of, value }: HeaderValue, refuse: Refuse): GgufValue {
  const type = of === undefined ? SCALARS[kind as 4] : ARRAYS[of as 5];
  if (type !== undefined) return { type, value } as GgufValue;
  return of === undefined
    ? refuse(`key '${key}' has a value of type ${kind}, which lpq does not read`, kind)
    : refuse(`key '${key}' has values of type ${of}, which lpq does not read`, of);
}
