import { awqModules } from '../../../../formats/awq/modules.js';
import type { ForeignContext, ForeignModule } from '../../../../formats/foreign/module.js';
import { readModules } from '../../../../formats/foreign/read.js';
import { readGptqConfig } from '../../../../formats/gptq/config.js';
import { borrowedWords, storedZeros } from '../../../../formats/gptq/zeros.js';
import { typed } from '../../../../native/binding.js';
import { tell } from '../../../core/activity.js';
import { LpqError } from '../../../core/error.js';
import type { Findings } from './finding.js';

/** Reads every module, and tells of those that cannot be read and of what the settings state wrongly. */
export function diagnoseModules(ctx: ForeignContext, method: string, findings: Findings): readonly ForeignModule[] {
  let found: ReturnType<typeof readModules>;
  try {
    found = readModules(ctx, method);
  } catch (error) {
    if (!(error instanceof LpqError)) throw error;
    findings.error('settings', error);
    return [];
  }
  const { modules, problems } = found;
  findings.looked('settings', `${method}, ${ctx.where}`);
  findings.looked('modules', `${modules.length} of ${modules.length + problems.length} can be read`);
  // One broken rule is the same problem of every module.
  for (const problem of new Set(problems)) findings.error('modules', problem);
  if (modules.length + problems.length === 0)
    findings.add('modules', 'problem', 'the settings say that it is quantized, but no tensor is', {
      got: `quant_method ${method}`,
    });
  note(modules, ({ contradictions = [] }) => contradictions, 'problem', findings);
  note(modules, ({ notes }) => notes, 'warning', findings);
  ZEROS[method]?.(ctx, modules, findings);
  return modules;
}

/** What is said of zero points, by quant_method. */
const ZEROS: Readonly<Record<string, typeof diagnoseGptqZeros>> = {
  gptq: diagnoseGptqZeros,
  awq: (_ctx, _modules, findings) => findings.looked('zeros', 'true zero points, one convention'),
};

/** The same sentence of many modules is said once, with how many. */
function note(
  modules: readonly ForeignModule[],
  of: (module: ForeignModule) => readonly string[],
  severity: 'problem' | 'warning',
  findings: Findings,
): void {
  const names = new Map<string, string[]>();
  for (const module of modules)
    for (const sentence of of(module)) {
      const list = names.get(sentence);
      if (list) list.push(module.name);
      else names.set(sentence, [module.name]);
    }
  for (const [sentence, of] of names)
    findings.add(
      /zero point/.test(sentence) ? 'zeros' : 'modules',
      severity,
      of.length === 1 ? `module '${of[0]}': ${sentence}` : `${of.length} modules (${of[0]}, ...): ${sentence}`,
      /states gptq/.test(sentence) ? { remedy: 'Correct checkpoint_format, or write it again with lpq pack.' } : {},
    );
}

/** Zero points of 0 stored as -1, which only v1 has: masked they are harmless to careful readers, borrowed they are lost. */
function diagnoseGptqZeros(ctx: ForeignContext, modules: readonly ForeignModule[], findings: Findings): void {
  findings.looked('zeros', `${modules.length} modules`);
  const { bits: _, ...settings } = readGptqConfig(ctx.where, ctx.settings);
  if (settings.convention !== 'v1' || settings.sym) return;
  let [words, borrowed, below] = [0, 0, 0];
  let first: string | undefined;
  for (const [i, { name, declaration }] of modules.entries()) {
    tell(`zero points of ${name}`, i, modules.length);
    const bits = Number(declaration.type.slice(1));
    const [n, k] = declaration.shape;
    const tensor = ctx.weights.tensor(`${name}.qzeros`, 'i32');
    const qzeros = typed<Int32Array>(tensor);
    const found = borrowedWords(qzeros, bits);
    const stored = storedZeros(qzeros, k / declaration.scales.block[1], n, bits);
    below += stored.reduce((sum, zero) => sum + Number(zero === 2 ** bits - 1), 0);
    words += qzeros.length;
    borrowed += found;
    if (found > 0) first ??= name;
    tensor.dispose();
  }
  if (borrowed > 0)
    findings.add(
      'zeros',
      'problem',
      `${borrowed} of ${words} words of qzeros end in ones (first in '${first}'): a zero point of 0, stored as -1, may have overwritten its neighbours`,
      { remedy: 'Quantize it again with a tool that writes gptq_v2 for asymmetric weights.' },
    );
  else if (below > 0)
    findings.add('zeros', 'warning', `${below} zero points of 0 are stored as -1`, {
      remedy:
        'lpq reads them as 0; readers that add one without masking take 2^bits. lpq pack --target gptq_v2 repairs it.',
    });
}

/** Whether tensors that only AWQ or GPTQ have lie about without settings; the method that they look like. */
export function guessMethod(ctx: ForeignContext): string | undefined {
  const names = [...ctx.weights.names()];
  if (names.some((name) => name.endsWith('.weight_packed'))) return 'compressed-tensors';
  if (names.some((name) => name.endsWith('.weight_scale_inv'))) return 'fp8';
  if (names.some((name) => name.endsWith('_blocks') && ctx.weights.has(name.replace(/_blocks$/, '_scales'))))
    return 'mxfp4';
  if (!names.some((name) => name.endsWith('.qweight'))) return undefined;
  if (names.some((name) => name.endsWith('.g_idx'))) return 'gptq';
  try {
    const settings = { bits: 4, group_size: 128 };
    return awqModules({ ...ctx, settings }).problems.length === 0 ? 'awq' : 'gptq or awq';
  } catch {
    return 'gptq or awq';
  }
}
