import { readFileSync, statSync } from 'node:fs';
import path from 'node:path';
import type { Command } from 'commander';
import { LpqError } from '../../core/error.js';
import { counted } from '../../core/words.js';
import type { ModelName } from '../../hub/name.js';
import type { Run } from '../run.js';
import { table } from '../terminal/table.js';
import { line } from '../terminal/terminal.js';
import { bytes } from '../terminal/units.js';
import { version } from '../version.js';

interface PushFlags {
  readonly yes?: boolean;
  readonly private?: boolean;
  readonly replace?: boolean;
  readonly message?: string;
}

/** `lpq push DIR ORG/NAME`. */
export function pushCommand(program: Command, run: Run): Command {
  return program
    .command('push')
    .description('upload a quantized or packed directory to the Hugging Face Hub, as one commit')
    .argument('<dir>', 'directory that lpq quantize or lpq pack wrote')
    .argument('<name>', 'ORG/NAME[@BRANCH] on the Hub; lpq creates a missing repository')
    .option('--yes', 'really upload; without it, only list what would be uploaded')
    .option('--private', 'create the repository as private')
    .option('--replace', 'remove weights from the repository that DIR does not have')
    .option('--message <text>', 'title of the commit')
    .action((dir: string, name: string, flags: PushFlags) => push(dir, name, flags, run));
}

async function push(dir: string, name: string, flags: PushFlags, run: Run): Promise<void> {
  const { parseModelName, printModelName } = await import('../../hub/name.js');
  const model = parseModelName(name);
  if (!model)
    throw new LpqError('LPQ_USAGE', `'${name}' is not a name on the Hub`, { got: name, expected: 'ORG/NAME[@BRANCH]' });
  const place = path.resolve(dir);
  const { files, notes } = await contentsOf(dir);
  const total = files.reduce((sum, { size }) => sum + size, 0);
  for (const note of notes) run.report.warn(note);
  const to = printModelName(model);
  if (!flags.yes) {
    run.report.result(
      { command: 'push', dryRun: true, dir, to, private: flags.private === true, files, bytes: total },
      table(
        ['file', 'size'],
        files.map((file) => [file.path, bytes(file.size)]),
      ) +
        line`\n${counted(files.length, 'file')}, ${bytes(total)}, would go to ${to}; lpq sent nothing. Add --yes to upload.\n`,
    );
    return;
  }
  const pushed = await upload({ place, files, total, model }, flags, run);
  run.report.result(
    { command: 'push', dir, to, files: files.length, bytes: total, ...pushed },
    line`pushed ${counted(files.length, 'file')}, ${bytes(total)}, to ${to}: ${pushed.url}\n`,
  );
}

async function upload(
  { place, files, total, model }: { place: string; files: readonly PushedFile[]; total: number; model: ModelName },
  flags: PushFlags,
  run: Run,
) {
  const { pushDirectory } = await import('../../hub/push.js');
  const { isWeightFile } = await import('../../../formats/directory/carry.js');
  const task = run.report.task('push', total);
  const pushed = await pushDirectory(
    {
      ...{ dir: place, files, model, isWeight: isWeightFile },
      private: flags.private === true,
      replace: flags.replace === true,
      message: flags.message ?? `Upload what lpq ${version()} quantized`,
    },
    {
      signal: run.interrupt.signal,
      userAgent: `lpq/${version()}; node/${process.versions.node}`,
      onProgress: (done, file) => task.update(done, file),
    },
  );
  task.end();
  return pushed;
}

interface PushedFile {
  readonly path: string;
  readonly size: number;
}

/** What is pushed of a directory: all but hidden files. Throws LPQ_FILE for one that lpq did not make, and for a part of one. */
async function contentsOf(dir: string): Promise<{ files: PushedFile[]; notes: string[] }> {
  const { directoryKind } = await import('../../../formats/canonical/source.js');
  const { listFiles } = await import('../../../formats/directory/output-directory.js');
  const kind = directoryKind(dir);
  if (kind !== 'lpq-canonical' && kind !== 'lpq-artifact')
    throw new LpqError('LPQ_FILE', `${dir} was not quantized or packed by lpq`, {
      got: kind,
      hint: "Give the -o of lpq quantize or lpq pack; upload other directories with the Hub's own tools.",
    });
  const names = (await listFiles(dir)).filter((name) => !name.split('/').some((part) => part.startsWith('.')));
  const files = names.map((name) => ({ path: name, size: statSync(path.join(dir, name)).size }));
  const notes: string[] = [];
  const card = names.includes('README.md') ? readFileSync(path.join(dir, 'README.md'), 'utf8') : '';
  if (!/^base_model:/m.test(card))
    notes.push('its card (README.md) names no base model, because it was made from a directory without a Hub name');
  return { files, notes };
}
