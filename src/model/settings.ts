import type { Architecture } from './architecture.js';
import { Config } from './config.js';
import { requireRanges } from './config-ranges.js';
import { withClassKeys } from './published-keys.js';

/** What a table is read together with. Throws LPQ_CONFIG for a setting that the table rules out, or a number that no model has. */
export function settingsOf(table: Architecture, raw: Readonly<Record<string, unknown>>, dir: string): Config {
  const config = configOf(table, raw, dir);
  requireOnly(config, table);
  requireRanges(config);
  return config;
}

/** The language model's settings, over the defaults that its class has for sizes. */
function configOf(table: Architecture, raw: Readonly<Record<string, unknown>>, dir: string): Config {
  const whole = new Config(raw, `${dir}/config.json`);
  if (table.text === undefined) {
    const where = `${dir}/config.json`;
    return new Config({ ...table.defaults, ...withClassKeys(table.published, raw, where) }, where);
  }
  const { key, flat } = table.text;
  const text = whole.object(key) ?? (flat ? whole : undefined);
  if (!text) throw whole.error(key, 'is missing', null, 'the settings of the language model');
  // The whole model's word counts: its class makes the head.
  const tied = raw.tie_word_embeddings ?? text.raw.tie_word_embeddings;
  const where = `${dir}/config.json: '${key}'`;
  const settings = withClassKeys(table.published, text.raw, where);
  return new Config({ ...table.defaults, ...settings, tie_word_embeddings: tied }, where);
}

/** Refuses settings that change the computation in a way that the table does not describe. */
function requireOnly(config: Config, table: Architecture): void {
  for (const [key, value] of Object.entries(table.only ?? {})) {
    const found = config.find(key);
    if (found && found.value !== value)
      throw config.error(key, `has a value that lpq does not support for ${table.modelType}`, found.value, value);
  }
}
