import path from 'node:path';
import { type MappedFile, mapFile } from '../../../native/binding.js';
import { tell } from '../../../src/core/activity.js';
import { type ErrorFacts, LpqError } from '../../../src/core/error.js';
import { type SourceType, sourceType, typeInWords } from '../decode/index.js';
import { type HeaderValue, readHeader } from '../header.js';

/** A tensor of a GGUF file, where it lies. */
export interface GgufTensor {
  readonly name: string;
  readonly type: SourceType;
  /** As in a checkpoint: the slowest dimension first; 1 to 3 of them. */
  readonly shape: readonly number[];
  readonly rowBytes: number;
  readonly bytes: number;
  /** From the start of the file. */
  readonly position: number;
}

/** One file of a model in GGUF, version 2 or 3, of any program: mapped, its tensors known, aligned and apart. */
export class GgufPart {
  private constructor(
    readonly path: string,
    readonly metadata: ReadonlyMap<string, HeaderValue>,
    readonly tensors: readonly GgufTensor[],
    /** Bytes before the data. */
    readonly dataStart: number,
    readonly map: MappedFile,
  ) {}

  /** Throws LPQ_FILE, LPQ_GGUF naming the file, the tensor and the rule. */
  static open(file: string): GgufPart {
    tell(`opening ${path.basename(file)}`);
    const map = mapFile(file);
    try {
      const refuse = (what: string, got?: unknown): never => badGguf(file, what, got === undefined ? {} : { got });
      const { metadata, tensors, dataStart, alignment, size } = readHeader(map, [2, 3], refuse);
      const placed: GgufTensor[] = [];
      let end = 0;
      for (const { name, dims, type: id, offset } of tensors.toSorted((a, b) => a.offset - b.offset)) {
        const type = sourceType(id);
        if (!type)
          return badGguf(file, `tensor '${name}' has a type that lpq does not read`, {
            got: typeInWords(id),
            hint: 'Convert the model to another type with llama.cpp, for example to Q8_0.',
          });
        const [columns = 1, ...slower] = dims;
        const rows = slower.reduce((a, b) => a * b, 1);
        const rowBytes = (columns / type.block) * type.bytes;
        const bytes = rows * rowBytes;
        if (columns % type.block !== 0)
          refuse(
            `tensor '${name}' has rows of ${columns}, which are not whole blocks of ${type.name}`,
            dims.join(', '),
          );
        if (offset % alignment !== 0) refuse(`tensor '${name}' is not aligned`, offset);
        if (offset < end) refuse(`tensor '${name}' overlaps the one before it`, offset);
        end = offset + bytes;
        if (!Number.isSafeInteger(end) || dataStart + end > size)
          return badGguf(file, `tensor '${name}' reaches beyond the end of the file`, {
            got: `${size} bytes`,
            expected: `at least ${dataStart + end}`,
            hint: 'The file is truncated: download it again.',
          });
        placed.push({ name, type, shape: dims.toReversed(), rowBytes, bytes, position: dataStart + offset });
      }
      return new GgufPart(file, metadata, placed, dataStart, map);
    } catch (error) {
      map.close();
      throw error;
    }
  }
}

/** All files of a model, in order, with the metadata of the first. */
export class GgufModelFile {
  readonly tensors = new Map<string, GgufTensor & { readonly part: GgufPart }>();

  private constructor(
    /** For messages: the first file. */
    readonly path: string,
    readonly parts: readonly GgufPart[],
  ) {
    for (const part of parts)
      for (const tensor of part.tensors) {
        if (this.tensors.has(tensor.name)) badGguf(part.path, `tensor '${tensor.name}' appears twice`);
        this.tensors.set(tensor.name, { ...tensor, part });
      }
  }

  /** `files`: those of splitOf. Throws as GgufPart.open, and LPQ_GGUF where the files are not of one model. */
  static open(files: readonly string[]): GgufModelFile {
    const parts: GgufPart[] = [];
    try {
      for (const [i, file] of files.entries()) {
        const part = GgufPart.open(file);
        parts.push(part);
        const count = part.metadata.get('split.count')?.value ?? 1;
        const number = part.metadata.get('split.no')?.value ?? 0;
        if (count !== files.length || number !== i)
          badGguf(file, 'it is not the part of the model that its name says', {
            got: `part ${Number(number) + 1} of ${count}`,
            expected: `part ${i + 1} of ${files.length}`,
            hint: 'Keep the files of one model together, under the names that llama-gguf-split gave them.',
          });
      }
      const model = new GgufModelFile(files[0] as string, parts);
      const total = model.metadata.get('split.tensors.count')?.value;
      if (total !== undefined && total !== model.tensors.size)
        badGguf(model.path, 'its parts do not hold all tensors', { got: model.tensors.size, expected: total });
      return model;
    } catch (error) {
      for (const { map } of parts) map.close();
      throw error;
    }
  }

  get metadata(): ReadonlyMap<string, HeaderValue> {
    return (this.parts[0] as GgufPart).metadata;
  }

  close(): void {
    for (const { map } of this.parts) map.close();
  }
}

/** How parts of a model are named: NAME-00001-of-00003.gguf. */
export const PART_NAME = /^(.+)-(\d{5})-of-(\d{5})\.gguf$/;

/** The files that belong to a .gguf file: itself, or all parts of the model, of which any was named. */
export function splitOf(file: string): string[] {
  const [, stem, , count] = PART_NAME.exec(path.basename(file)) ?? [];
  if (stem === undefined || count === undefined) return [file];
  return Array.from({ length: Number(count) }, (_, i) =>
    path.join(path.dirname(file), `${stem}-${String(i + 1).padStart(5, '0')}-of-${count}.gguf`),
  );
}

/** Throws LPQ_GGUF. */
export function badGguf(file: string, what: string, facts: ErrorFacts = {}): never {
  throw new LpqError('LPQ_GGUF', `${file} is not a GGUF model that lpq reads: ${what.slice(0, 300)}`, {
    hint: 'Download the file again, or convert the model again with a current llama.cpp.',
    ...facts,
  });
}
