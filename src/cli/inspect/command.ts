import type { Command } from 'commander';
import { modelDirectory } from '../options/hub.js';
import type { Run } from '../run.js';
import { line } from '../terminal/terminal.js';

/** `lpq inspect DIR`: what a directory holds. */
export function inspectCommand(program: Command, run: Run): Command {
  return program
    .command('inspect')
    .description('show what a plain, quantized or packed directory holds')
    .argument('<dir>', 'directory of the checkpoint, a .gguf file, or ORG/NAME[@REVISION] on the Hugging Face Hub')
    .option('--check', 'read every weight and name those with NaN or infinity')
    .action((dir: string, options: { check?: boolean }) => inspect(dir, options.check === true, run));
}

async function inspect(given: string, check: boolean, run: Run): Promise<void> {
  const dir = await modelDirectory(given, run);
  const { directoryKind } = await import('../../../formats/canonical/source.js');
  const kind = directoryKind(dir);
  const { ggufFiles } = await import('../../../formats/gguf/source/directory.js');
  const gguf = ggufFiles(dir);
  const { inspectSource } = await import('./source.js');
  const { inspectPacked, inspectQuantized } = await import('./quantized.js');
  const found =
    kind === 'lpq-canonical'
      ? inspectQuantized(dir)
      : kind === 'lpq-artifact'
        ? inspectPacked(dir)
        : gguf
          ? (await import('./gguf.js')).inspectGguf(dir, gguf)
          : inspectSource(dir, kind);
  if (!check) return run.report.result(found.data, found.text);
  const { notFiniteTensors } = await import('./finite.js');
  const wrong = await notFiniteTensors(dir, run);
  const text = wrong.map(({ name, text: where }) => line`${name} holds NaN or infinity: ${where}\n`).join('');
  run.report.result(
    { ...found.data, notFinite: wrong },
    `${found.text}\n${text || 'every floating-point tensor is finite\n'}`,
  );
  if (wrong.length === 0) return;
  const { LpqError } = await import('../../core/error.js');
  throw new LpqError(
    'LPQ_MODULE_NUMERICS',
    `${wrong.length === 1 ? 'a tensor' : `${wrong.length} tensors`} of ${dir} hold${wrong.length === 1 ? 's' : ''} NaN or infinity`,
    {
      got: wrong.slice(0, 5).map(({ name }) => name),
      hint: 'Download the checkpoint again.',
    },
  );
}
