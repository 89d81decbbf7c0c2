import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { events, lpq, model, scratch } from '../lpq.js';

interface Row {
  readonly name: string;
  readonly bytes: number;
  readonly bitsPerWeight: number;
  readonly ppl: { readonly mean: number };
  readonly kl: { readonly mean: number } | null;
  readonly tokensPerSecond: number | null;
}

const SMALL = ['--windows', '2', '--ctx', '64', '--device', 'cpu'];

test('compare measures checkpoints of every kind against the first, as lpq eval does, and draws quality over size', async (t) => {
  const dir = scratch(t);
  const [q, p, page] = [path.join(dir, 'q3'), path.join(dir, 'q3-gptq'), path.join(dir, 'c.html')];
  const made = await lpq(['quantize', model, '-o', q, '--bits', '3', '--method', 'rtn', '--pack', 'gptq', '--no-eval']);
  assert.equal(made.code, 0, made.stderr);
  const ran = await lpq(['compare', model, q, p, ...SMALL, '--speed', '-o', page, '--json']);
  assert.equal(ran.code, 0, ran.stderr + ran.stdout);
  const result = events(ran).find(({ event }) => event === 'result') as unknown as { rows: Row[]; windows: number };
  const [source, canonical, packed] = result.rows as [Row, Row, Row];
  assert.equal(result.windows, 2);
  assert.equal(source.kl, null);
  // bf16 throughout: 16 bits of every weight, but for norms and the header, which are less than a hundredth.
  assert.ok(Math.abs(source.bitsPerWeight / 16 - 1) < 0.01, String(source.bitsPerWeight));
  assert.ok(packed.bytes < source.bytes && canonical.bytes < source.bytes);
  // Packing changes no weight: both are decoded to the same numbers.
  assert.ok((canonical.kl?.mean ?? 0) > 0 && Math.abs((packed.kl?.mean ?? 0) / (canonical.kl?.mean ?? 1) - 1) < 1e-5);
  assert.ok(result.rows.every(({ tokensPerSecond }) => (tokensPerSecond ?? 0) > 0));
  const html = readFileSync(page, 'utf8');
  // A point a checkpoint, but for the source, whose distance from itself nobody asked for.
  assert.equal(html.match(/<circle [^>]*><title>/g)?.length, 2);
  for (const name of [q, p]) assert.ok(html.includes(name));

  const again = await lpq(['compare', model, q, ...SMALL, '-o', page]);
  assert.notEqual(again.code, 0);
  assert.match(again.stderr, /^LPQ_OUTPUT_EXISTS/);
});

test('compare refuses a checkpoint twice and a source that is quantized, and writes nothing', async (t) => {
  const page = path.join(scratch(t), 'c.html');
  const twice = await lpq(['compare', model, model, '-o', page]);
  assert.equal(twice.code, 2, twice.stderr);
  assert.match(twice.stderr, /^LPQ_USAGE .*given twice/);
  const none = await lpq(['compare', model, '--source', 'nowhere', '-o', page]);
  assert.equal(none.code, 4, none.stderr);
  assert.ok(!existsSync(page));
});
