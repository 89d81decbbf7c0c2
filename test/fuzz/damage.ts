import fc from 'fast-check';

/** Something done to the bytes of a file. Positions and lengths are shares, so that they fit any file. */
export type Damage =
  | { readonly kind: 'set'; readonly at: number; readonly byte: number }
  | { readonly kind: 'flip'; readonly at: number; readonly bit: number }
  | { readonly kind: 'cut'; readonly at: number }
  | { readonly kind: 'insert'; readonly at: number; readonly bytes: Uint8Array }
  | { readonly kind: 'remove'; readonly at: number; readonly length: number }
  | { readonly kind: 'repeat'; readonly at: number; readonly length: number };

/** Words that formats, parsers and languages treat in their own way. */
const WORDS = [
  'null',
  '-1',
  '1e999',
  '9007199254740993',
  '"__proto__"',
  '[[[[[[[[',
  '{"a":',
  '\0',
  '..',
  '/etc/passwd',
  '\ud800',
  '\u2028',
  '&a',
  '*a',
  '!!js/function',
  '<<: *a',
  '"',
  '}',
  ']',
  ',',
];

// Most damage goes near the beginning, where binary formats have their header.
const position = fc.oneof(fc.double({ min: 0, max: 1, noNaN: true }), fc.double({ min: 0, max: 0.01, noNaN: true }));

export const damages: fc.Arbitrary<Damage[]> = fc.array(
  fc.oneof(
    fc.record({ kind: fc.constant('set' as const), at: position, byte: fc.nat(255) }),
    fc.record({ kind: fc.constant('flip' as const), at: position, bit: fc.nat(7) }),
    fc.record({ kind: fc.constant('cut' as const), at: position }),
    fc.record({
      kind: fc.constant('insert' as const),
      at: position,
      bytes: fc.oneof(
        fc.uint8Array({ maxLength: 16 }),
        fc.constantFrom(...WORDS).map((word) => new TextEncoder().encode(word)),
      ),
    }),
    fc.record({ kind: fc.constant('remove' as const), at: position, length: fc.nat(64) }),
    fc.record({ kind: fc.constant('repeat' as const), at: position, length: fc.nat(64) }),
  ),
  { minLength: 1, maxLength: 6 },
);

export function damaged(bytes: Buffer, list: readonly Damage[]): Buffer {
  let now = Buffer.from(bytes);
  for (const damage of list) {
    const at = Math.floor(damage.at * now.length);
    if (damage.kind === 'set' && at < now.length) now[at] = damage.byte;
    else if (damage.kind === 'flip' && at < now.length) now[at] = (now[at] as number) ^ (1 << damage.bit);
    else if (damage.kind === 'cut') now = now.subarray(0, at);
    else if (damage.kind === 'insert') now = Buffer.concat([now.subarray(0, at), damage.bytes, now.subarray(at)]);
    else if (damage.kind === 'remove') now = Buffer.concat([now.subarray(0, at), now.subarray(at + damage.length)]);
    else if (damage.kind === 'repeat') now = Buffer.concat([now.subarray(0, at + damage.length), now.subarray(at)]);
  }
  return now;
}

/** A value somewhere inside a JSON document, replaced, removed or put in twice. `path`: which child, level by level. */
export interface Edit {
  readonly path: readonly number[];
  readonly value: unknown;
  readonly remove: boolean;
}

const strange = fc.oneof(
  fc.constantFrom<unknown>(
    null,
    true,
    -1,
    0,
    0.5,
    1e308,
    -1e308,
    2 ** 53,
    1e-320,
    '',
    '..',
    '../../x',
    '/etc/passwd',
    '__proto__',
    'NaN',
    [],
    {},
    [[]],
    'x'.repeat(10_000),
  ),
  fc.integer(),
  fc.double({ noNaN: true, noDefaultInfinity: true }),
  fc.string({ unit: 'binary', maxLength: 12 }),
  fc.json({ maxDepth: 2 }).map((text) => JSON.parse(text) as unknown),
);

export const edits: fc.Arbitrary<Edit[]> = fc.array(
  fc.record({ path: fc.array(fc.nat(1000), { minLength: 1, maxLength: 7 }), value: strange, remove: fc.boolean() }),
  { minLength: 1, maxLength: 3 },
);

export function edited(text: string, list: readonly Edit[]): Buffer {
  let root = JSON.parse(text) as unknown;
  for (const { path, value, remove } of list) {
    let here = root as Record<string, unknown>;
    for (const [depth, step] of path.entries()) {
      const keys = here !== null && typeof here === 'object' ? Object.keys(here) : [];
      if (keys.length === 0) break;
      const key = keys[step % keys.length] as string;
      const next = here[key];
      const leaf = next === null || typeof next !== 'object' || Object.keys(next).length === 0;
      if (depth === path.length - 1 || leaf) {
        if (remove) delete here[key];
        else here[key] = structuredClone(value);
        break;
      }
      here = next as Record<string, unknown>;
    }
    if (path.length === 1 && path[0] === 0 && !remove) root = structuredClone(value);
  }
  return Buffer.from(JSON.stringify(root) ?? '');
}
