import type { PublishedKeys } from './architecture.js';
import { Config } from './config.js';

type Json = Readonly<Record<string, unknown>>;

/** Settings under the keys of the class, of a file that has its authors' (PublishedKeys). Throws LPQ_CONFIG for a value that has no like. */
export function withClassKeys(keys: PublishedKeys | undefined, raw: Json, where: string): Json {
  if (!keys) return raw;
  const config = new Config(raw, where);
  const made: Record<string, unknown> = { ...raw };
  for (const { key, as, of } of keys.lists) {
    if (!Array.isArray(raw[key])) continue;
    made[as] = config.list(key, 'number').map((value, index) => {
      const name = of[value];
      if (name !== undefined) return name;
      throw config.error(key, `does not say what block ${index} is`, value, `0 to ${of.length - 1}`);
    });
    delete made[key];
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
  if (raw.rope_parameters === undefined && raw[keys.rope.local] !== undefined)
    made.rope_parameters = Object.fromEntries(
      [
        ['full_attention', 'rope_theta'],
        ['sliding_attention', keys.rope.local],
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
