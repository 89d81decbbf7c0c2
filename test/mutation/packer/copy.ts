import { spawnSync } from 'node:child_process';
import { cpSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Job } from './job.js';
import type { Mutant } from './mutant.js';

/** The project's root, from dist/test/mutation/packer. */
export const ROOT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../../../..');

/** The compiled packer once more, where one file at a time may be another. */
export class PackerCopy {
  constructor(readonly dir: string) {
    for (const room of ['src', 'formats', 'native', 'test/mutation'])
      cpSync(path.join(ROOT, 'dist', room), this.at(room), { recursive: true });
    cpSync(path.join(ROOT, 'package.json'), path.join(dir, 'package.json'));
    symlinkSync(path.join(ROOT, 'node_modules'), path.join(dir, 'node_modules'));
    symlinkSync(path.join(ROOT, 'share'), path.join(dir, 'share'));
  }

  /** Runs `body` with the mutant in its place. */
  async with<T>({ file, find, replace }: Mutant, body: () => Promise<T>): Promise<T> {
    const place = this.at(`${file}.js`);
    const original = readFileSync(place, 'utf8');
    try {
      writeFileSync(place, replaced(file, original, find, replace));
      return await body();
    } finally {
      writeFileSync(place, original);
    }
  }

  /** How each job ended: null, or what the packer said. A packer that dies has said so of the job it was at. */
  pack(jobs: readonly Job[], addon: string | undefined): (string | null)[] {
    const run = spawnSync(process.execPath, [this.at('test/mutation/packer/job.js'), JSON.stringify(jobs)], {
      encoding: 'utf8',
      timeout: 120_000,
      env: { ...process.env, LPQ_ADDON: addon ?? defaultAddon() },
    });
    const told = run.stdout
      .split('\n')
      .filter((line) => line !== '')
      .map((line) => (JSON.parse(line) as { error: string | null }).error);
    const death = `the packer ended with ${run.signal ?? run.status}: ${run.stderr.split('\n').find((line) => /Error/.test(line)) ?? ''}`;
    return jobs.map((_, i) => (i < told.length ? (told[i] as string | null) : death));
  }

  private at(file: string): string {
    return path.join(this.dir, 'dist', file);
  }
}

function defaultAddon(): string {
  return process.env.LPQ_ADDON ?? path.join(ROOT, 'native', 'build', 'lpq.node');
}

/** A text with one place of it changed. Throws where the text to find is not there exactly once. */
export function replaced(file: string, text: string, find: string, replace: string): string {
  const parts = text.split(find);
  if (parts.length !== 2)
    throw new Error(`${file} has the text of a mutant ${parts.length - 1} times instead of once: ${find}`);
  return parts.join(replace);
}
