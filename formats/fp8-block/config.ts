import { badSetting } from '../foreign/module.js';

/** What a reader needs of a published fp8 quantization_config (DeepSeek-V3, Qwen3-FP8, and per-tensor ones). */
export interface Fp8Config {
  /** [n, k]; undefined where one scale covers a whole weight or a row of it. */
  readonly block: readonly [number, number] | undefined;
}

/** Throws LPQ_CONFIG naming the key. */
export function readFp8Config(where: string, config: Readonly<Record<string, unknown>>): Fp8Config {
  const { fmt = 'e4m3', weight_block_size: block = null } = config;
  if (fmt !== 'e4m3' && fmt !== 'float8_e4m3fn') return badSetting(where, 'fmt', fmt, 'e4m3');
  if (block === null) return { block: undefined };
  if (Array.isArray(block) && block.length === 2 && block.every((part) => Number.isInteger(part) && part > 0))
    return { block: block as unknown as readonly [number, number] };
  return badSetting(where, 'weight_block_size', block, '[n, k], for example [128, 128]');
}
