// Which glibc a binary asks for.
import { spawnSync } from 'node:child_process';

/** The newest GLIBC_x.y among the symbols that these ELF files import, as 'x.y'. */
export function newestGlibc(files) {
  const run = spawnSync('objdump', ['-T', ...files], { encoding: 'utf8', maxBuffer: 1 << 28 });
  if (run.error || run.status !== 0) throw new Error(`objdump failed (install binutils): ${run.stderr}`);
  const versions = [...run.stdout.matchAll(/\*UND\*.*GLIBC_(\d+)\.(\d+)/g)].map((match) => [
    Number(match[1]),
    Number(match[2]),
  ]);
  return versions.reduce((a, b) => ((b[0] - a[0] || b[1] - a[1]) > 0 ? b : a)).join('.');
}
