import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import type { Command } from 'commander';
import { oneOf } from '../../core/error.js';

/** What a CUDA device keeps numbers in between products. */
type HalfType = 'f16' | 'bf16';

/** The option of commands that run models. */
export function activationOptions(command: Command): Command {
  return command
    .optionsGroup('Device:')
    .option(
      '--activations <type>',
      'on CUDA: type of activations, f16 or bf16 (default: f16 if all scales are f16, else bf16)',
      (text: string) => oneOf('--activations', ['f16', 'bf16'], text),
    );
}

/**
 * What the products of DIR, quantized or packed by lpq, were made for: f16 where every scale is f16, as MARLIN and TurboMind have it, which need not be
 * rounded to bf16 then; else bf16, whose range holds what any checkpoint computes. What is wrong with lpq.json its reader tells.
 */
export function activationsOf(dir: string, wish: HalfType | undefined): HalfType {
  if (wish !== undefined) return wish;
  const manifest = path.join(dir, 'lpq.json');
  if (!existsSync(manifest)) return 'bf16';
  try {
    const { modules } = JSON.parse(readFileSync(manifest, 'utf8'));
    const scales = Object.values(modules as Record<string, { scales?: { dtype?: string } }>).map(
      (module) => module.scales?.dtype,
    );
    return scales.length > 0 && scales.every((dtype) => dtype === 'f16') ? 'f16' : 'bf16';
  } catch {
    return 'bf16';
  }
}
