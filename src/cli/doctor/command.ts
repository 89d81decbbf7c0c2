import type { Command } from 'commander';
import type { Run } from '../run.js';
import { colorOn, paint } from '../terminal/terminal.js';

/** `lpq doctor`: what this machine has, and what each lack costs. `lpq doctor DIR`: what is wrong with a checkpoint. */
export function doctorCommand(program: Command, run: Run): Command {
  return program
    .command('doctor')
    .description('check this machine and say what each missing part costs, or find what is wrong with a checkpoint')
    .argument(
      '[dir]',
      'checkpoint: plain, quantized by any tool, or packed; a directory, or ORG/NAME[@REVISION] on the Hub',
    )
    .action(async (dir: string | undefined) => {
      if (dir === undefined) return doctor(run);
      const { doctorDirectory } = await import('./directory.js');
      return doctorDirectory(dir, run);
    });
}

async function doctor(run: Run): Promise<void> {
  const { examine } = await import('./examination.js');
  const findings = await examine();
  const width = Math.max(...findings.map(({ name }) => name.length));
  const color = colorOn(process.stdout);
  const lines = findings.map(({ name, status, found, cost, remedy }) => {
    const mark = {
      ok: paint('ok     ', 'green', color),
      missing: paint('missing', 'yellow', color),
      broken: paint('broken ', 'red', color),
    }[status];
    const indent = `\n${' '.repeat(width + 11)}`;
    return `${name.padEnd(width)}  ${mark}  ${found}${cost ? `${indent}${cost}` : ''}${remedy ? `${indent}${remedy}` : ''}\n`;
  });
  const broken = findings.filter(({ status }) => status === 'broken');
  const verdict =
    broken.length === 0 ? 'lpq can run here' : `lpq cannot run here: ${broken.map(({ name }) => name).join(', ')}`;
  run.report.result({ ok: broken.length === 0, findings }, `${lines.join('')}\n${verdict}\n`);
  if (broken.length > 0) run.exit = 3;
}
