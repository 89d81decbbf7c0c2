import assert from 'node:assert/strict';

const VOID = new Set(['meta', 'link', 'br', 'hr', 'img']);

/** Throws unless every element is closed in order and every & and < of text and attributes is escaped. */
export function wellFormed(html: string): void {
  const open: string[] = [];
  const body = html.replace(/^<!doctype html>/, '').replace(/<style>[\s\S]*?<\/style>/, '');
  let at = 0;
  for (const tag of body.matchAll(/<(\/?)([a-zA-Z][\w-]*)((?:\s+[\w-]+(?:="[^"<]*")?)*)\s*(\/?)>/g)) {
    text(body.slice(at, tag.index));
    at = tag.index + tag[0].length;
    const [, closing, name = '', attributes = '', self] = tag;
    for (const [, value = ''] of attributes.matchAll(/="([^"]*)"/g)) text(value);
    if (closing) assert.equal(open.pop(), name, `</${name}> closes another element`);
    else if (!self && !VOID.has(name)) open.push(name);
  }
  text(body.slice(at));
  assert.deepEqual(open, []);
}

function text(value: string): void {
  assert.doesNotMatch(value, /[<>]|&(?!(amp|lt|gt|quot|#39);)/, value.slice(0, 200));
}
