import { z } from 'zod';
import { reportSchema } from '../../formats/report/schema.js';

/** share/schemas: file name -> JSON Schema (draft 2020-12), made from what lpq itself checks by. */
export function publishedSchemas(): Record<string, object> {
  return {
    'report.schema.json': {
      title: 'lpq report',
      description: 'OUT.report.json of lpq quantize (docs/reports.md)',
      ...z.toJSONSchema(reportSchema),
    },
  };
}
