// llama.cpp as an oracle: node-llama-cpp's prebuilt library, without a GPU, without a download, without a build.
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import path from 'node:path';
import type { TestContext } from 'node:test';
import type { GgufMetadata } from '../../../formats/gguf/metadata.js';
import { GgufFile } from '../../../formats/gguf/read.js';
import { GgufWriter } from '../../../formats/gguf/write.js';
import { type Tensor, typed } from '../../../native/binding.js';
import { root } from '../cli/lpq.js';
import { decodeMatrix, half } from './gguf-blocks.js';

/** What the tests use of node-llama-cpp, whose types are not needed to compile without it. */
interface Sequence {
  controlledEvaluate(input: readonly unknown[]): Promise<({ next: { logits?: Map<number, number> } } | undefined)[]>;
}
interface Context {
  getSequence(): Sequence;
  dispose(): Promise<void>;
}
export interface LlamaModel {
  tokenize(text: string): number[];
  createContext(options: Record<string, unknown>): Promise<Context>;
  dispose(): Promise<void>;
}
interface Llama {
  loadModel(options: { modelPath: string; useMmap?: boolean }): Promise<LlamaModel>;
}

let opened: Promise<Llama> | undefined;

/** The library of this platform, opened once; undefined, and the test skipped with the reason, where npm did not install it. */
export async function openLlama(t: TestContext): Promise<Llama | undefined> {
  try {
    opened ??= load();
    return await opened;
  } catch (error) {
    t.skip(`node-llama-cpp has no library for this machine: ${(error as Error).message.split('\n')[0]}`);
    return undefined;
  }
}

async function load(): Promise<Llama> {
  const name = 'node-llama-cpp';
  const { getLlama } = (await import(name)) as { getLlama: (options: Record<string, unknown>) => Promise<Llama> };
  return await getLlama({ gpu: false, build: 'never', skipDownload: true, logLevel: 'error' });
}

/** Raw logits after each token, [T, V], computed with an f32 cache and one thread. */
export async function llamaLogits(model: LlamaModel, ids: readonly number[], vocab: number): Promise<Float32Array> {
  const context = await model.createContext({
    contextSize: ids.length + 8,
    batchSize: ids.length + 8,
    threads: 1,
    flashAttention: false,
    experimentalKvCacheKeyType: 'F32',
    experimentalKvCacheValueType: 'F32',
  });
  const input = ids.map((id) => [id, { generateNext: { logits: true } }]);
  const evaluated = await context.getSequence().controlledEvaluate(input);
  const out = new Float32Array(ids.length * vocab).fill(Number.NaN);
  for (const [row, result] of evaluated.entries())
    for (const [id, logit] of result?.next.logits ?? []) out[row * vocab + id] = logit;
  await context.dispose();
  return out;
}

/** The same file with every block decoded to f32; `changed`: keys that say something else. */
export async function inFloats(file: string, output: string, changed: GgufMetadata = new Map()): Promise<void> {
  const gguf = GgufFile.open(file);
  // Stacked experts are matrices NAME[i] of one tensor NAME.
  const stacks = new Map<string, string[]>();
  for (const name of gguf.names()) {
    const stack = name.replace(/\[\d+\]$/, '');
    stacks.set(stack, [...(stacks.get(stack) ?? []), name]);
  }
  const plans = [...stacks].map(([name, slices]) => {
    const { rows, columns, rank } = gguf.matrix(slices[0] as string);
    const shape = rank === 3 ? [slices.length, rows, columns] : rank === 1 ? [columns] : [rows, columns];
    return { name, type: 'f32' as const, shape };
  });
  const writer = await GgufWriter.create(output, new Map([...gguf.metadata, ...changed]), plans);
  for (const [stack, slices] of stacks)
    for (const [i, name] of slices.entries()) {
      const { type, rows, columns } = gguf.matrix(name);
      const tensor = gguf.tensor(name);
      await writer.write(stack, values(tensor, type.name, rows, columns), i);
    }
  await writer.finish();
  gguf.close();
}

function values(tensor: Tensor, type: string, rows: number, columns: number): Float32Array {
  if (type === 'f32') return typed<Float32Array>(tensor);
  if (type === 'bf16')
    return new Float32Array(Uint32Array.from(typed<Uint16Array>(tensor), (bits) => bits << 16).buffer);
  if (type === 'f16') return Float32Array.from(typed<Uint16Array>(tensor), half);
  return decodeMatrix(type, tensor.bytes(), rows, columns);
}

/** Runs ggml_blocks.cpp with llama.cpp's library; undefined, and the test skipped, without the library or a compiler. */
export function ggmlBlocks(
  t: TestContext,
  dir: string,
): ((args: readonly string[], input: Uint8Array) => Uint8Array) | undefined {
  const library = libraryPath();
  if (!library) {
    t.skip('node-llama-cpp has no library for this machine');
    return undefined;
  }
  const program = path.join(dir, 'ggml_blocks');
  const source = path.join(root, 'test', 'src', 'pack', 'ggml_blocks.cpp');
  const built = spawnSync(process.env.CXX ?? 'c++', ['-std=c++20', '-O1', source, '-ldl', '-o', program]);
  if (built.status !== 0) {
    t.skip(`the C++ compiler is missing or fails: ${built.error?.message ?? built.stderr}`);
    return undefined;
  }
  return ([what, type = '', ...rest], input) => {
    const name = type.replace('_k', '_K');
    const ran = spawnSync(program, [library, what ?? '', name, ...rest], { input, maxBuffer: 1 << 28 });
    if (ran.status !== 0) throw new Error(`ggml_blocks ${what} ${name}: ${ran.status} ${ran.stderr}`);
    return new Uint8Array(ran.stdout);
  };
}

function libraryPath(): string | undefined {
  const platform = `linux-${process.arch}`;
  const file = path.join(root, 'node_modules', '@node-llama-cpp', platform, 'bins', platform, 'libggml-base.so');
  return existsSync(file) ? file : undefined;
}

/** A tokenizer.json of the 256 bytes in GPT-2's spelling. */
export const BYTES = {
  version: '1.0',
  added_tokens: [],
  normalizer: null,
  pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true },
  post_processor: null,
  decoder: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true },
  model: { type: 'BPE', vocab: Object.fromEntries(byteLetters().map((letter, id) => [letter, id])), merges: [] },
};

function byteLetters(): string[] {
  let other = 256;
  return Array.from({ length: 256 }, (_, byte) => {
    const shown = (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
    return String.fromCodePoint(shown ? byte : other++);
  });
}
