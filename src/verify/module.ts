import type { PackedModule } from '../../formats/artifact/schema.js';
import type { TensorReader } from '../../formats/safetensors/read.js';
import type { NativeRuntime } from '../../native/binding.js';
import { type CanonicalSide, compareModule } from './against.js';
import { decodeModule, disposeDecoded } from './decode.js';
import { emulateModule } from './emulate.js';
import { expectation } from './expectation.js';
import { runKernel } from './kernels.js';
import { checkCanonical, checkHash, recordProblems } from './module-parts.js';
import type { ModuleReport, Recorder } from './report.js';

export interface ModuleContext {
  readonly runtime: NativeRuntime;
  readonly weights: TensorReader;
  readonly recorder: Recorder;
  readonly canonical: CanonicalSide | undefined;
  readonly emulate: boolean;
  /** A device whose kernels are run on the packed bytes. */
  readonly kernel: NativeRuntime | undefined;
  /** The target has activations rounded to codes, one scale per token. */
  readonly dynamic: boolean;
  readonly seed: number;
  /** What the artifact was packed for. */
  readonly target: string;
}

/** Everything about one module, from its tensors' shapes to the emulated kernel. Differences go to the recorder. */
export async function verifyModule(ctx: ModuleContext, name: string, module: PackedModule): Promise<ModuleReport> {
  const started = performance.now();
  const { recorder } = ctx;
  const before = recorder.failures.length;
  let emulatorRatio: number | undefined;
  let kernelRatio: number | undefined;
  if (checkShapes(ctx, name, module)) {
    for (const [tensor, hash] of Object.entries(module.tensors))
      await checkHash(recorder, ctx.weights, { check: 'tensors', module: name, tensor }, hash);
    const decoded = await decodeModule(ctx.runtime, ctx.weights, name, module);
    try {
      recordProblems(recorder, name, decoded.problems);
      if (module.layout === 'dense' && module.canonical.weight === undefined && !ctx.canonical)
        recorder.unproved.push(
          `module '${name}' is stored dense: its codes are gone, so only its tensor hash was checked`,
        );
      await checkCanonical(recorder, name, module, decoded.parts, ctx.canonical !== undefined);
      if (ctx.canonical) await compareModule(ctx.runtime, recorder, ctx.canonical, name, module, decoded, ctx.target);
      if (ctx.emulate) emulatorRatio = await emulateModule(ctx, name, module, decoded);
      kernelRatio = await runKernel(ctx, name, module, decoded);
    } finally {
      disposeDecoded(decoded);
    }
    for (const tensor of Object.keys(module.tensors)) ctx.weights.advise(tensor, 'dontneed');
  }
  return {
    name,
    layout: module.layout,
    type: module.type,
    shape: module.shape,
    ok: recorder.failures.length === before,
    seconds: (performance.now() - started) / 1000,
    ...(emulatorRatio !== undefined && { emulatorRatio }),
    ...(kernelRatio !== undefined && { kernelRatio }),
  };
}

function checkShapes({ recorder, weights }: ModuleContext, name: string, module: PackedModule): boolean {
  const { tensors, problems } = expectation(name, module);
  for (const problem of problems)
    recorder.check(false, { check: 'tensors', module: name, message: `module '${name}': ${problem}` });
  let ok = problems.length === 0;
  const fail = (tensor: string, what: string, got: string, expected: string): void => {
    const message = `'${tensor}' ${what}`;
    ok = recorder.check(false, { check: 'tensors', module: name, tensor, got, expected, message });
  };
  for (const { name: tensor, dtypes, shape } of tensors) {
    recorder.count('tensors');
    if (!weights.has(tensor)) fail(tensor, 'is not in the shards', 'nothing', `${dtypes[0]} [${shape}]`);
    else {
      const spec = weights.spec(tensor);
      const [got, expected] = [`${spec.dtype} [${spec.shape}]`, `${dtypes.join(' or ')} [${shape}]`];
      if (!dtypes.includes(spec.dtype) || `${spec.shape}` !== `${shape}`)
        fail(tensor, 'has another dtype or shape', got, expected);
    }
    if (!Object.hasOwn(module.tensors, tensor)) fail(tensor, 'has no hash in the manifest', 'nothing', 'a sha256');
  }
  if (problems.length === 0)
    for (const tensor of Object.keys(module.tensors))
      if (!tensors.some((expected) => expected.name === tensor))
        fail(tensor, `belongs to no part of layout ${module.layout}`, 'listed', 'not listed');
  return ok;
}
