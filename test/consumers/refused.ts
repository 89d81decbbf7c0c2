import assert from 'node:assert/strict';
import { cpSync } from 'node:fs';
import path from 'node:path';
import { run } from '../engines/directories.js';
import { lpq } from '../src/cli/lpq.js';
import { ARCHITECTURES } from '../src/model/fixtures.js';

/** Models that lpq refuses for targets, by what load.py shows of them: it writes what lpq does not, and its reader misses it. */
export const REFUSED = {
  // Experts of GPT-OSS under a name each.
  single_experts: {
    targets: ['gptq', 'awq', 'compressed-tensors'],
    sentence: /LPQ_TARGET {2}target \S+ has no names for the experts of /,
  },
  conv1d: {
    targets: ['awq', 'compressed-tensors'],
    sentence: /LPQ_TARGET .*its class is not Linear.*Pack it for gptq/s,
  },
} as const;
export const isRefused = (how: string): how is keyof typeof REFUSED => how in REFUSED;

/** What lpq refuses to write for targets of other programs, DIR/NAME then being the source, for the reader to see why. */
export async function prepareRefused(
  dir: string,
  { name, source }: { name: string; source: string },
  how: keyof typeof REFUSED,
): Promise<void> {
  const { targets, sentence } = REFUSED[how];
  const quantized = path.join(dir, `${name}.q`);
  const from = path.join(ARCHITECTURES, source);
  await run('quantize', from, '-o', quantized, '--method', 'rtn', '--no-report', '--bits', '4', '--group-size', '32');
  for (const target of targets) {
    const out = path.join(dir, `${name}-${target}`);
    const { code, stderr } = await lpq(['pack', quantized, '--target', target, '-o', out]);
    assert.equal(code, 2, stderr);
    assert.match(stderr, sentence);
  }
  cpSync(from, path.join(dir, name), { recursive: true });
}
