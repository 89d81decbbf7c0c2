import assert from 'node:assert/strict';
import { test } from 'node:test';
import { oneLine, visible, visibleJson } from '../../../src/core/visible.js';

/** Written apart from the code: by code point, what must not reach a terminal. */
function hostile(code: number): boolean {
  if (code < 0x20 || (code >= 0x7f && code <= 0x9f)) return true;
  if ([0x61c, 0x200e, 0x200f, 0x2028, 0x2029, 0xfeff].includes(code)) return true;
  return (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x206f) || (code >= 0xd800 && code <= 0xdfff);
}

test('every code point: what a terminal would obey is spelled out, all else stays', () => {
  for (let code = 0; code < 0x30000; code++) {
    const char = String.fromCodePoint(code);
    const text = `a${char}b`;
    if (hostile(code)) {
      assert.match(oneLine(text), /^a\\[\\xu{}0-9a-fnrt]+b$/, code.toString(16));
      assert.equal(visible(text), char === '\n' || char === '\t' ? text : oneLine(text));
    } else if (code < 0xfff9 || code > 0xfffb) {
      assert.equal(oneLine(text), text, code.toString(16));
      assert.equal(visible(text), text);
    }
  }
});

test('JSON stays JSON, on one line, and means the same', () => {
  const all = Array.from({ length: 0x10000 }, (_, code) => String.fromCharCode(code)).join('');
  for (const value of [all, { [all.slice(0, 0x400)]: ['\u{e0041}\u{1f600}', 1.5, null] }]) {
    const text = visibleJson(value);
    assert.deepEqual(JSON.parse(text), value);
    for (const char of text) assert.ok(!hostile(char.codePointAt(0) as number));
  }
});
