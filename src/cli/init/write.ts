import path from 'node:path';
import { stringify } from 'yaml';
import { type Answers, EFFORTS } from './questions.js';

/** The recipe that the answers make, as YAML; a text is named from the directory of `file`, as recipes are read. */
export function recipeText({ weights, calib, effort }: Answers, file: string): string {
  const { samples, seqLen } = EFFORTS[effort];
  const from = path.dirname(path.resolve(file));
  return stringify({
    ...weights,
    ...(calib !== undefined && { calib: [path.relative(from, path.resolve(calib))] }),
    ...{ samples, seqLen },
    rules: [],
  });
}

/** The command that quantizes by it. */
export function commandFor({ model, engine }: Answers, file: string): string {
  const wish = engine === undefined ? '' : ` --for ${engine}`;
  return `lpq quantize ${model} -o OUT --recipe ${file}${wish}`;
}
