import { mkdtempSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import type { TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';
import { main } from '../../../src/cli/main.js';

export const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..', '..');
export const model = path.join(root, 'share', 'tiny-llama');
/** A text of some 5,000 tokens: the bundled one has thirty times as many, which take seconds to encode. */
export const text = path.join(root, 'test', 'fixtures', 'text.txt');
export const CALIB = ['--calib', text];

export interface Ran {
  readonly code: number | undefined;
  readonly stdout: string;
  readonly stderr: string;
}

/** Runs bin/lpq.js as a user would: a process of its own, no terminal. */
export async function spawned(args: readonly string[], env: Record<string, string> = {}): Promise<Ran> {
  const { exitCode, stdout, stderr } = await execa(process.execPath, [path.join(root, 'bin', 'lpq.js'), ...args], {
    reject: false,
    cwd: root,
    env,
    stdin: 'ignore',
  });
  return { code: exitCode, stdout, stderr };
}

let before: Promise<unknown> = Promise.resolve();

/**
 * The command line in this process, which loads it once: for tests that are not about the process itself. One command at a time, in
 * whatever order they are asked for, as a process has one listener of progress and of signals. With `env`: in a process of its own.
 */
export function lpq(args: readonly string[], env?: Record<string, string>): Promise<Ran> {
  if (env) return spawned(args, env);
  const ran = before.then(() => here(args));
  before = ran;
  return ran;
}

/** Tests that are not about the measure at the end of a run leave it out: it takes as long as their models do. */
const unmeasured = (args: readonly string[]): readonly string[] =>
  args[0] === 'quantize' && !args.includes('--eval') && !args.includes('--help') ? [...args, '--no-eval'] : args;

async function here(args: readonly string[]): Promise<Ran> {
  const [stdout, stderr] = [new Told(), new Told()];
  const code = await main(unmeasured(args), { stdout, stderr } as never);
  return { code, stdout: stdout.text, stderr: stderr.text };
}

/** A stream that is no terminal, and what was written to it but for the last line's end. */
class Told {
  private written = '';

  get text(): string {
    return this.written.replace(/\n$/, '');
  }

  on(): void {}

  write(chunk: string, done?: () => void): boolean {
    this.written += chunk;
    done?.();
    return true;
  }
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
