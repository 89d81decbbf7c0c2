import { existsSync, readFileSync, statSync } from 'node:fs';
import { readdir, rename, rm, stat, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { writeError } from '../../formats/directory/write-error.js';
import { readReport } from '../../formats/report/read.js';
import type { Report } from '../../formats/report/schema.js';
import { LpqError } from '../core/error.js';
import { reportPage } from './html.js';

/** Where the report of a quantized directory lies: beside it, for its own bytes depend on what was asked for alone. */
export function reportPath(dir: string, form: 'json' | 'html'): string {
  return `${dir.replace(/\/+$/, '')}.report.${form}`;
}

/** Refuses, before a run, to write over what is no report. Throws LPQ_OUTPUT_EXISTS. */
export function refuseForeignReport(dir: string): void {
  for (const form of ['json', 'html'] as const) {
    const file = reportPath(dir, form);
    if (existsSync(file) && !isOurs(file, form))
      throw new LpqError('LPQ_OUTPUT_EXISTS', `${file} already exists and is not a report of lpq`, {
        hint: 'Move it, or turn the report off with --no-report.',
      });
  }
}

function isOurs(file: string, form: 'json' | 'html'): boolean {
  if (!statSync(file).isFile()) return false;
  const start = readFileSync(file, 'utf8').slice(0, 4096);
  return form === 'json' ? start.includes('"lpq-report"') : start.includes('lpq report</title>');
}

/** Writes OUT.report.json and OUT.report.html, each whole or not at all. Throws LPQ_DISK_FULL, LPQ_OUTPUT_WRITE. */
export async function writeReport(dir: string, report: Report): Promise<{ json: string; html: string }> {
  const [json, html] = [reportPath(dir, 'json'), reportPath(dir, 'html')];
  await replaceFile(json, `${JSON.stringify(report, null, 2)}\n`);
  await replaceFile(html, reportPage(report));
  return { json, html };
}

/** Writing takes less: what is older was left by a process that was killed, though another now have its id. */
const WRITING_MS = 60_000;

/** Writes a file beside itself, and then in its place. */
export async function replaceFile(file: string, text: string): Promise<void> {
  const temporary = `${file}.lpq-tmp-${process.pid}`;
  try {
    await clearAbandoned(file);
    await writeFile(temporary, text);
    await rename(temporary, file);
  } catch (cause) {
    await rm(temporary, { force: true });
    throw writeError(file, cause);
  }
}

/** Removes what killed processes left of a file that they were writing. */
async function clearAbandoned(file: string): Promise<void> {
  const [dir, prefix] = [path.dirname(file), `${path.basename(file)}.lpq-tmp-`];
  for (const name of await readdir(dir).catch(() => [])) {
    if (!name.startsWith(prefix) || !/^\d+$/.test(name.slice(prefix.length))) continue;
    const left = path.join(dir, name);
    const { mtimeMs = Date.now() } = await stat(left).catch(() => ({}) as { mtimeMs?: number });
    if (Date.now() - mtimeMs > WRITING_MS) await rm(left, { force: true });
  }
}

/** The report that a run left beside its output; undefined where there is none. Throws LPQ_REPORT. */
export function storedReport(dir: string): Report | undefined {
  const file = reportPath(dir, 'json');
  return existsSync(file) ? readReport(file) : undefined;
}
