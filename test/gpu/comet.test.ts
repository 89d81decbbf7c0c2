import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after } from 'node:test';
import { fileURLToPath } from 'node:url';
import { gpus, gpuTest } from './gpu.js';

// W4Ax from a model to its kernel: packed and verified, and evaluated packed and not.
const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const work = mkdtempSync(path.join(tmpdir(), 'lpq-gpu-comet-'));
after(() => rmSync(work, { recursive: true, force: true }));

function lpq(...args: string[]): Record<string, unknown> {
  const run = spawnSync(process.execPath, [path.join(root, 'bin/lpq.js'), ...args, '--json'], { encoding: 'utf8' });
  assert.equal(run.status, 0, run.stdout + run.stderr);
  return JSON.parse(run.stdout.trim().split('\n').at(-1) as string);
}

for (const scales of ['free', 'integer'])
  gpuTest(
    `an artifact for comet, ${scales} scales: its kernel is exact, and evaluates like what it was packed from`,
    (t) => {
      if (gpus[0]?.arch !== 90) return t.skip('SKIPPED: the kernel is for 9.0');
      const [quantized, packed] = [path.join(work, `quantized-${scales}`), path.join(work, `packed-${scales}`)];
      const few = ['--samples', '4', '--seq-len', '64', '--group-scales', scales];
      lpq('quantize', path.join(root, 'share/tiny-llama'), '-o', quantized, '--bits', '4', '--method', 'fmpq', ...few);
      lpq('pack', quantized, '--target', 'comet', '-o', packed);
      const { modules } = lpq('verify', packed, '--against', quantized, '--device', 'cuda') as {
        modules: { name: string; kernelRatio?: number }[];
      };
      for (const { name, kernelRatio } of modules) assert.ok(kernelRatio !== undefined && kernelRatio <= 1, name);
      const text = path.join(work, 'text.txt');
      writeFileSync(text, readFileSync(path.join(root, 'share/text/books-valid.txt'), 'utf8').slice(0, 30_000));
      const nats = (dir: string, device: string) =>
        lpq('eval', dir, '--text', text, '--ctx', '128', '--device', device).nll as number;
      const there = nats(packed, 'cuda');
      assert.equal(nats(quantized, 'cuda'), there);
      // Activations between linears have 16 bits on a device (f16 where all scales are f16) and are f32 here.
      assert.ok(Math.abs(there - nats(packed, 'cpu')) < 0.02);
    },
  );
