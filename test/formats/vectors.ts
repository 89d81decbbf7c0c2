import { readFileSync } from 'node:fs';
import path from 'node:path';

/** A file of formats/vectors; tests run from the project's root. */
export function vectors<T>(name: string): T {
  return JSON.parse(readFileSync(path.join('formats', 'vectors', name), 'utf8')) as T;
}

/** Hexadecimal words as the signed integers of a file. */
export function hexWords(words: readonly string[]): Int32Array {
  return Int32Array.from(words, (word) => Number.parseInt(word, 16) | 0);
}
