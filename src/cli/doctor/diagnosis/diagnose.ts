import { existsSync, statSync } from 'node:fs';
import { setImmediate } from 'node:timers/promises';
import { Artifact } from '../../../../formats/artifact/read.js';
import { CanonicalCheckpoint } from '../../../../formats/canonical/read.js';
import { directoryKind } from '../../../../formats/canonical/source.js';
import { foreignContext } from '../../../../formats/foreign/read.js';
import { foreignSettings, READ_METHODS } from '../../../../formats/foreign/settings.js';
import { ggufFiles } from '../../../../formats/gguf/source/directory.js';
import { GgufTensors } from '../../../../formats/gguf/source/tensors.js';
import { readConfig } from '../../../../formats/safetensors/checkpoint.js';
import { LpqError } from '../../../core/error.js';
import { diagnoseFiles } from './files.js';
import { Findings } from './finding.js';
import { diagnoseModel } from './model.js';
import { diagnoseModules, guessMethod } from './modules.js';
import { diagnoseScales } from './scales.js';
import { diagnoseSiblings } from './siblings.js';

/** What a directory holds and what is wrong with it. */
export interface DirectoryDiagnosis {
  readonly kind: string;
  readonly findings: Findings;
}

/**
 * Looks at everything in a checkpoint's directory that can be wrong without computing with it, and goes on after each
 * finding. Throws LPQ_FILE when there is no directory; whatever else is wrong is a finding. `onStep` may throw.
 */
export async function diagnoseDirectory(dir: string, onStep: () => void = () => {}): Promise<DirectoryDiagnosis> {
  if (!existsSync(dir)) throw new LpqError('LPQ_FILE', `${dir} does not exist`);
  if (!statSync(dir).isDirectory()) throw new LpqError('LPQ_FILE', `${dir} is not a directory`);
  const findings = new Findings();
  const kind = attempt(findings, 'settings', () => directoryKind(dir)) ?? 'unreadable';
  const config = attempt(findings, 'settings', () => readConfig(dir));
  const gguf = ggufFiles(dir);
  if (gguf) {
    const model = GgufTensors.open(gguf);
    findings.looked('files', `${gguf.length} in GGUF, ${model.file.tensors.size} tensors`);
    if (config) diagnoseModel(dir, config, model, undefined, findings);
    model.close();
    return { kind, findings };
  }
  const tensors = diagnoseFiles(dir, findings);
  try {
    if (kind === 'lpq-canonical' || kind === 'lpq-artifact') {
      await diagnoseOwn(dir, kind, findings);
      return { kind, findings };
    }
    const step = async (): Promise<void> => {
      onStep();
      await setImmediate();
    };
    const settings = config && attempt(findings, 'settings', () => foreignSettings(dir, config));
    if (!settings) {
      diagnoseUnsettled(dir, config ?? {}, tensors, findings);
      if (config) diagnoseModel(dir, config, tensors, undefined, findings);
      return { kind, findings };
    }
    const ctx = foreignContext(dir, tensors, config, settings);
    const modules = diagnoseModules(ctx, settings.method, findings);
    await step();
    await diagnoseScales(modules, findings, step);
    diagnoseSiblings(modules, tensors, findings);
    diagnoseModel(
      dir,
      config,
      tensors,
      { ctx, method: settings.method, published: settings.unpublished === undefined, modules },
      findings,
    );
    return { kind, findings };
  } finally {
    tensors.close();
  }
}

/** Without settings: either plain, or the settings are lost. */
function diagnoseUnsettled(
  dir: string,
  config: Readonly<Record<string, unknown>>,
  tensors: ReturnType<typeof diagnoseFiles>,
  findings: Findings,
): void {
  const method = guessMethod(foreignContext(dir, tensors, config, { settings: {}, where: dir }));
  if (method === undefined) return;
  findings.add('settings', 'problem', `${dir} holds quantized weights, but has no quantization_config`, {
    got: `tensors as of ${method}`,
    expected: `quantization_config in config.json, or quantize_config.json beside it; methods ${READ_METHODS.join(', ')}`,
    remedy: 'Restore config.json of the quantized checkpoint.',
  });
}

/** What lpq wrote carries hashes of everything. */
async function diagnoseOwn(dir: string, kind: 'lpq-canonical' | 'lpq-artifact', findings: Findings): Promise<void> {
  try {
    const opened = kind === 'lpq-canonical' ? CanonicalCheckpoint.open(dir) : Artifact.open(dir);
    try {
      const wrong =
        opened instanceof Artifact
          ? [...(await opened.verifyTensors()), ...(await opened.verifyFiles())]
          : await opened.verifyHashes();
      for (const { name, got, expected } of wrong)
        findings.add('modules', 'problem', `the bytes of '${name}' have changed since they were written`, {
          got,
          expected,
        });
      findings.looked('modules', `${opened.moduleNames().length}, by their hashes in lpq.json`);
    } finally {
      opened.close();
    }
  } catch (error) {
    if (!(error instanceof LpqError)) throw error;
    findings.error('modules', error);
  }
}

function attempt<T>(findings: Findings, check: 'settings', work: () => T): T | undefined {
  try {
    return work();
  } catch (error) {
    if (!(error instanceof LpqError)) throw error;
    // config.json is read twice; what is wrong with it is said once.
    if (!findings.list.some(({ message }) => message === error.message)) findings.error(check, error);
    return undefined;
  }
}
