import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { cpSync, existsSync, readdirSync, readFileSync, statSync, truncateSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { setTimeout } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { lpq, model, root, scratch } from './lpq.js';

/**
 * Runs lpq, stops it as soon as it has mapped `file`, and cuts that off at `bytes`. Undefined where it had ended before.
 */
async function truncatedUnder(args: readonly string[], file: string, bytes: number) {
  const child = spawn(process.execPath, [path.join(root, 'bin', 'lpq.js'), ...args], {
    cwd: root,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let said = '';
  child.stdout.on('data', (chunk) => (said += chunk));
  child.stderr.on('data', (chunk) => (said += chunk));
  const ended = new Promise<{ code: number | null; signal: string | null }>((resolve) =>
    child.on('close', (code, signal) => resolve({ code, signal })),
  );
  const mapped = () => {
    try {
      return readFileSync(`/proc/${child.pid}/maps`, 'utf8').includes(file);
    } catch {
      return false;
    }
  };
  while (child.exitCode === null && !mapped()) await setTimeout(1);
  child.kill('SIGSTOP');
  truncateSync(file, bytes);
  child.kill('SIGCONT');
  return { ...(await ended), said };
}

function copyOf(t: TestContext, from: string): { dir: string; copy: string; file: string; size: number } {
  const dir = scratch(t);
  const copy = path.join(dir, 'in');
  cpSync(from, copy, { recursive: true });
  const file = path.join(copy, 'model.safetensors');
  return { dir, copy, file, size: statSync(file).size };
}

// All of the data; half of it; the end of the last page, which reads as zeros without a signal.
const CUTS: readonly (readonly [string, (size: number) => number])[] = [
  ['to nothing', () => 0],
  ['in the middle', (size) => size >> 1],
  ['by a byte', (size) => size - 1],
];

for (const [how, cut] of CUTS)
  test(`weights cut off ${how} while quantize reads them: LPQ_FILE names the file, and nothing is left`, async (t) => {
    const { dir, copy, file, size } = copyOf(t, model);
    const out = path.join(dir, 'out');
    const args = ['quantize', copy, '-o', out, '--bits', '4', '--method', 'rtn', '--no-report'];
    const ran = await truncatedUnder(args, file, cut(size));
    assert.deepEqual([ran.code, ran.signal], [4, null], ran.said);
    assert.match(ran.said, /^LPQ_(FILE|SAFETENSORS) .*model\.safetensors/m);
    assert.ok(!existsSync(out));
  });

test('the same under pack, verify, eval and inspect: never another error, never a result', async (t) => {
  const base = scratch(t);
  const [q, p] = [path.join(base, 'q'), path.join(base, 'p')];
  assert.equal((await lpq(['quantize', model, '-o', q, '--bits', '4', '--method', 'rtn', '--no-report'])).code, 0);
  assert.equal((await lpq(['pack', q, '--target', 'marlin', '-o', p])).code, 0);
  const text = path.join(base, 't.txt');
  writeFileSync(text, 'Once upon a time there was a small house. '.repeat(300));
  const cases: readonly (readonly [string, (copy: string, dir: string) => string[]])[] = [
    [q, (copy, dir) => ['pack', copy, '--target', 'gptq', '-o', path.join(dir, 'out')]],
    [p, (copy) => ['verify', copy]],
    [p, (copy) => ['verify', copy, '--against', q]],
    [model, (copy) => ['eval', copy, '--text', text, '--ctx', '64']],
    [model, (copy) => ['inspect', copy, '--check']],
  ];
  for (const [from, args] of cases) {
    const { dir, copy, file, size } = copyOf(t, from);
    const given = args(copy, dir);
    const ran = await truncatedUnder(given, file, size >> 1);
    assert.deepEqual([ran.code, ran.signal], [4, null], `${given[0]}: ${ran.said}`);
    assert.match(ran.said, /^LPQ_(FILE|SAFETENSORS) .*in\/model\.safetensors/m);
    assert.deepEqual(readdirSync(dir), ['in']);
  }
});

/** Runs a few lines in a process of their own, with the binding as `b`. */
function child(dir: string, lines: string): ReturnType<typeof spawnSync> {
  const file = path.join(dir, 'child.mjs');
  const binding = pathToFileURL(path.join(root, 'dist', 'native', 'binding.js')).href;
  writeFileSync(file, `import fs from 'node:fs';\nconst b = await import(${JSON.stringify(binding)});\n${lines}`);
  return spawnSync(process.execPath, [file], { encoding: 'utf8' });
}

test('lost pages read as zeros on every thread, the file is named, also once it is closed', (t) => {
  const dir = scratch(t);
  const file = path.join(dir, 'w.bin');
  writeFileSync(file, Buffer.alloc(1 << 20, 7));
  const ran = child(
    dir,
    `const map = b.mapFile(${JSON.stringify(file)});
     const tensor = map.tensor('u8', [1 << 20], 0);
     b.requireWholeFiles();
     fs.truncateSync(${JSON.stringify(file)}, 5000);
     const rt = b.createRuntime({ threads: 2 });
     const hash = new (b.addon().Sha256)();
     await hash.update(tensor);
     await rt.sync();
     const bytes = tensor.bytes();
     console.log(bytes[4999], bytes[5000], bytes[8192], bytes[(1 << 20) - 1], map.read(1000, 1)[0]);
     tensor.dispose();
     map.close();
     try { b.requireWholeFiles(); } catch (error) { console.log(error.code, error.message); }`,
  );
  assert.equal(ran.status, 0, String(ran.stderr));
  assert.equal(
    ran.stdout,
    `7 0 0 0 7\nLPQ_FILE ${file} could not be read completely: it was truncated while it was read\n`,
  );
});

test('any other SIGBUS ends the process as ever', (t) => {
  const dir = scratch(t);
  const file = path.join(dir, 'w.bin');
  writeFileSync(file, 'x');
  const ran = child(
    dir,
    `b.mapFile(${JSON.stringify(file)}); process.kill(process.pid, 'SIGBUS'); setTimeout(() => {}, 9000);`,
  );
  assert.equal(ran.signal, 'SIGBUS', String(ran.stderr));
});
