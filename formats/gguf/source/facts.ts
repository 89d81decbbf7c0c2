import { badGguf, type GgufModelFile } from './file.js';

/** What the metadata of a file says, asked for key by key; keys without a dot at their front are the architecture's own. */
export class GgufFacts {
  readonly architecture: string;

  /** Throws LPQ_GGUF without general.architecture. */
  constructor(readonly file: GgufModelFile) {
    const name = file.metadata.get('general.architecture')?.value;
    this.architecture =
      typeof name === 'string'
        ? name
        : badGguf(file.path, "the key 'general.architecture' is missing or not a string", { got: name });
  }

  /** A number; one for each block that is the same for all counts as one. Throws LPQ_GGUF where it is missing or none. */
  number(key: string): number {
    const found = this.optional(key);
    if (found !== undefined) return found;
    return badGguf(this.file.path, `the key '${this.full(key)}' is missing`, { expected: 'a number' });
  }

  optional(key: string): number | undefined {
    const value = this.value(key);
    if (value === undefined) return undefined;
    const [first, ...rest] = Array.isArray(value) ? value : [value];
    if (typeof first !== 'number' || !Number.isFinite(first))
      return badGguf(this.file.path, `the key '${this.full(key)}' is not a number`, { got: first });
    if (rest.some((each) => each !== first))
      return badGguf(this.file.path, `'${this.full(key)}' differs from block to block, which lpq does not support`, {
        got: [first, ...rest].slice(0, 8).join(', '),
      });
    return shortest(first);
  }

  /** A number for each of `layers` blocks, stated once or one by one. */
  each(key: string, layers: number): readonly number[] {
    if (!this.isList(key)) return new Array<number>(layers).fill(this.number(key));
    const found = this.list<number>(key, 'number') ?? [];
    if (found.length >= layers) return found.slice(0, layers);
    return badGguf(this.file.path, `the key '${this.full(key)}' has not a number for each block`, {
      got: found.length,
      expected: layers,
    });
  }

  /** Elements of an F32 vector. Throws LPQ_GGUF. */
  floats(name: string): Float32Array {
    const tensor = this.file.tensors.get(name);
    if (tensor?.type.holds !== 'F32') return badGguf(this.file.path, `tensor '${name}' is missing or not F32`);
    return new Float32Array(tensor.part.map.read(tensor.position, tensor.bytes).buffer);
  }

  /** How many tensors are so named. */
  tensors(name: RegExp): number {
    return [...this.file.tensors.keys()].filter((each) => name.test(each)).length;
  }

  /** Whether it has a value for each block. */
  isList(key: string): boolean {
    return Array.isArray(this.value(key));
  }

  text(key: string): string | undefined {
    const value = this.value(key);
    return typeof value === 'string' ? value : undefined;
  }

  flag(key: string): boolean | undefined {
    const value = this.value(key);
    return typeof value === 'boolean' ? value : undefined;
  }

  list<T extends string | number | boolean>(
    key: string,
    kind: 'string' | 'number' | 'boolean',
  ): readonly T[] | undefined {
    const value = this.value(key);
    if (value === undefined) return undefined;
    if (Array.isArray(value) && value.every((each) => typeof each === kind)) return value as readonly T[];
    return badGguf(this.file.path, `the key '${this.full(key)}' is not a list of ${kind}s`);
  }

  /** [rows, columns] of a tensor. Throws LPQ_GGUF where there is none. */
  shape(name: string): readonly number[] {
    const found = this.file.tensors.get(name);
    return found ? found.shape : badGguf(this.file.path, `tensor '${name}' is missing`);
  }

  has(tensor: string): boolean {
    return this.file.tensors.has(tensor);
  }

  private full(key: string): string {
    return /^(tokenizer|general|lpq|xielu)\./.test(key) ? key : `${this.architecture}.${key}`;
  }

  private value(key: string): unknown {
    return this.file.metadata.get(this.full(key))?.value;
  }
}

/** The number with the fewest digits among those that are the same f32: 1e-5 rather than 9.999999747378752e-6. */
function shortest(value: number): number {
  if (Number.isInteger(value) || Math.fround(value) !== value) return value;
  for (let digits = 1; digits < 10; digits++) {
    const short = Number(value.toPrecision(digits));
    if (Math.fround(short) === value) return short;
  }
  return value;
}
