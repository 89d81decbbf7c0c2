import type { GemmShape } from '../../../bench/kernels/cases.js';
import type { KernelBench } from '../../../bench/kernels/schema.js';
import type { KernelTuning, TuningKey } from '../../../bench/kernels/tuning.js';
import { addon } from '../../../native/binding.js';
import { LpqError } from '../../core/error.js';
import type { QuantType } from '../../core/quant-type.js';
import type { Run } from '../run.js';
import { line } from '../terminal/terminal.js';
import { version } from '../version.js';

/** Devices that the choice of kernel knows without seeing them. */
export const DESCRIBED: readonly string[] = ['h200', 'h100', 'a100', 'rtx5090', 'rtx4090', 'rtx3090'];

export interface Products {
  readonly types: readonly QuantType[];
  readonly shapes: readonly GemmShape[];
  readonly tokens: readonly number[];
  readonly dtype: 'f16' | 'bf16';
  readonly group: number;
}

/** `lpq bench kernels --explain [device]`: nothing is timed. Throws LPQ_USAGE. */
export async function explain(wish: string | true, products: Products, run: Run): Promise<void> {
  const { explainKernels, launchLines } = await import('../../../bench/kernels/choice.js');
  const device = wish === true ? (cudaHere() ? 0 : 'h200') : wish;
  if (typeof device === 'string' && !DESCRIBED.includes(device))
    throw new LpqError('LPQ_USAGE', `--explain does not know the device '${device}'`, {
      got: device,
      expected: `${DESCRIBED.join(', ')}, or nothing for the first device here (h200 where there is none)`,
    });
  const { types, shapes, tokens } = products;
  const choices = explainKernels(device, types, shapes, tokens, products);
  const text = choices.map(({ type, k, n, m, choice }) =>
    [
      `${type} ${k}x${n} M=${m}  ${choice.device}${choice.tuned ? ', tuned' : ''}`,
      ...launchLines(choice).map((line) => `  ${line}`),
      ...choice.reasons.map((reason) => `  - ${reason}`),
      '',
    ].join('\n'),
  );
  run.report.result({ command: 'bench kernels', explain: choices }, text.join('\n'));
}

function cudaHere(): boolean {
  try {
    return addon().cudaDevices().length > 0;
  } catch {
    return false;
  }
}

/** Where the tuning of a runtime's device is kept, and what it is of. */
function store(device: string): { path: string; key: TuningKey } {
  const { path, ...facts } = addon().kernelTuning(Number(device.slice('cuda:'.length)));
  return { path, key: { ...facts, lpq: version() } };
}

/** `--import`: keeps a tuning that another process exported. Throws LPQ_KERNEL_TUNING, LPQ_FILE, LPQ_USAGE. */
export async function importTuning(file: string, device: string, run: Run): Promise<void> {
  const { mergeTunings, readTuning, writeTuning } = await import('../../../bench/kernels/tuning.js');
  const { existsSync } = await import('node:fs');
  const { path, key } = kept(device);
  const fresh = readTuning(file, key);
  const merged = mergeTunings(existsSync(path) ? readTuning(path, key) : undefined, fresh);
  writeTuning(path, merged);
  run.report.result(
    { command: 'bench kernels', imported: fresh.points.length, tuning: path },
    line`${fresh.points.length} tuned products kept in ${path}, which now holds ${merged.points.length}\n`,
  );
}

function kept(device: string): { path: string; key: TuningKey } {
  const found = store(device);
  if (found.path !== '') return found;
  throw new LpqError('LPQ_USAGE', 'no path for tuned settings is set', {
    got: process.env.LPQ_KERNEL_TUNING ? `LPQ_KERNEL_TUNING=${process.env.LPQ_KERNEL_TUNING}` : 'no HOME',
    expected: 'a path in LPQ_KERNEL_TUNING, or HOME',
  });
}

/** After `--tune`: keeps the points beside those that are there, and exports them. Returns lines for the report. */
export async function keepTuning(
  bench: KernelBench,
  device: string,
  exported: string | undefined,
): Promise<readonly string[]> {
  const { losses, mergeTunings, readTuning, tuningOf, writeTuning } = await import('../../../bench/kernels/tuning.js');
  const { existsSync } = await import('node:fs');
  const { path, key } = store(device);
  const fresh = tuningOf(bench, key);
  const lines: string[] = [];
  if (path !== '') {
    let old: KernelTuning | undefined;
    try {
      old = existsSync(path) ? readTuning(path, key) : undefined;
    } catch (error) {
      // Of another lpq or driver, or broken: what was measured just now takes its place.
      if (!(error instanceof LpqError)) throw error;
      lines.push(`${path} was replaced: ${error.message}`);
    }
    writeTuning(path, mergeTunings(old, fresh));
    lines.push(`kept in ${path}`);
  }
  if (exported !== undefined) {
    writeTuning(exported, fresh);
    lines.push(`exported to ${exported}`);
  }
  for (const { type, k, n, m, choiceUs, bestUs, ratio, best } of losses(fresh.points))
    lines.push(
      `${type} ${k}x${n} M=${m}: the choice takes ${choiceUs.toFixed(1)} us, ${((ratio - 1) * 100).toFixed(0)}% more than ${bestUs.toFixed(1)} with ${JSON.stringify(best)}`,
    );
  return lines;
}
