// Which libraries' versions a binary asks for, of any architecture.
import { spawnSync } from 'node:child_process';

/** The newest NAME_x.y that an ELF file needs, as 'x.y'; undefined where it needs none. */
export function newestWanted(file, name) {
  const run = spawnSync('readelf', ['--version-info', '--wide', file], { encoding: 'utf8', maxBuffer: 1 << 28 });
  if (run.error || run.status !== 0) throw new Error(`readelf failed (install binutils): ${run.stderr}`);
  const needs = run.stdout.slice(run.stdout.indexOf('.gnu.version_r'));
  const versions = [...needs.matchAll(new RegExp(`Name: ${name}_([\\d.]+)`, 'g'))].map((match) =>
    match[1].split('.').map(Number),
  );
  const newest = versions.sort((a, b) => a[0] - b[0] || (a[1] ?? 0) - (b[1] ?? 0) || (a[2] ?? 0) - (b[2] ?? 0)).at(-1);
  return newest?.join('.');
}
