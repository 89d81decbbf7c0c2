import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import fc from 'fast-check';
import { loadMix, parseWeighted, sharesOf } from '../../../src/calibrate/mix.js';
import { loadCalibration } from '../../../src/calibrate/text.js';
import { designed, scratch } from '../../formats/scratch.js';

const dir = scratch();
const encode = async (text: string) => Int32Array.from(text, (letter) => letter.charCodeAt(0));
const write = (name: string, content: string): string => {
  const file = path.join(dir, name);
  writeFileSync(file, content);
  return file;
};
const letters = (first: number, count: number) =>
  Array.from({ length: count }, (_, i) => String.fromCharCode(first + i)).join('');
const a = write('a.txt', letters(0x1000, 800));
const b = write('b.txt', letters(0x2000, 600));
const c = write('c.jsonl', [...'pqrstuvwxyz'].map((text) => JSON.stringify({ text: text.repeat(5) })).join('\n'));

test('FILE:WEIGHT', () => {
  assert.deepEqual(parseWeighted('a.jsonl:0.7'), { file: 'a.jsonl', weight: 0.7 });
  assert.deepEqual(parseWeighted('a.jsonl:3'), { file: 'a.jsonl', weight: 3 });
  assert.deepEqual(parseWeighted('a.jsonl'), { file: 'a.jsonl', weight: 1 });
  assert.deepEqual(parseWeighted('x:y/a.txt'), { file: 'x:y/a.txt', weight: 1 });
  assert.deepEqual(parseWeighted('http:a.txt'), { file: 'http:a.txt', weight: 1 });
  const odd = write('odd.txt:2', 'x');
  assert.deepEqual(parseWeighted(odd), { file: odd, weight: 1 });
  for (const weight of ['0', '-1', '1e999', '0.5.5', '.'])
    assert.throws(() => parseWeighted(`a.txt:${weight}`), designed('LPQ_USAGE', /--calib does not take the weight/));
});

test('shares add up, and none is a sample or more away from its weight', () => {
  fc.assert(
    fc.property(
      fc.array(fc.integer({ min: 1, max: 9 }), { minLength: 1, maxLength: 6 }),
      fc.nat(500),
      (weights, more) => {
        const samples = 60 + more;
        const shares = sharesOf(
          weights.map((weight) => ({ file: 'f', weight })),
          samples,
        );
        const sum = weights.reduce((x, y) => x + y, 0);
        assert.equal(
          shares.reduce((x, y) => x + y, 0),
          samples,
        );
        for (const [i, share] of shares.entries())
          assert.ok(Math.abs(share - (samples * (weights[i] as number)) / sum) < 1);
      },
    ),
  );
  const file = (weight: number) => ({ file: 'f', weight });
  assert.deepEqual(sharesOf([file(0.7), file(0.3)], 10), [7, 3]);
  assert.deepEqual(sharesOf([file(1), file(1), file(1)], 10), [4, 3, 3]);
  assert.throws(() => sharesOf([file(99), file(1)], 10), designed('LPQ_USAGE', /to give none of the 10 sequences/));
});

test('a mix: every file gives its share, drawn as if it were alone, in one shuffled order', async () => {
  const options = { samples: 30, length: 10, seed: 5 };
  const files = [
    { file: a, weight: 0.5 },
    { file: b, weight: 0.3 },
    { file: c, weight: 0.2 },
  ];
  const mix = await loadMix(files, encode, options);
  assert.equal(mix.kind, 'mix');
  assert.equal(mix.name, 'a.txt:0.5 + b.txt:0.3 + c.jsonl:0.2');
  assert.deepEqual(
    mix.files?.map(({ name, weight, sequences, tokens }) => [name, weight, sequences, tokens]),
    [
      ['a.txt', 0.5, 15, 150],
      ['b.txt', 0.3, 9, 90],
      ['c.jsonl', 0.2, 6, 30],
    ],
  );
  assert.equal(mix.tokens, 270);
  assert.equal(mix.available, 80 + 60 + 11);
  const alone: Int32Array[] = [];
  for (const [i, file] of [a, b, c].entries()) {
    const own = await loadCalibration(file, encode, { ...options, samples: [15, 9, 6][i] as number });
    assert.equal(mix.files?.[i]?.sha256, own.sha256);
    alone.push(...own.sequences);
  }
  const text = (ids: Int32Array) => String.fromCharCode(...ids);
  assert.deepEqual(mix.sequences.map(text).sort(), alone.map(text).sort());
  assert.notDeepEqual(mix.sequences.map(text), alone.map(text));
  // Half of the sequences, which is what GPTAQ looks at, are of every file.
  const kinds = new Set(mix.sequences.slice(0, 15).map((ids) => (ids[0] as number) >> 12));
  assert.equal(kinds.size, 3);
  assert.deepEqual(await loadMix(files, encode, options), mix);
  const lines = mix.files?.map(({ sha256, weight }) => `${sha256} ${weight}\n`).join('') ?? '';
  assert.equal(mix.sha256, createHash('sha256').update(lines).digest('hex'));
  const other = await loadMix(files, encode, { ...options, seed: 6 });
  assert.notDeepEqual(other.sequences, mix.sequences);
});

test('one file is what it always was; too short ones give what they have; twice the same is refused', async () => {
  const options = { samples: 30, length: 10, seed: 5 };
  assert.deepEqual(
    await loadMix([{ file: a, weight: 0.2 }], encode, options),
    await loadCalibration(a, encode, options),
  );
  const short = await loadMix(
    [
      { file: a, weight: 1 },
      { file: c, weight: 1 },
    ],
    encode,
    options,
  );
  assert.deepEqual(
    short.files?.map(({ sequences }) => sequences),
    [15, 11],
  );
  const copy = write('copy.txt', letters(0x1000, 800));
  await assert.rejects(
    () =>
      loadMix(
        [
          { file: a, weight: 1 },
          { file: copy, weight: 1 },
        ],
        encode,
        options,
      ),
    designed('LPQ_USAGE', /copy.txt is the same text as another one/),
  );
});
