import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { openSource } from '../../../formats/canonical/source.js';
import { writeSafetensors } from '../../../formats/safetensors/write.js';
import { createRuntime } from '../../../native/binding.js';
import { diagnoseDirectory } from '../../../src/cli/doctor/diagnosis/diagnose.js';
import type { CheckName } from '../../../src/cli/doctor/diagnosis/finding.js';
import type { ErrorCode } from '../../../src/core/codes.js';
import { LpqError } from '../../../src/core/error.js';
import { openModel } from '../../../src/model/graph.js';
import { handmade, scratch } from '../scratch.js';
import { awqTensors, type Encoded, gptqTensors, packedTensors } from './encode.js';
import { gptqSettings, plain, quantized, writeModel } from './mini.js';

const rt = createRuntime(1);
export const root = scratch();

export const sym4 = quantized({ bits: 4, group: 32, symmetric: true });
export const asym4 = quantized({ bits: 4, group: 32, symmetric: false });
export const Q = 'model.layers.0.self_attn.q_proj';

export const gptq = (convention: 'v1' | 'v2' = 'v1', codes = sym4): Encoded[] => [
  ...plain,
  ...[...codes].flatMap(([name, c]) => gptqTensors(name, c, convention)),
];
export const awq = (): Encoded[] => [...plain, ...[...asym4].flatMap(([name, c]) => awqTensors(name, c))];
export const AWQ = { quant_method: 'awq', bits: 4, group_size: 32, zero_point: true, version: 'gemm' };
export const packed = (codes = sym4): Encoded[] => [
  ...plain,
  ...[...codes].flatMap(([name, c]) => packedTensors(name, c, { symmetric: true })),
];

/** The tensors with one replaced. */
export function replace(
  tensors: readonly Encoded[],
  name: string,
  by: (tensor: Encoded) => Encoded | undefined,
): Encoded[] {
  assert.ok(
    tensors.some((tensor) => tensor.name === name),
    name,
  );
  return tensors.flatMap((tensor) => (tensor.name === name ? (by(tensor) ?? []) : tensor));
}

/** Two shards and an index, which `edit` may spoil. */
export async function sharded(
  dir: string,
  edit: (index: { weight_map: Record<string, string> }) => void,
): Promise<void> {
  const all = gptq();
  await writeModel(dir, { tensors: all, settings: gptqSettings(4, 32) });
  rmSync(path.join(dir, 'model.safetensors'));
  const half = Math.floor(all.length / 2);
  const parts = [all.slice(0, half), all.slice(half)];
  const map: Record<string, string> = {};
  for (const [i, part] of parts.entries()) {
    const file = `model-0000${i + 1}-of-00002.safetensors`;
    await writeSafetensors(path.join(dir, file), part);
    for (const { name } of part) map[name] = file;
  }
  const index = { metadata: { total_size: 0 }, weight_map: map };
  edit(index);
  writeFileSync(path.join(dir, 'model.safetensors.index.json'), JSON.stringify(index));
}

/** A valid file whose header text is changed. */
export async function header(dir: string, edit: (text: string) => string): Promise<void> {
  await writeModel(dir, { tensors: gptq(), settings: gptqSettings(4, 32) });
  const file = path.join(dir, 'model.safetensors');
  const bytes = readFileSync(file);
  const length = Number(bytes.readBigUInt64LE(0));
  const text = bytes.subarray(8, 8 + length).toString();
  const changed = edit(text);
  assert.notEqual(changed, text);
  handmade(file, changed.padEnd(Math.ceil(changed.length / 8) * 8), bytes.subarray(8 + length));
}

export interface Case {
  readonly what: string;
  readonly write: (dir: string) => Promise<unknown>;
  /** What opening it as weights throws; undefined where it can be read all the same. */
  readonly code: ErrorCode | undefined;
  readonly sentence?: RegExp;
  /** What lpq doctor must say. */
  readonly check: CheckName;
  readonly diagnosis: RegExp;
  readonly severity?: 'warning';
}

/** A test for each. */
export function testMalformed(cases: readonly Case[]): void {
  for (const { what, write, code, sentence, check, diagnosis, severity = 'problem' } of cases)
    test(`malformed: ${what}`, async () => {
      const dir = mkdtempSync(path.join(root, 'case-'));
      await write(dir);
      // Whatever is wrong, every weight is read or a designed error says why not.
      let thrown: unknown;
      try {
        const source = openSource(dir, rt);
        openModel(source);
        for (const name of source.names()) if (name.endsWith('.weight')) (await source.tensor(name)).dispose();
        source.close();
      } catch (error) {
        thrown = error;
      }
      if (thrown !== undefined) assert.ok(thrown instanceof LpqError, String((thrown as Error).stack));
      assert.equal(thrown?.code, code, thrown?.message);
      const text = `${thrown?.message} | got ${String(thrown?.got)} | expected ${String(thrown?.expected)} | ${thrown?.hint}`;
      if (sentence) assert.match(text, sentence);

      const { findings } = await diagnoseDirectory(dir);
      const found = findings.list.find((each) => each.check === check && diagnosis.test(each.message));
      assert.ok(found, JSON.stringify(findings.list, null, 1));
      assert.equal(found.severity, severity);
    });
}
