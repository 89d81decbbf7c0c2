import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { GGUF_ARCHITECTURES } from '../../formats/gguf/architectures/index.js';
import { GGUF_WRITTEN } from '../../src/model/gguf/model.js';
import { GGUF_REFUSED } from '../../src/model/gguf/refused.js';
import { ROOT } from '../src/model/fixtures.js';

/** docs/gguf.md: what is written under which name, and what is not, with the reason. */
const text = readFileSync(path.join(ROOT, 'docs', 'gguf.md'), 'utf8');

function rows(head: string): [string, string][] {
  const part = text.split(`| ${head} |`)[1]?.split('\n\n')[0] ?? '';
  return [...part.matchAll(/^\| ([^|]+) \| ([^|]+) \|$/gm)].map(([, first, second]) => [first!, second!]);
}

const typesOf = (cell: string): string[] => [...cell.matchAll(/`(\w+)`/g)].map(([, type]) => type!);

test('docs/gguf.md lists every architecture under the name that it is written with', () => {
  const listed = rows("llama.cpp's name | model_type").flatMap(([names, types]) =>
    typesOf(types).map((type) => `${type}: ${names}`),
  );
  const written = GGUF_WRITTEN.map((type) => {
    const { name, withExperts } = GGUF_ARCHITECTURES[type]!;
    const names = new Set([name, ...(withExperts ? [GGUF_ARCHITECTURES[withExperts]!.name] : [])]);
    return `${type}: ${[...names].join(', ')}`;
  });
  assert.deepEqual(listed.sort(), written.sort());
});

test('docs/gguf.md gives the reason of every refusal', () => {
  const listed = new Map(rows('model_type | why').flatMap(([types, why]) => typesOf(types).map((type) => [type, why])));
  assert.deepEqual([...listed.keys()].sort(), Object.keys(GGUF_REFUSED).sort());
  for (const [type, why] of Object.entries(GGUF_REFUSED))
    assert.equal(listed.get(type)!.replace('their latent', 'its latent'), why, type);
});
