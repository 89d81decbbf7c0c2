import type { GgufValue } from '../../../formats/gguf/metadata.js';
import { show } from './json.js';
import type { Artifact, Gguf } from './open.js';
import type { Site } from './site.js';

/** Keys that llama.cpp reads and lpq does not write. */
const ADDED: readonly [string, GgufValue][] = [
  ['general.alignment', { type: 'u32', value: 8 }],
  ['split.count', { type: 'u32', value: 2 }],
  ['llama.attention.scale', { type: 'f32', value: 0.5 }],
  ['llama.rope.scaling.type', { type: 'string', value: 'linear' }],
  ['llama.logit_scale', { type: 'f32', value: 2 }],
  ['tokenizer.ggml.remove_extra_whitespaces', { type: 'bool', value: true }],
  ['tokenizer.ggml.eot_token_id', { type: 'u32', value: 5 }],
  ['tokenizer.chat_template.tool_use', { type: 'string', value: '{{ x }}' }],
];

/** What model.gguf says of the model and its tokens. */
export function* ggufSites({ gguf }: Artifact): Iterable<Site> {
  if (!gguf) return;
  const site = (what: string, apply: (own: Gguf) => void): Site => ({
    kind: 'gguf metadata',
    what: `model.gguf: ${what}`,
    apply: (copy) => apply(copy.gguf as Gguf),
  });
  for (const [i, [key, entry]] of gguf.metadata.entries()) {
    yield site(`${key} removed`, ({ metadata }) => {
      metadata.splice(i, 1);
    });
    yield site(`${key} renamed`, ({ metadata }) => {
      metadata[i] = [`${key}_x`, entry];
    });
    for (const [what, other] of others(entry))
      yield site(`${key}: ${what}`, ({ metadata }) => {
        metadata[i] = [key, other];
      });
  }
  for (const [key, value] of ADDED)
    if (!gguf.metadata.some(([own]) => own === key))
      yield site(`${key} added: ${show(value.value)}`, ({ metadata }) => {
        metadata.push([key, value]);
      });
  yield site('64 bytes behind the last tensor', (own) => {
    own.tail = Buffer.alloc(64, 1);
  });
}

function others(entry: GgufValue): [string, GgufValue][] {
  switch (entry.type) {
    case 'bools':
      return [['all turned', { type: 'bools', value: entry.value.map((each) => !each) }]];
    case 'bool':
      return [['turned', { type: 'bool', value: !entry.value }]];
    case 'string':
      return [[`${show(entry.value)} → another`, { type: 'string', value: `${entry.value}x` }]];
    case 'strings':
      return listed(entry.value, `${entry.value[5]}x`).map(([what, value]) => [what, { type: 'strings', value }]);
    case 'f32s':
    case 'i32s':
      return listed(entry.value, (entry.value[5] ?? 0) + 1).map(([what, value]) => [what, { type: entry.type, value }]);
    default: {
      const { type, value } = entry;
      const other: GgufValue = { type, value: type === 'f32' ? value * 1.01 : value + 1 };
      const kind = type === 'u32' ? 'f32' : 'u32';
      return [
        [`${value} → ${other.value}`, other],
        [`${type} → ${kind}`, { type: kind, value: kind === 'u32' ? Math.trunc(value) : value }],
      ];
    }
  }
}

/** Lists moved by one, turned round, with two exchanged, one changed, one fewer. */
function listed<T extends string | number>(list: readonly T[], changed: T): [string, T[]][] {
  const own = [...list];
  const out: [string, T[]][] = [
    ['moved by one', [...own.slice(1), own[0] as T]],
    ['turned round', own.toReversed()],
    ['one fewer', own.slice(0, -1)],
    ['element 5 changed', own.with(Math.min(5, own.length - 1), changed)],
  ];
  const at = own.findIndex((value, i) => i > 6 && i + 1 < own.length && value !== own[i + 1]);
  if (at >= 0)
    out.push([`elements ${at} and ${at + 1} exchanged`, own.with(at, own[at + 1] as T).with(at + 1, own[at] as T)]);
  return out.filter(([, value]) => JSON.stringify(value) !== JSON.stringify(own));
}
