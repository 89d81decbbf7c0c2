import { mkdtempSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import type { TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';

export const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..', '..');
export const model = path.join(root, 'share', 'tiny-llama');

export interface Ran {
  readonly code: number | undefined;
  readonly stdout: string;
  readonly stderr: string;
}

/** Runs bin/lpq.js as a user would: a process of its own, no terminal. */
export async function lpq(args: readonly string[], env: Record<string, string> = {}): Promise<Ran> {
  const { exitCode, stdout, stderr } = await execa(process.execPath, [path.join(root, 'bin', 'lpq.js'), ...args], {
    reject: false,
    cwd: root,
    env,
    stdin: 'ignore',
  });
  return { code: exitCode, stdout, stderr };
}

/** Every line of stdout as an event; throws when one is not JSON. */
export function events(ran: Ran): Record<string, unknown>[] {
  return ran.stdout
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Record<string, unknown>);
}

/** A directory that goes when the test ends. */
export function scratch(t: TestContext): string {
  const dir = mkdtempSync(path.join(os.tmpdir(), 'lpq-cli-'));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}
