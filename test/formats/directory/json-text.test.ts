import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { withMember } from '../../../formats/directory/json-text.js';
import { designed } from '../scratch.js';

const FILE = 'config.json';
const set = (text: string, value: unknown) => withMember(text, 'q', value, FILE);

/** Numbers whose text JSON.parse and JSON.stringify do not give back. */
const NUMBERS = ['30.0', '1e-05', '1E5', '-0', '18446744073709551616', '0.10', '1.0e+2'];

test('a member is set in the place and the indentation of the text, and every other byte stays', () => {
  for (const [text, expected] of [
    ['{\n  "a": 30.0\n}\n', '{\n  "a": 30.0,\n  "q": {\n    "b": [\n      1\n    ]\n  }\n}\n'],
    ['{\r\n\t"a": 1e-05\r\n}', '{\r\n\t"a": 1e-05,\r\n\t"q": {\r\n\t\t"b": [\r\n\t\t\t1\r\n\t\t]\r\n\t}\r\n}'],
    ['{"a": 1.0}', '{"a": 1.0, "q": {"b":[1]}}'],
    ['{"q":7 , "a": 1.0}', '{"q":{"b":[1]} , "a": 1.0}'],
    [' {}\n', ' {\n  "q": {\n    "b": [\n      1\n    ]\n  }\n}\n'],
    // A parser takes the last of several.
    ['{"q": 1, "a": -0, "q": 2, "z": 3}', '{"a": -0, "q": {"b":[1]}, "z": 3}'],
    ['{"a": {"q": 1.0}, "\\u0071": 2}', '{"a": {"q": 1.0}, "\\u0071": {"b":[1]}}'],
  ] as const)
    assert.equal(set(text, { b: [1] }), expected);
});

test('a member that is taken out leaves one comma fewer, wherever it stands and however often', () => {
  for (const [text, expected] of [
    ['{"q": 1, "a": 1.0}', '{"a": 1.0}'],
    ['{\n  "a": 1.0,\n  "q": {"a": 2}\n}\n', '{\n  "a": 1.0\n}\n'],
    ['{\n  "a": 1.0,\n  "q": {},\n  "z": 0.0\n}', '{\n  "a": 1.0,\n  "z": 0.0\n}'],
    ['{"q": 1, "q": 2}', '{}'],
    ['{"q": 1, "a": 2.0, "q": 3}', '{"a": 2.0}'],
    ['{"a": 2.0}', '{"a": 2.0}'],
  ] as const)
    assert.equal(set(text, undefined), expected);
});

test('any object: what JSON.parse reads is as if the member had been assigned, and numbers keep their text', () => {
  const value = fc.oneof(
    fc.constantFrom(...NUMBERS),
    fc.json({ maxDepth: 2 }),
    fc.constantFrom(...NUMBERS).map((number) => `{"deep": [${number}]}`),
  );
  const key = fc.constantFrom('q', 'a', 'b', '__proto__', 'text_config', 'x"y');
  const space = fc.constantFrom('', ' ', '\n  ', '\r\n\t');
  fc.assert(
    fc.property(fc.array(fc.tuple(key, value), { maxLength: 6 }), space, fc.boolean(), (members, lead, out) => {
      const text = `{${members.map(([name, of]) => `${lead}${JSON.stringify(name)}: ${of}`).join(',')}${lead}}`;
      const changed = set(text, out ? undefined : { list: [1, 'two'] });
      const expected = JSON.parse(text) as Record<string, unknown>;
      if (out) delete expected.q;
      else expected.q = { list: [1, 'two'] };
      assert.deepEqual(JSON.parse(changed), expected);
      for (const [name, of] of members) if (name !== 'q') assert.ok(changed.includes(`${JSON.stringify(name)}: ${of}`));
      assert.equal(set(changed, out ? undefined : { list: [1, 'two'] }), changed, 'a second time changes nothing');
    }),
  );
});

test('text that is no object, or nests without an end, is refused by the name of its file', () => {
  for (const text of ['[1]', '7', '']) assert.throws(() => set(text, 1), designed('LPQ_CONFIG', FILE));
  const deep = `{"a": ${'['.repeat(200_000)}${']'.repeat(200_000)}}`;
  assert.throws(() => set(deep, 1), designed('LPQ_CONFIG', 'nests too deeply'));
});
