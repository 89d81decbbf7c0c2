import { z } from 'zod';
import { reportSchema } from '../../formats/report/schema.js';
import { flagOf, saysOf } from '../quantize/option.js';
import { fieldOf } from './quantize/fields.js';
import { recipeSchema } from './quantize/recipe.js';

/** share/schemas: file name -> JSON Schema (draft 2020-12), made from what lpq itself checks by. */
export function publishedSchemas(): Record<string, object> {
  return {
    'recipe.schema.json': {
      title: 'lpq recipe',
      description: 'lpq quantize --recipe FILE (docs/recipes.md)',
      ...described(z.toJSONSchema(recipeSchema, { io: 'input' }) as Schema),
    },
    'report.schema.json': {
      title: 'lpq report',
      description: 'OUT.report.json of lpq quantize (docs/reports.md)',
      ...z.toJSONSchema(reportSchema),
    },
  };
}

interface Schema {
  readonly properties?: Readonly<Record<string, { description?: string; readonly items?: Schema }>>;
}

/** What editors show beside a field: the option that it stands for, and what it takes. */
function described(schema: Schema): Schema {
  for (const [name, field] of Object.entries(schema.properties ?? {})) {
    const option = fieldOf(name);
    const words = OTHERS[name] ?? (option && `${flagOf(option)}: ${saysOf(option)}`);
    if (words !== undefined) field.description = words;
    if (field.items) described(field.items);
  }
  return schema;
}

const OTHERS: Readonly<Record<string, string>> = {
  calib: '--calib: texts, with weights as in chat.jsonl:0.7; paths are relative to the recipe',
  stats: '--stats: a directory of saved statistics, relative to the recipe',
  rules: 'what to do with modules whose path matches; the first rule that matches decides',
  match: "a regular expression that may match anywhere in a module's path",
  skip: 'leave these modules as they are',
};
