import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import fc from 'fast-check';
import { bundledCalibration } from '../../../src/calibrate/bundled.js';
import { calibrationRecord, cutWindows, loadCalibration } from '../../../src/calibrate/text.js';
import { LpqError } from '../../../src/core/error.js';
import { scratch } from '../../formats/scratch.js';

const dir = scratch();
/** One token a character: its code. */
const codes = (text: string) => Int32Array.from(text, (letter) => letter.charCodeAt(0));
const encode = async (text: string) => codes(text);
const write = (name: string, content: string | Uint8Array): string => {
  const file = path.join(dir, name);
  writeFileSync(file, content);
  return file;
};
const refuses = (run: () => Promise<unknown>, code: string, words: RegExp, got?: RegExp) =>
  assert.rejects(
    run,
    (error) =>
      error instanceof LpqError &&
      error.code === code &&
      words.test(error.message) &&
      (!got || got.test(String(error.got))),
  );

test('a text: distinct whole windows of it, chosen by the seed', async () => {
  const text = Array.from({ length: 1003 }, (_, i) => String.fromCharCode(65 + i)).join('');
  const file = write('letters.txt', text);
  const all = codes(text);
  await fc.assert(
    fc.asyncProperty(
      fc.integer({ min: 1, max: 60 }),
      fc.integer({ min: 1, max: 40 }),
      fc.nat(),
      async (length, samples, seed) => {
        const chosen = await loadCalibration(file, encode, { samples, length, seed });
        const available = Math.floor(1003 / length);
        assert.equal(chosen.kind, 'windows');
        assert.equal(chosen.available, available);
        assert.equal(chosen.sequences.length, Math.min(samples, available));
        assert.equal(chosen.tokens, chosen.sequences.length * length);
        const starts = chosen.sequences.map((window) => window[0]! - 65);
        assert.equal(new Set(starts).size, starts.length);
        chosen.sequences.forEach((window, i) => {
          assert.equal(starts[i]! % length, 0);
          assert.deepEqual([...window], [...all.subarray(starts[i], starts[i]! + length)]);
        });
        const again = await loadCalibration(file, encode, { samples, length, seed });
        assert.deepEqual(again, chosen);
      },
    ),
    { numRuns: 50 },
  );
  const draw = async (seed: number) =>
    (await loadCalibration(file, encode, { samples: 8, length: 10, seed })).sequences;
  assert.notDeepEqual(await draw(0), await draw(1));
  assert.equal(
    (await loadCalibration(file, encode, { samples: 1, length: 1, seed: 0 })).sha256,
    createHash('sha256').update(readFileSync(file)).digest('hex'),
  );
});

test('documents: of their own length, cut but not joined; joined when asked', async () => {
  const texts = ['short', 'a document of middling length', '', 'x'];
  const file = write('documents.jsonl', `${texts.map((text) => JSON.stringify({ text })).join('\n')}\n\n`);
  const chosen = await loadCalibration(file, encode, { samples: 10, length: 12, seed: 3 });
  assert.equal(chosen.kind, 'documents');
  assert.deepEqual(chosen.sequences.map((ids) => String.fromCharCode(...ids)).sort(), ['a document o', 'short', 'x']);
  assert.equal(chosen.tokens, 12 + 5 + 1);
  assert.equal((await loadCalibration(file, encode, { samples: 2, length: 12, seed: 3 })).sequences.length, 2);
  const joined = await loadCalibration(file, encode, { samples: 10, length: 7, seed: 3, join: true });
  assert.equal(joined.kind, 'windows');
  assert.deepEqual(
    joined.sequences.map((ids) => String.fromCharCode(...ids)).sort(),
    cutWindows(codes(texts.join('')), 7, file)
      .map((ids) => String.fromCharCode(...ids))
      .sort(),
  );
});

