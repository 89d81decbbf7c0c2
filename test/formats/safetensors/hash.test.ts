import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { ChunkedHash, hashTensor, sha256, startHash } from '../../../formats/safetensors/hash.js';
import { addon, allocate, fromTyped } from '../../../native/binding.js';
import { tensorHash } from './tensor-hash.js';

const reference = (bytes: Uint8Array) => createHash('sha256').update(bytes).digest('hex');

function noise(length: number): Uint8Array {
  let x = 0x2545f491;
  return Uint8Array.from({ length }, () => {
    x = (Math.imul(x, 1664525) + 1013904223) >>> 0;
    return x >>> 24;
  });
}

// Around the size that is hashed at once, the slice of a thread, and none at all.
const SIZES = [0, 1, 63, 64, 65535, 65536, 65537, 2 ** 20, 2 ** 20 + 1, 3 * 2 ** 20 + 17];

test('native and chunked hashes are those of node:crypto, of tensors, views and typed arrays', async () => {
  const bytes = noise(SIZES.at(-1) as number);
  for (const size of SIZES) {
    const part = bytes.slice(0, size);
    const want = reference(part);
    const tensor = fromTyped('u8', [size], part);
    assert.equal(await sha256(tensor), want, `tensor of ${size}`);
    assert.equal(await sha256(part), want, `array of ${size}`);
    const chunked = new ChunkedHash();
    await chunked.update(part);
    assert.equal(chunked.digest(), want);
    tensor.dispose();
  }
  const tensor = fromTyped('u8', [bytes.length], bytes);
  assert.equal(await sha256(tensor.view([1000], 77)), reference(bytes.subarray(77, 1077)));
  assert.equal(await sha256(new Uint16Array(bytes.buffer, 2, 500)), reference(bytes.subarray(2, 1002)));
});

test('a tensor’s hash covers name, dtype and shape beside the bytes, and no two of these read alike', async () => {
  const data = noise(24);
  const alike = [
    { name: 'norm.weight', dtype: 'BF16', shape: [12] },
    { name: 'norm.weight', dtype: 'F16', shape: [12] },
    { name: 'norm.weight', dtype: 'BF16', shape: [3, 4] },
    { name: 'norm.weight', dtype: 'BF16', shape: [4, 3] },
    { name: 'norm.weight', dtype: 'BF16', shape: [12, 1] },
    { name: 'norm.weightB', dtype: 'F16', shape: [12] },
    { name: 'ñ😀', dtype: 'U8', shape: [24] },
    { name: '', dtype: 'U8', shape: [] },
  ];
  const got = await Promise.all(alike.map((facts) => hashTensor(facts, data)));
  assert.deepEqual(
    got,
    alike.map((facts) => tensorHash(facts, data)),
  );
  assert.equal(new Set(got).size, alike.length);
});

test('pieces in order, many hashes at once', async () => {
  const bytes = noise(2 ** 21);
  const want = reference(bytes);
  const hashes = Array.from({ length: 40 }, async (_, i) => {
    const hash = startHash();
    const cut = 1 + i * 50_000;
    await hash.update(bytes.subarray(0, cut));
    await hash.update(bytes.subarray(cut));
    return hash.digest();
  });
  for (const got of await Promise.all(hashes)) assert.equal(got, want);
});

test('updates that are not waited for keep their order and their bytes, though the tensor be disposed of', async () => {
  const bytes = noise(2 ** 20);
  const hash = new (addon().Sha256)();
  const updates: Promise<void>[] = [];
  for (let at = 0; at < bytes.length; at += 2 ** 17) {
    const tensor = fromTyped('u8', [2 ** 17], bytes.subarray(at, at + 2 ** 17));
    updates.push(hash.update(tensor));
    tensor.dispose();
  }
  await Promise.all(updates);
  assert.equal(hash.digest(), reference(bytes));
});

test('misuse of the native hash is refused', async () => {
  const hash = new (addon().Sha256)();
  const disposed = allocate('u8', [8]);
  disposed.dispose();
  assert.throws(() => hash.update(disposed), { code: 'LPQ_NATIVE_DISPOSED' });
  assert.throws(() => hash.update(3 as never), { code: 'LPQ_NATIVE_ARGUMENT' });
  const update = hash.update(allocate('u8', [2 ** 24]));
  assert.throws(() => hash.digest(), { code: 'LPQ_NATIVE_ARGUMENT' });
  await update;
  hash.digest();
  assert.throws(() => hash.digest(), { code: 'LPQ_NATIVE' });
  await assert.rejects(async () => hash.update(new Uint8Array(2 ** 20)), { code: 'LPQ_NATIVE' });
});

/** Runs a script that has `addon` and `tensor` of 256 MB; its exit code and what it printed. */
function child(script: string) {
  const binding = path.join(path.dirname(fileURLToPath(import.meta.url)), '../../../native/binding.js');
  const text = `import { addon, allocate } from ${JSON.stringify(pathToFileURL(binding).href)};
    const tensor = allocate('u8', [2 ** 28]);
    ${script}`;
  const { status, signal, stderr } = spawnSync(process.execPath, ['--input-type=module', '-e', text], {
    encoding: 'utf8',
  });
  return { status, signal, stderr };
}

test('a process may end in the middle of hashing, by itself or on request', () => {
  const started = 'for (let i = 0; i < 12; i++) new (addon().Sha256)().update(tensor)';
  assert.deepEqual(child(`${started}; setTimeout(() => process.exit(7), 30);`), {
    status: 7,
    signal: null,
    stderr: '',
  });
  // Unsettled updates keep the process until they have ended.
  const waits = `let ended = 0; ${started}.then(() => ended++); process.on('exit', () => { process.exitCode = ended; });`;
  assert.deepEqual(child(waits), { status: 12, signal: null, stderr: '' });
});

test('an environment that ends in the middle of hashing takes nobody along', () => {
  const binding = JSON.stringify(
    pathToFileURL(path.join(path.dirname(fileURLToPath(import.meta.url)), '../../../native/binding.js')).href,
  );
  const inner = `import(${binding}).then(({ addon, allocate }) => {
    const own = allocate('u8', [2 ** 27]);
    for (let i = 0; i < 8; i++) new (addon().Sha256)().update(own);
    import('node:worker_threads').then(({ parentPort }) => parentPort.postMessage('begun'));
  });`;
  const script = `const { Worker } = await import('node:worker_threads');
    const worker = new Worker(${JSON.stringify(inner)}, { eval: true });
    await new Promise((resolve) => worker.once('message', resolve));
    await worker.terminate();
    const hash = new (addon().Sha256)();
    await hash.update(tensor.view([2 ** 22]));
    process.exitCode = hash.digest().length;`;
  assert.deepEqual(child(script), { status: 64, signal: null, stderr: '' });
});
