// Writes share/schemas/*.json: the formats that other programs and editors read, from the schemas that lpq itself checks by.
import { mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
const { publishedSchemas } = await import(path.join(root, 'dist', 'src', 'cli', 'schemas.js'));
const dir = path.join(root, 'share', 'schemas');
mkdirSync(dir, { recursive: true });
for (const [name, schema] of Object.entries(publishedSchemas()))
  writeFileSync(path.join(dir, name), `${JSON.stringify(schema, null, 2)}\n`);