test('a prefix: every window and document begins with it, once, and it is among their tokens', async () => {
  const bos = 66;
  const prefix = Int32Array.of(bos);
  const strings = (sequences: readonly Int32Array[]) => sequences.map((ids) => String.fromCharCode(...ids));
  // 'B' is the token. Where the text has it at a cut, it is not there twice; elsewhere it stays.
  const cuts = (text: string, length: number) => strings(cutWindows(codes(text), length, 'x', prefix));
  assert.deepEqual(cuts('abcdefgh', 4), ['Babc', 'Bdef']);
  assert.deepEqual(cuts('Babcdefgh', 4), ['Babc', 'Bdef']);
  assert.deepEqual(cuts('BBabcBdefgh', 4), ['Babc', 'Bdef']);
  assert.deepEqual(cuts('abBcdefgh', 4), ['BabB', 'Bcde', 'Bfgh']);
  fc.assert(
    fc.property(fc.string({ maxLength: 200 }), fc.integer({ min: 3, max: 20 }), (text, length) => {
      const ids = codes(text);
      const two = Int32Array.of(-1, -2);
      fc.pre(ids.length >= length);
      const windows = cutWindows(ids, length, 'x', two);
      assert.equal(windows.length, Math.floor(ids.length / (length - 2)));
      for (const window of windows) assert.deepEqual([window.length, window[0], window[1]], [length, -1, -2]);
      const joined = windows.flatMap((window) => [...window.subarray(2)]);
      assert.deepEqual(joined, [...ids.subarray(0, joined.length)]);
    }),
  );
  const file = write(
    'begun.jsonl',
    ['short', 'Bown', 'a longer document', ''].map((text) => `{"text": "${text}"}\n`).join(''),
  );
  const options = { samples: 10, length: 8, seed: 0, prefix };
  const documents = await loadCalibration(file, encode, options);
  assert.deepEqual(strings(documents.sequences).sort(), ['Ba longe', 'Bown', 'Bshort']);
  assert.equal(documents.tokens, 18);
  assert.deepEqual(documents.prefix, [bos]);
  assert.deepEqual(calibrationRecord(documents).prefix, [bos]);
  const joined = await loadCalibration(file, encode, { ...options, join: true });
  assert.deepEqual(strings(joined.sequences).sort(), ['Bger doc', 'BshortBo', 'Bwna lon']);
  // A model whose tokenizer puts nothing there: nothing of it is recorded.
  assert.ok(
    !('prefix' in calibrationRecord(await loadCalibration(file, encode, { ...options, prefix: Int32Array.of() }))),
  );
  await refuses(() => loadCalibration(file, encode, { ...options, length: 1 }), 'LPQ_USAGE', /1 tokens leave no room/);
});

test('texts that cannot be used are refused', async () => {
  const options = { samples: 1, length: 4, seed: 0 };
  const short = write('short.txt', 'abc');
  await refuses(
    () => loadCalibration(short, encode, options),
    'LPQ_CALIBRATION_TEXT',
    /short.txt is shorter/,
    /3 tokens/,
  );
  const latin = write('latin.txt', Uint8Array.of(0x61, 0xe9, 0x62));
  await refuses(() => loadCalibration(latin, encode, options), 'LPQ_CALIBRATION_TEXT', /latin.txt is not UTF-8/);
  const broken = write('broken.jsonl', '{"text": "fine"}\n{"text": \n');
  await refuses(
    () => loadCalibration(broken, encode, options),
    'LPQ_CALIBRATION_TEXT',
    /line 2 of .*broken.jsonl is not JSON/,
  );
  for (const line of ['{"content": "x"}', '{"text": 3}', 'null', '"text"']) {
    const other = write('other.jsonl', line);
    await refuses(
      () => loadCalibration(other, encode, options),
      'LPQ_CALIBRATION_TEXT',
      /line 1 .* no string under "text"/,
    );
  }
  const empty = write('empty.jsonl', '{"text": ""}\n');
  await refuses(() => loadCalibration(empty, encode, options), 'LPQ_CALIBRATION_TEXT', /no document/);
  await refuses(() => loadCalibration(path.join(dir, 'nowhere.txt'), encode, options), 'LPQ_FILE', /nowhere.txt/);
  await refuses(() => loadCalibration(short, encode, { ...options, samples: 0 }), 'LPQ_USAGE', /samples/);
  await refuses(() => loadCalibration(short, encode, { ...options, length: 1.5 }), 'LPQ_USAGE', /length/);
  await refuses(() => loadCalibration(short, encode, { ...options, seed: -1 }), 'LPQ_USAGE', /seed/);
});

test('the bundled text is there and long enough for the defaults', () => {
  assert.ok(readFileSync(bundledCalibration(), 'utf8').length > 1_000_000);
});
