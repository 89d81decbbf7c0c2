import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { createRuntime } from '../../../native/binding.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { lpq } from '../cli/lpq.js';
import { writeWidened } from '../model/fixtures.js';
import { BYTES } from '../pack/llama-cpp.js';

const runtime = createRuntime(2);
const root = mkdtempSync(path.join(tmpdir(), 'lpq-gguf-searched-'));
after(() => rmSync(root, { recursive: true, force: true }));

for (const [kind, config] of [
  ['gpt2', {}],
  ['qwen3_5_text', { linear_key_head_dim: 64 }],
] as const)
  test(`blocks are searched in the weights of --source as the file has them: ${kind}`, async () => {
    const place = (name: string) => path.join(root, `${kind} ${name}`);
    const [source, against] = [place('source'), place('quantized')];
    await writeWidened(kind, source, { vocab_size: 320, ...config });
    writeFileSync(path.join(source, 'tokenizer.json'), JSON.stringify(BYTES));
    const { code, stderr } = await lpq([
      ...['quantize', source, '-o', against, '--method', 'rtn', '--bits', '4', '--group-size', '32'],
    ]);
    assert.equal(code, 0, stderr);
    const input = CanonicalCheckpoint.open(against);
    const dir = place('gguf');
    await packCheckpoint({ input, target: 'gguf-q6_k', output: dir, runtime, source });
    input.close();
    const report = await verifyArtifact({ dir, against, source, runtime });
    assert.deepEqual(report.failures, []);
  });
