// Writes share/man/man1/lpq.1 from what the command line declares.
import { mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
const load = (file) => import(path.join(root, 'dist', 'src', 'cli', file));
const { buildProgram } = await load('main.js');
const { manualPage } = await load('manual.js');
const { version } = await load('version.js');
const dir = path.join(root, 'share', 'man', 'man1');
mkdirSync(dir, { recursive: true });
writeFileSync(path.join(dir, 'lpq.1'), manualPage(await buildProgram(), version()));
