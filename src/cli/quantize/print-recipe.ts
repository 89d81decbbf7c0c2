import { existsSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { stringify } from 'yaml';
import type { Run } from '../run.js';
import { line } from '../terminal/terminal.js';
import { version } from '../version.js';
import { methodOf } from './methods.js';
import type { CalibrationOptions, QuantizeOptions } from './options.js';
import type { RecipeFile } from './recipe.js';
import { recordedRules } from './run.js';
import { readsText } from './settings.js';

/** The recipe that repeats a run: every setting, defaults too, so that later defaults do not change it. */
export function recipeOf(options: CalibrationOptions & Partial<Pick<QuantizeOptions, 'rules'>>): RecipeFile {
  const { settings, calib, stats, rules = [] } = options;
  const file = ({ file: name, weight }: { file: string; weight: number }) =>
    `${path.resolve(name)}${weight === 1 && !/:[-+.\d][^:/]*$/.test(name) ? '' : `:${weight}`}`;
  return {
    ...settings,
    ...(calib.length > 0 && { calib: calib.map(file) }),
    ...(stats !== undefined && { stats: path.resolve(stats) }),
    ...recordedRules(rules),
  };
}

/** `quantize --print-recipe`: YAML on stdout, and nothing is computed. */
export function printRecipe(options: CalibrationOptions & Partial<Pick<QuantizeOptions, 'rules'>>, run: Run): void {
  const recipe = recipeOf(options);
  const bundled =
    options.calib.length === 0 &&
    options.stats === undefined &&
    readsText(methodOf(options.settings), options.settings);
  const schema = ['..', '..', '..', '..', 'share', 'schemas', 'recipe.schema.json'];
  const place = path.resolve(path.dirname(fileURLToPath(import.meta.url)), ...schema);
  const text = [
    ...(existsSync(place) ? [`# yaml-language-server: $schema=${place}\n`] : []),
    line`# lpq ${version()} quantize ${options.source} -o OUT --recipe THIS-FILE\n`,
    ...(bundled ? ['# calib: the bundled text\n'] : []),
    stringify(recipe, { lineWidth: 0 }),
  ].join('');
  run.report.result({ command: 'quantize', recipe }, text);
}
