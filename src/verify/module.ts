import type { PackedModule } from '../../formats/artifact/schema.js';
import { hashTensor } from '../../formats/safetensors/hash.js';
import type { TensorReader } from '../../formats/safetensors/read.js';
import type { NativeRuntime } from '../../native/binding.js';
import { type CanonicalSide, compareModule } from './against.js';
import { canonicalFacts, type DecodedPart, decodeModule, disposeDecoded } from './decode.js';
import { emulateModule } from './emulate.js';
import { expectation } from './expectation.js';
import { runKernel } from './kernels.js';
import type { ModuleReport, Recorder } from './report.js';

export interface ModuleContext {
  readonly runtime: NativeRuntime;
  readonly weights: TensorReader;
  readonly recorder: Recorder;
  readonly canonical: CanonicalSide | undefined;
  readonly emulate: boolean;
  /** A device whose kernels are run on the packed bytes. */
  readonly kernel: NativeRuntime | undefined;
  /** The target has activations rounded to codes, one scale a token. */
  readonly dynamic: boolean;
  readonly seed: number;
  /** What the artifact was packed for. */
  readonly target: string;
}

/** Everything about one module, from its tensors' shapes to the emulated kernel. Differences go to the recorder. */
export async function verifyModule(ctx: ModuleContext, name: string, module: PackedModule): Promise<ModuleReport> {
  const started = performance.now();
  const before = ctx.recorder.failures.length;
  let emulatorRatio: number | undefined;
  let kernelRatio: number | undefined;
  if (checkShapes(ctx, name, module)) {
    await checkHashes(ctx, name, module);
    const decoded = await decodeModule(ctx.runtime, ctx.weights, name, module);
    try {
      recordPadding(ctx.recorder, name, decoded.problems);
      await checkCanonical(ctx, name, module, decoded.parts);
      if (ctx.canonical)
        await compareModule(ctx.runtime, ctx.recorder, ctx.canonical, name, module, decoded, ctx.target);
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
    ok: ctx.recorder.failures.length === before,
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
    ok = recorder.check(false, {
      check: 'tensors',
      module: name,
      tensor,
      got,
      expected,
      message: `'${tensor}' ${what}`,
    });
  };
  for (const { name: tensor, dtypes, shape } of tensors) {
    recorder.count('tensors');
    if (!weights.has(tensor)) fail(tensor, 'is not in the shards', 'nothing', `${dtypes[0]} [${shape}]`);
    else {
      const spec = weights.spec(tensor);
      if (!dtypes.includes(spec.dtype) || `${spec.shape}` !== `${shape}`)
        fail(
          tensor,
          'has another dtype or shape',
          `${spec.dtype} [${spec.shape}]`,
          `${dtypes.join(' or ')} [${shape}]`,
        );
    }
    if (!Object.hasOwn(module.tensors, tensor)) fail(tensor, 'has no hash in the manifest', 'nothing', 'a sha256');
  }
  if (problems.length === 0)
    for (const tensor of Object.keys(module.tensors))
      if (!tensors.some((expected) => expected.name === tensor))
        fail(tensor, `belongs to no part of layout ${module.layout}`, 'listed', 'not listed');
  return ok;
}

async function checkHashes({ recorder, weights }: ModuleContext, name: string, module: PackedModule): Promise<void> {
  for (const [tensorName, expected] of Object.entries(module.tensors)) {
    const tensor = weights.tensor(tensorName);
    const got = await hashTensor(weights.spec(tensorName), tensor);
    tensor.dispose();
    const message = `the bytes of '${tensorName}' are not those that were packed`;
    recorder.check(got === expected, { check: 'tensors', module: name, tensor: tensorName, got, expected, message });
  }
}

function recordPadding(
  recorder: Recorder,
  name: string,
  problems: Awaited<ReturnType<typeof decodeModule>>['problems'],
): void {
  recorder.count('padding');
  for (const { tensor, wrong, what } of problems)
    recorder.failures.push({
      check: 'padding',
      module: name,
      tensor,
      row: wrong.row,
      column: wrong.column,
      got: wrong.got,
      expected: wrong.expected,
      message:
        `'${tensor}': ${what}, first at row ${wrong.row}, column ${wrong.column}: ` +
        `got ${wrong.got}, expected ${wrong.expected} (${wrong.count} such values)`,
    });
}

/** Decoded parts against the hashes of what was packed. */
async function checkCanonical(
  ctx: ModuleContext,
  name: string,
  module: PackedModule,
  parts: Awaited<ReturnType<typeof decodeModule>>['parts'],
): Promise<void> {
  const { recorder } = ctx;
  if (module.layout === 'dense' && module.canonical.weight === undefined && !ctx.canonical)
    recorder.unproved.push(
      `module '${name}' is stored dense: its codes cannot be read back, only its tensor hash was checked`,
    );
  for (const [part, expected] of Object.entries(module.canonical)) {
    if (expected === undefined) continue;
    const tensor = parts.get(part as keyof PackedModule['canonical']);
    if (!tensor) {
      // A dense module has its weight only; every other layout must bring back all that was hashed.
      if (module.layout !== 'dense')
        recorder.check(false, {
          check: 'canonical',
          module: name,
          message: `module '${name}': layout ${module.layout} does not hold the ${part} that the manifest has a hash of`,
        });
      continue;
    }
    const got = await hashTensor(canonicalFacts(name, part as DecodedPart, tensor), tensor);
    recorder.check(got === expected, {
      check: 'canonical',
      module: name,
      got,
      expected,
      message: `module '${name}': the ${part} that its packed bytes hold are not those that were quantized${
        ctx.canonical ? '' : ' (--against QUANTIZED names the row and column)'
      }`,
    });
  }
}
