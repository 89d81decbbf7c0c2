import { fromTyped, type NativeRuntime, type Tensor } from '../../../native/binding.js';
import type { LaunchArguments } from '../interpret/run.js';
import { type Compiled, launchCall } from './launch.js';

/** What outputs hold before a launch, so that bytes which no thread stores are seen. */
const POISON = 0xff;

/**
 * Runs a compiled program on the runtime's device, as run() of the interpreter does on the CPU: writes to the outputs of `args`. Bytes that
 * the program does not store stay 0xff. Throws LPQ_CUDA_KERNELS where the device cannot run it, and what the launch throws.
 */
export async function runOnDevice(rt: NativeRuntime, compiled: Compiled, args: LaunchArguments): Promise<void> {
  const tensors = new Map<string, Tensor>();
  const scalars = new Map<string, number>();
  const bytes = (data: Uint8Array): Tensor => {
    const host = fromTyped('u8', [data.length], data);
    const there = rt.upload(host);
    host.dispose();
    return there;
  };
  const outputs: { readonly name: string; readonly to: Uint8Array }[] = [];
  for (const { name } of compiled.program.parameters) {
    const given = args[name]!;
    if (typeof given === 'number') scalars.set(name, given);
    else if (given instanceof Uint8Array) tensors.set(name, bytes(given));
    else {
      tensors.set(name, bytes(new Uint8Array(given.output.length).fill(POISON)));
      outputs.push({ name, to: given.output });
    }
  }
  const { workspaceBytes } = compiled.kernel;
  const workspace = workspaceBytes > 0 ? bytes(new Uint8Array(workspaceBytes).fill(POISON)) : undefined;
  try {
    const {
      op,
      inputs,
      outputs: written,
      params,
    } = launchCall(compiled, { tensors, scalars, ...(workspace && { workspace }) });
    rt.enqueue(op, inputs, written, params);
    for (const { name, to } of outputs) {
      const host = await rt.download(tensors.get(name)!);
      to.set(host.bytes());
      host.dispose();
    }
    await rt.sync();
  } finally {
    for (const tensor of [...tensors.values(), ...(workspace ? [workspace] : [])]) tensor.dispose();
  }
}
