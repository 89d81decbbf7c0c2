import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { factsOf } from '../../directory/facts.js';
import { writeError } from '../../directory/write-error.js';
import { badGguf, PART_NAME, splitOf } from './file.js';
import { GgufTensors } from './tensors.js';
import { sourceTokenizer } from './tokenizer.js';

/**
 * The .gguf files of the model that `place` is: a .gguf file, of any part, or a directory that holds one model in GGUF and no
 * safetensors. Undefined for anything else, and for what lpq packed itself. Throws LPQ_GGUF where a part is missing, or where a
 * directory holds several models.
 */
export function ggufFiles(place: string): string[] | undefined {
  const found = factsOf(place);
  if (!found) return undefined;
  if (found.isFile()) return place.endsWith('.gguf') ? complete(place) : undefined;
  if (!found.isDirectory() || existsSync(path.join(place, 'lpq.json'))) return undefined;
  const names = readdirSync(place).sort();
  if (names.some((name) => name.endsWith('.safetensors'))) return undefined;
  // Towers for images come as mmproj-NAME.gguf beside the model.
  const models = names.filter((name) => name.endsWith('.gguf') && !name.startsWith('mmproj'));
  const firsts = models.filter((name) => Number(PART_NAME.exec(name)?.[2] ?? 1) === 1);
  if (firsts.length > 1)
    badGguf(place, 'it holds several', { got: firsts.join(', '), hint: `Name one of them: ${place}/${firsts[0]}.` });
  const first = firsts[0] ?? models[0];
  return first === undefined ? undefined : complete(path.join(place, first));
}

function complete(file: string): string[] {
  const files = splitOf(file);
  const missing = files.filter((each) => !existsSync(each));
  if (missing.length > 0)
    badGguf(file, 'parts of it are missing', {
      got: missing.map((each) => path.basename(each)).join(', '),
      expected: `${files.length} files`,
      hint: 'Download all parts into one directory.',
    });
  return files;
}

/**
 * A directory that stands for a model in GGUF: config.json, the tokenizer and what else a checkpoint has, made from the metadata,
 * and links to the files, whose tensors SourceCheckpoint reads. It is called as the model is, lies in the system's directory of
 * temporary files, and is gone when the process ends. Throws LPQ_GGUF, LPQ_ARCH_UNKNOWN, LPQ_OUTPUT_WRITE, LPQ_DISK_FULL.
 */
export function ggufDirectory(files: readonly string[]): { dir: string; notes: readonly string[] } {
  const tensors = GgufTensors.open(files);
  try {
    const { facts, config } = tensors.model;
    const tokenizer = sourceTokenizer(facts, config);
    const [first] = files as readonly [string];
    const name = PART_NAME.exec(path.basename(first))?.[1] ?? path.basename(first, '.gguf');
    let root: string;
    try {
      root = mkdtempSync(path.join(os.tmpdir(), 'lpq-gguf-'));
    } catch (cause) {
      throw writeError(os.tmpdir(), cause);
    }
    removeAtExit(root);
    const dir = path.join(root, name);
    try {
      mkdirSync(dir);
      const texts = { 'config.json': `${JSON.stringify(config, null, 2)}\n`, ...tokenizer.files };
      for (const [file, text] of Object.entries(texts)) writeFileSync(path.join(dir, file), text);
      for (const file of files) symlinkSync(path.resolve(file), path.join(dir, path.basename(file)));
    } catch (cause) {
      throw writeError(dir, cause);
    }
    return { dir, notes: tokenizer.notes };
  } finally {
    tensors.close();
  }
}

const made = new Set<string>();

function removeAtExit(root: string): void {
  if (made.size === 0)
    process.once('exit', () => {
      for (const each of made) rmSync(each, { recursive: true, force: true });
    });
  made.add(root);
}
