import { createHash } from 'node:crypto';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, type TestContext } from 'node:test';
import { SavedStatistics } from '../../../formats/statistics/read.js';
import { createRuntime, typed } from '../../../native/binding.js';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import type { Calibration } from '../../../src/calibrate/text.js';
import { GPTQ_DEFAULTS } from '../../../src/gptq/options.js';
import { gptqQuantizer } from '../../../src/gptq/quantizer.js';
import { collectStatistics } from '../../../src/quantize/collect.js';
import type { QuantizeRequest } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { PlainFile } from '../model/fixtures.js';

/** Statistics of tiny-llama, saved once a test file, and a quick solver that takes them. */

export const rt = createRuntime(2);
export const tiny = path.join(shareDirectory(), 'tiny-llama');
export const quick = gptqQuantizer({ ...GPTQ_DEFAULTS, alpha: 0, clipSteps: 2, rounds: 1 });
const root = mkdtempSync(path.join(tmpdir(), 'lpq-statistics-'));
after(() => rmSync(root, { recursive: true, force: true }));

export function scratch(t: TestContext): string {
  const dir = mkdtempSync(path.join(root, 'test-'));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

export function tokens(sequences: number, length: number, vocab: number): Calibration {
  let state = 5;
  const next = () => {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0;
    return (state >>> 8) % vocab;
  };
  const list = Array.from({ length: sequences }, () => Int32Array.from({ length }, next));
  const facts = { name: 'made', sha256: '0'.repeat(64), seed: 0, kind: 'windows', available: sequences } as const;
  return { ...facts, length, sequences: list, tokens: sequences * length };
}

export function request(output: string, more: Partial<QuantizeRequest> = {}): QuantizeRequest {
  return {
    source: tiny,
    output,
    scheme: schemeFromOptions({ bits: 4, groupSize: 64 }),
    rules: [],
    quantizer: quick,
    calibration: undefined,
    lmHead: false,
    options: {},
    version: 'test',
    ...more,
  };
}

export async function withSaved<T>(dir: string, body: (statistics: SavedStatistics) => Promise<T>): Promise<T> {
  const statistics = SavedStatistics.open(dir);
  try {
    return await body(statistics);
  } finally {
    statistics.close();
  }
}

export function hashes(dir: string): Record<string, string> {
  const names = readdirSync(dir, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
  const files = names.map((entry) => path.join(entry.parentPath, entry.name)).sort();
  return Object.fromEntries(
    files.map((file) => [path.relative(dir, file), createHash('sha256').update(readFileSync(file)).digest('hex')]),
  );
}

/** The lower triangle of a saved tensor, read without lpq's readers. */
export function triangleOf(dir: string, name: string): Float32Array {
  return typed(new PlainFile(path.join(dir, 'statistics.safetensors')).tensor(name));
}

export const calibration = tokens(3, 70, 2048);
export const saved = path.join(root, 'saved');
export const saving = collectStatistics([rt], { source: tiny, output: saved, calibration, version: 'test' });
