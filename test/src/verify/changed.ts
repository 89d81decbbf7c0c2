import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import type { ArtifactManifest } from '../../../formats/artifact/schema.js';
import { sealManifest } from '../../../formats/artifact/seal.js';
import { hashFile } from '../../../formats/artifact/write.js';
import { createRuntime } from '../../../native/binding.js';
import type { CheckName, VerifyFailure, VerifyReport } from '../../../src/verify/report.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { type BuildOptions, type Built, build } from './build.js';
import type { TensorOut } from './layouts.js';
import { group, type ModuleSpec, NONE } from './numbers.js';

export const runtime = createRuntime(1);
export const GPTQ: ModuleSpec = { type: 'i4', n: 16, k: 32, granularity: group(16), zeros: NONE, layout: 'gptq' };
export const CT: ModuleSpec = { ...GPTQ, layout: 'compressed-tensors' };

export type Json = Record<string, unknown>;

export interface Change {
  readonly target?: string;
  readonly specs?: Record<string, ModuleSpec>;
  readonly against?: boolean;
  readonly built?: BuildOptions;
  readonly tensors?: (tensors: TensorOut[]) => void;
  readonly manifest?: (manifest: ArtifactManifest) => void;
  readonly config?: (config: Json, quantization: Json) => void;
  readonly directory?: (built: Built) => void;
  /** Files of the artifact that are written, and listed as if they belonged there. */
  readonly files?: Readonly<Record<string, string>>;
}

/** Builds an artifact, changes it, makes the hashes of files fit, and verifies. */
export async function verifyChanged(change: Change): Promise<VerifyReport> {
  const { target = 'gptq', specs = { m: GPTQ } } = change;
  const built = await build(target, specs, { ...change.built, change: change.tensors });
  try {
    const place = path.join(built.artifact, 'lpq.json');
    const manifest = JSON.parse(readFileSync(place, 'utf8')) as ArtifactManifest;
    if (change.config) {
      const file = path.join(built.artifact, 'config.json');
      const config = JSON.parse(readFileSync(file, 'utf8')) as Json;
      change.config(config, config.quantization_config as Json);
      writeFileSync(file, JSON.stringify(config));
      manifest.files['config.json'] = await hashFile(file);
      if (manifest.files['quantize_config.json'] !== undefined) {
        const mirror = path.join(built.artifact, 'quantize_config.json');
        writeFileSync(mirror, JSON.stringify(config.quantization_config ?? null));
        manifest.files['quantize_config.json'] = await hashFile(mirror);
      }
    }
    for (const [name, text] of Object.entries(change.files ?? {})) {
      writeFileSync(path.join(built.artifact, name), text);
      manifest.files[name] = await hashFile(path.join(built.artifact, name));
    }
    change.manifest?.(manifest);
    writeFileSync(place, sealManifest(manifest).text);
    change.directory?.(built);
    const against = change.against ? built.quantized : undefined;
    return await verifyArtifact({ dir: built.artifact, against, runtime });
  } finally {
    built.remove();
  }
}

export async function expectFailure(check: CheckName, message: RegExp, change: Change): Promise<VerifyFailure> {
  const { failures } = await verifyChanged(change);
  const found = failures.find((failure) => failure.check === check && message.test(failure.message));
  assert.ok(found, `${check} ${message}: ${JSON.stringify(failures)}`);
  return found;
}

/** What is changed, the check that must fail, what it must say. */
export type Listed = readonly [string, CheckName, RegExp, Change];

/** A test for each. */
export function testListed(listed: readonly Listed[]): void {
  for (const [title, check, message, change] of listed)
    test(`${title}: ${check}`, () => expectFailure(check, message, change).then(() => undefined));
}
