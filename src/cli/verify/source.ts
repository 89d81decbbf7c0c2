import type { NativeRuntime } from '../../../native/binding.js';
import { LpqError } from '../../core/error.js';
import { counted } from '../../core/words.js';
import type { Diagnosis } from '../doctor/diagnosis/finding.js';
import { progress, type Run } from '../run.js';
import { line } from '../terminal/terminal.js';
import { count, duration } from '../terminal/units.js';
import { checkText } from './checks.js';
import type { Verification } from './junit.js';

/** What is looked at; decode and finite are verify's own, the others are those of `lpq doctor DIR`. */
interface SourceCheck {
  readonly name: string;
  readonly status: 'passed' | 'failed' | 'skipped';
  readonly count: number;
  readonly failures: number;
  readonly detail?: string;
}

interface SourceFailure {
  readonly check: string;
  readonly module?: string;
  readonly row?: number;
  readonly column?: number;
  readonly got?: unknown;
  readonly expected?: unknown;
  readonly message: string;
}

/**
 * `lpq verify DIR` of what lpq did not write: everything that can be proved of a checkpoint without what it was made from.
 * Structure, scales and siblings as `lpq doctor` sees them, and every weight decoded.
 */
export async function verifySource(dir: string, kind: string, runtime: NativeRuntime, run: Run): Promise<Verification> {
  const started = performance.now();
  const { isSource } = await import('../../../formats/canonical/source.js');
  const { diagnoseDirectory } = await import('../doctor/diagnosis/diagnose.js');
  const published = isSource(dir);
  const { findings } = await diagnoseDirectory(dir, () => run.interrupt.check());
  const problems = findings.list.filter(({ severity }) => severity === 'problem');
  const failures: SourceFailure[] = problems.map(told);
  const checks: SourceCheck[] = findings.checks().map(({ name, status, found }) => {
    const wrong = problems.filter(({ check }) => check === name).length;
    return { name, status: status === 'problem' ? 'failed' : 'passed', count: 1, failures: wrong, detail: found };
  });
  // What cannot be opened cannot be decoded; the findings say why.
  const readable = !problems.some(({ check }) => ['files', 'settings', 'modules', 'model'].includes(check));
  const modules = readable ? await decodeAll(dir, published, runtime, failures, checks, run) : 0;
  if (readable) await checkFinite(dir, failures, checks, run);
  if (!readable)
    checks.push({ name: 'decode', status: 'skipped', count: 0, failures: 0, detail: 'not everything can be read' });
  const unproved = [
    `that these codes and scales are the published ones: ${published ? 'such a source' : 'another tool’s checkpoint'} holds no hashes (a download from the Hub is compared with the Hub's)`,
    ...(published && readable ? await readOnce(dir) : []),
  ];
  const warnings = findings.list.filter(({ severity }) => severity === 'warning').map(({ message }) => message);
  for (const warning of warnings) run.report.warn(warning);
  const ok = failures.length === 0;
  const seconds = (performance.now() - started) / 1000;
  const [first] = failures;
  return {
    result: { ok, dir, kind, against: null, checks, failures, warnings, modules, unproved, seconds },
    text: checkText(
      { checks, failures, unproved },
      line`${dir} (${kind}, ${counted(modules, 'module')}): ${ok ? 'sound' : 'NOT sound'}, in ${duration(seconds)}`,
    ),
    told: { dir, kind, checks, failures, modules: [], seconds },
    error:
      first &&
      new LpqError('LPQ_VERIFY', first.message, {
        ...(first.got !== undefined && { got: first.got }),
        ...(first.expected !== undefined && { expected: first.expected }),
        hint: `lpq doctor ${dir} says what to do about each.`,
      }),
  };
}

/** Says of experts that share a tensor in FP8, which are no modules, that nothing compares what they decode to. */
async function readOnce(dir: string): Promise<string[]> {
  const { fusedNames } = await import('../../../formats/fp8-block/fused.js');
  const { Checkpoint } = await import('../../../formats/safetensors/checkpoint.js');
  const weights = Checkpoint.open(dir);
  const fused = fusedNames({ weights });
  weights.close();
  if (fused.length === 0) return [];
  return [
    `that ${counted(fused.length, 'tensor')} of all experts of a block in FP8 (${fused[0]}, ...) decode correctly: their codes and scales are finite, but only one decoder reads them`,
  ];
}

/** Decodes all modules; their number. */
async function decodeAll(
  dir: string,
  published: boolean,
  runtime: NativeRuntime,
  failures: SourceFailure[],
  checks: SourceCheck[],
  run: Run,
): Promise<number> {
  const { decodeForeignDirectory } = await import('../../verify/published.js');
  const before = failures.length;
  const { step, end } = progress(run, 'decode', false);
  const decoded = await decodeForeignDirectory(dir, runtime, published, ({ name }, done, total) =>
    step(done, total, name),
  );
  end();
  for (const { name, notFinite, weights, differing } of decoded) {
    if (notFinite > 0)
      failures.push({
        check: 'decode',
        module: name,
        got: notFinite,
        message: `module '${name}': ${notFinite} of its ${weights} weights are NaN or infinite`,
      });
    if (differing && differing.count > 0)
      failures.push({
        check: 'decode',
        module: name,
        row: differing.row,
        column: differing.column,
        got: differing.got,
        expected: differing.expected,
        message: `module '${name}': two decoders disagree in ${differing.count} weights, first at row ${differing.row}, column ${differing.column}`,
      });
  }
  const total = decoded.reduce((sum, { weights }) => sum + weights, 0);
  const twice = decoded.filter(({ differing }) => differing).length;
  const wrong = failures.length - before;
  checks.push({
    name: 'decode',
    status: wrong > 0 ? 'failed' : 'passed',
    count: decoded.length,
    failures: wrong,
    detail: `${count(total)} weights of ${decoded.length} modules${twice > 0 ? `, ${twice} of them read in two ways that agree bit by bit` : ''}`,
  });
  return decoded.length;
}

/** What is stored as floats: tensors that no module has, scales, and weights of 8 bits. */
async function checkFinite(dir: string, failures: SourceFailure[], checks: SourceCheck[], run: Run): Promise<void> {
  const { notFiniteTensors } = await import('../inspect/finite.js');
  const wrong = await notFiniteTensors(dir, run);
  for (const { name, text } of wrong)
    failures.push({
      check: 'finite',
      got: text,
      expected: 'finite numbers',
      message: `tensor '${name}' holds NaN or infinity: ${text}`,
    });
  const status = wrong.length > 0 ? 'failed' : 'passed';
  checks.push({ name: 'finite', status, count: 1, failures: wrong.length, detail: 'every float tensor' });
}

function told({ check, message, got, expected }: Diagnosis): SourceFailure {
  return { check, message, ...(got !== undefined && { got }), ...(expected !== undefined && { expected }) };
}
