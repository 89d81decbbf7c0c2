import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import type { GgufValue } from '../../../formats/gguf/metadata.js';
import { GgufWriter } from '../../../formats/gguf/write.js';
import { headerOf } from '../../../src/verify/gguf-header.js';
import { scratch } from '../../formats/scratch.js';

// Tokens of real models fill megabytes, so that the header's buffer grows within every kind of value.
test('headers of any length are byte for byte what the writer wrote', async () => {
  for (let shift = 0; shift < 24; shift++) {
    const tokens = Array.from({ length: 30000 }, (_, i) => `Ġ${'token'.slice(0, 1 + ((i + shift) % 5))}${i}`);
    const entries = [
      ['general.name', { type: 'string', value: 'x'.repeat(shift) }],
      ['tokenizer.ggml.tokens', { type: 'strings', value: tokens }],
      ['tokenizer.ggml.scores', { type: 'f32s', value: tokens.map((_, i) => -i) }],
      ['tokenizer.ggml.token_type', { type: 'i32s', value: tokens.map(() => 1) }],
      ['tokenizer.ggml.add_bos_token', { type: 'bool', value: true }],
    ] as const;
    const file = path.join(scratch(), 'header.gguf');
    const writer = await GgufWriter.create(file, new Map<string, GgufValue>(entries), [
      { name: 't', type: 'f32', shape: [8] },
    ]);
    await writer.write('t', new Float32Array(8));
    await writer.finish();
    const { bytes } = headerOf(entries, [{ name: 't', type: 'f32', dims: [8] }]);
    assert.ok(Buffer.from(bytes).equals(readFileSync(file).subarray(0, bytes.length)), `${shift}`);
  }
});
