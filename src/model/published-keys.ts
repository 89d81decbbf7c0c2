import { Config } from './config.js';
import type { PublishedKeys } from './tables/names.js';

const MOST_BLOCKS = 4096;

type Json = Readonly<Record<string, unknown>>;

/** Settings under the keys of the class, of a file that has its authors' (PublishedKeys). Throws LPQ_CONFIG for a value that has no like. */
export function withClassKeys(keys: PublishedKeys | undefined, raw: Json, where: string): Json {
  if (!keys) return raw;
  const config = new Config(raw, where);
  const { rope } = keys;
  const made: Record<string, unknown> = {
    ...raw,
    ...(keys.within && keysWithin(keys.within, config)),
    ...(keys.blockTypes && typesOf(keys.blockTypes, config)),
  };
  const blocks = Number.isSafeInteger(raw.num_hidden_layers) ? (raw.num_hidden_layers as number) : MOST_BLOCKS;
  for (const { key, as, of } of keys.lists) {
    if (!Array.isArray(raw[key])) continue;
    const named = config.list(key, 'number').map((value, index) => {
      const name = (of as Readonly<Record<number, string>>)[value];
      if (name !== undefined) return name;
      throw config.error(key, `does not say what block ${index} is`, value, Object.keys(of).join(' or '));
    });
    made[as] ??= named.slice(0, blocks);
    delete made[key];
  }
  for (const { key, as, first, others } of keys.firsts ?? []) {
    if (raw[key] === undefined || raw[key] === null || made[as]) continue;
    const count = config.count([key], undefined, 0, MOST_BLOCKS);
    made[as] = Array.from({ length: Math.min(blocks, MOST_BLOCKS) }, (_, index) => (index < count ? first : others));
  }
  for (const [key, { as, times = 1 }] of Object.entries(keys.same)) {
    const [got, other] = [config.number([key]), config.number([as])];
    if (got !== undefined && other !== undefined && got !== times * other)
      throw config.error(
        key,
        `is not ${times === 1 ? as : `${times} times ${as}`}, as lpq takes it to be`,
        got,
        times * other,
      );
  }
  if (rope && raw.rope_parameters === undefined && raw[rope.local] !== undefined)
    made.rope_parameters = Object.fromEntries(
      [
        ['full_attention', 'rope_theta'],
        ['sliding_attention', rope.local],
      ].map(([type, theta]) => [
        type,
        {
          rope_type: 'default',
          rope_theta: raw[theta as string],
          ...(raw.partial_rotary_factor !== undefined && { partial_rotary_factor: raw.partial_rotary_factor }),
        },
      ]),
    );
  return made;
}

/** layer_types and num_hidden_layers, of a list or a string of letters. */
function typesOf({ list, pattern, letters }: NonNullable<PublishedKeys['blockTypes']>, config: Config): Json {
  const written = config.find('layer_types') ?? config.find(list);
  if (written) {
    const types = config.list(written.key, 'string');
    return { layer_types: types, num_hidden_layers: types.length };
  }
  if (!config.find(pattern)) return {};
  const types = [...config.text([pattern], '')].map((letter, index) => {
    const type = letters[letter];
    if (type !== undefined) return type;
    throw config.error(pattern, `does not say what block ${index} is`, letter, Object.keys(letters).join(' '));
  });
  return { layer_types: types, num_hidden_layers: types.length };
}

/** What an object inside says, under the keys of the class. */
function keysWithin(within: NonNullable<PublishedKeys['within']>, config: Config): Json {
  const inner = config.object(within.key);
  if (!inner) return {};
  const { as, types } = within.blocks;
  const settings = Object.entries(within.settings).flatMap(([key, own]) =>
    inner.find(key) ? [[own, inner.raw[key]]] : [],
  );
  const lists = Object.keys(types).map((key) => [key, inner.list(key, 'number')] as const);
  if (config.find(as) || lists.every(([, list]) => list.length === 0)) return Object.fromEntries(settings);
  const kinds: string[] = [];
  for (const [type, list] of lists)
    for (const block of list) {
      if (!Number.isSafeInteger(block) || block < 1 || block > MOST_BLOCKS)
        throw inner.error(type, 'counts a block that there cannot be', block, `an integer from 1 to ${MOST_BLOCKS}`);
      kinds[block - 1] = types[type] as string;
    }
  return { ...Object.fromEntries(settings), [as]: Array.from(kinds, (kind) => kind ?? 'nothing') };
}
