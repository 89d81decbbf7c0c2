import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const script = path.join(path.dirname(fileURLToPath(import.meta.url)), 'fingerprint.js');

interface Fingerprint {
  readonly isa: string;
  readonly threads: number;
  readonly hashes: readonly (readonly [name: string, sha256: string])[];
}

function fingerprint(isa: string, threads: number): Fingerprint {
  const env = { ...process.env, LPQ_ISA: isa, LPQ_THREADS: String(threads) };
  return JSON.parse(execFileSync(process.execPath, [script], { env, encoding: 'utf8' })) as Fingerprint;
}

const first = fingerprint('generic', 1);

for (const isa of ['generic', 'avx2', 'avx512', 'avx512bf16'])
  for (const threads of [1, 2, 3])
    test(`the same bytes from ${isa} with ${threads} threads`, (t) => {
      const other = fingerprint(isa, threads);
      if (other.isa !== isa) t.diagnostic(`SKIPPED ${isa}: this machine has ${other.isa} only`);
      assert.equal(other.threads, threads);
      for (const [i, [name, hash]] of other.hashes.entries()) assert.equal(hash, first.hashes[i]![1], name);
      assert.equal(other.hashes.length, first.hashes.length);
    });
