import { existsSync } from 'node:fs';
import path from 'node:path';
import { LpqError } from '../../src/core/error.js';
import { unpublishedInt4 } from '../compressed-tensors/published.js';
import { withMember, withoutInner } from '../directory/json-text.js';
import { readRegularText } from '../directory/read-file.js';
import { withoutBareFloats } from '../safetensors/python-floats.js';

/** Quantization settings of a checkpoint, and the method that they name. */
export interface ForeignSettings {
  readonly method: string;
  readonly settings: Readonly<Record<string, unknown>>;
  /** For messages: FILE, or FILE: quantization_config. */
  readonly where: string;
  /**
   * What keeps it from being a form in which models are published that have no wider weights, which quantize takes too; undefined
   * where nothing does.
   */
  readonly unpublished: string | undefined;
}

/** Files beside config.json that state a quantization. */
export const SETTINGS_FILES: readonly string[] = ['quantize_config.json', 'quant_config.json', 'hf_quant_config.json'];

/** Methods that lpq reads module by module. */
export const READ_METHODS: readonly string[] = [
  'gptq',
  'awq',
  'compressed-tensors',
  'fp8',
  'mxfp4',
  'auto-round',
  'modelopt',
];

/** Methods whose models have no wider weights, each with what keeps settings from being such a model's. */
const PUBLISHED: Readonly<
  Record<string, (where: string, settings: ForeignSettings['settings']) => string | undefined>
> = {
  fp8: () => undefined,
  mxfp4: () => undefined,
  'compressed-tensors': unpublishedInt4,
};

/**
 * The settings of `config` (config.json, parsed), or of the files that older tools wrote beside it: quantize_config.json
 * (AutoGPTQ), quant_config.json (AutoAWQ) and hf_quant_config.json (ModelOpt). undefined for a plain checkpoint. Throws LPQ_CONFIG.
 */
export function foreignSettings(dir: string, config: Readonly<Record<string, unknown>>): ForeignSettings | undefined {
  // Multimodal configs put it beside the text model's settings, some writers call it compression_config.
  const text = config.text_config as { quantization_config?: unknown } | undefined;
  const inline = config.quantization_config ?? config.compression_config ?? text?.quantization_config;
  const place = path.join(dir, 'config.json');
  if (inline !== undefined && inline !== null) {
    const settings = requireObject(`${place}: quantization_config`, inline);
    const method = settings.quant_method ?? (settings.config_groups ? 'compressed-tensors' : undefined);
    // A directory that another tool half described is still not a plain one.
    return foundSettings(method, settings, `${place}: quantization_config`);
  }
  for (const [file, otherwise] of [
    ['quantize_config.json', 'gptq'],
    ['quant_config.json', 'awq'],
    ['hf_quant_config.json', 'modelopt'],
  ] as const) {
    const beside = path.join(dir, file);
    if (!existsSync(beside)) continue;
    const settings = requireObject(beside, parse(beside));
    const method = settings.quant_method ?? otherwise;
    return foundSettings(method, settings, beside);
  }
  return undefined;
}

function foundSettings(named: unknown, settings: ForeignSettings['settings'], where: string): ForeignSettings {
  const method = typeof named === 'string' ? normal(named) : 'unknown';
  const unpublished = PUBLISHED[method] ? PUBLISHED[method](where, settings) : `method ${method}`;
  return { method, settings, where, unpublished };
}

/**
 * The text of a config.json with `settings` for its quantization_config, wherever it had one (foreignSettings); undefined takes it out.
 * `file` is for messages. Throws as withMember.
 */
export function withSettings(text: string, settings: Record<string, unknown> | undefined, file: string): string {
  const bare = withMember(
    withoutInner(text, 'text_config', 'quantization_config', file),
    'compression_config',
    undefined,
    file,
  );
  return withMember(bare, 'quantization_config', settings, file);
}

/** Other spellings of methods, which their tools write or wrote. */
const SPELLINGS: Readonly<Record<string, string>> = {
  compressed_tensors: 'compressed-tensors',
  auto_round: 'auto-round',
  'intel/auto-round': 'auto-round',
  modelopt_fp4: 'modelopt',
  modelopt_mixed: 'modelopt',
};

function normal(method: string): string {
  const lower = method.toLowerCase();
  return SPELLINGS[lower] ?? lower;
}

function parse(file: string): unknown {
  try {
    return JSON.parse(withoutBareFloats(readRegularText(file)));
  } catch (cause) {
    throw new LpqError('LPQ_CONFIG', `${file} cannot be read: ${(cause as Error).message}`, { cause });
  }
}

function requireObject(where: string, value: unknown): Record<string, unknown> {
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  throw new LpqError('LPQ_CONFIG', `${where} is no object`, { got: JSON.stringify(value)?.slice(0, 100) });
}
