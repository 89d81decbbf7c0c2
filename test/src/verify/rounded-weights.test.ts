import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import {
  addon,
  createRuntime,
  fromTyped,
  type NativeRuntime,
  type OpParams,
  type Tensor,
  typed,
} from '../../../native/binding.js';
import { bitsOf, numberOf } from '../../../src/verify/floats.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { lpq, scratch } from '../cli/lpq.js';
import { ARCHITECTURES } from '../model/fixtures.js';

type Half = 'f16' | 'bf16';
/** Whether a kernel rounds weights to the type of the activations. */
type Rounding = (tokens: number) => boolean;

/** The nearest number of the type, ties to even; of f16 subnormals, too. */
function nearestBits(dtype: Half, value: number): number {
  const unit =
    2 ** (Math.max(Math.floor(Math.log2(Math.abs(value))), dtype === 'f16' ? -14 : -126) - (dtype === 'f16' ? 10 : 7));
  const whole = Math.floor(Math.abs(value) / unit);
  const rest = Math.abs(value) / unit - whole;
  const rounded = (whole + (rest > 0.5 || (rest === 0.5 && whole % 2 !== 0) ? 1 : 0)) * unit;
  const subnormal = dtype === 'f16' && rounded < 2 ** -14;
  return subnormal ? (value < 0 ? 0x8000 : 0) | (rounded * 2 ** 24) : bitsOf(dtype)(value < 0 ? -rounded : rounded);
}

/** The CPU as a device whose gemm_packed rounds weights first. */
function device(cpu: NativeRuntime, rounding: Rounding): NativeRuntime {
  /** The operation's weights [K][N] of a dtype: its product with the unit matrix. */
  const weights = async (dtype: Half, inputs: readonly Tensor[], n: number, params: OpParams) => {
    const k = inputs[0]!.shape[1]!;
    const unit = new Uint16Array(k * k);
    for (let i = 0; i < k; i++) unit[i * k + i] = bitsOf(dtype)(1);
    const y = cpu.allocate(dtype, [k, n]);
    cpu.enqueue('gemm_packed', [fromTyped(dtype, [k, k], unit), ...inputs.slice(1)], [y], params);
    await cpu.sync();
    return Float64Array.from(typed<Uint16Array>(y), (bits) => numberOf(dtype, bits));
  };
  let pending: Promise<void> = Promise.resolve();
  const multiply = async (inputs: readonly Tensor[], y: Tensor, params: OpParams): Promise<void> => {
    const x = inputs[0]!;
    const [tokens, k] = x.shape as [number, number];
    const n = y.shape[1]!;
    const dtype = x.dtype as Half;
    const w = await weights(dtype, inputs, n, params);
    const from = typed<Uint16Array>(x);
    const to = typed<Uint16Array>(y);
    for (let m = 0; m < tokens; m++)
      for (let c = 0; c < n; c++) {
        let sum = 0;
        for (let i = 0; i < k; i++) sum += numberOf(dtype, from[m * k + i]!) * w[i * n + c]!;
        to[m * n + c] = nearestBits(dtype, sum);
      }
  };
  const enqueue = (op: string, inputs: readonly Tensor[], outputs: readonly Tensor[], params: OpParams = {}): void => {
    const x = inputs[0];
    if (op !== 'gemm_packed' || !x || !rounding(x.shape[0]!)) cpu.enqueue(op, inputs, outputs, params);
    else pending = pending.then(() => multiply(inputs, outputs[0]!, params));
  };
  const sync = async () => {
    await pending;
    await cpu.sync();
  };
  const own: Record<string | symbol, unknown> = { device: 'cuda:0', enqueue, sync };
  return new Proxy(cpu, {
    get(of, name) {
      if (name in own) return own[name];
      const value: unknown = Reflect.get(of, name, of);
      return typeof value === 'function' ? value.bind(of) : value;
    },
  });
}

test('kernels may round weights to the type of the activations above 16 tokens, not before', async (t) => {
  const dir = scratch(t);
  t.mock.method(addon(), 'cudaDevices', () => [{ arch: 90 }]);
  for (const [name, ...options] of [['whole'], ['zeros', '--asym'], ['bf16', '--scale-dtype', 'bf16']] as const) {
    const [quantized, packed] = [path.join(dir, name), path.join(dir, `${name}.packed`)];
    const source = path.join(ARCHITECTURES, 'deepseek_v3');
    const flags = ['--bits', '4', '--group-size', '32', '--method', 'rtn', '--no-eval', '--no-report'];
    const made = await lpq(['quantize', source, '-o', quantized, ...flags, ...options]);
    assert.equal(made.code, 0, made.stderr);
    assert.equal((await lpq(['pack', quantized, '-o', packed, '--target', 'tilus'])).code, 0);
    const verified = async (rounding: Rounding) => {
      const kernel = device(createRuntime(2), rounding);
      const report = await verifyArtifact({ dir: packed, runtime: createRuntime(2), kernel, emulate: false });
      return report.failures.map(({ check }) => check);
    };
    assert.deepEqual(await verified((tokens) => tokens > 16), [], name);
    assert.ok((await verified(() => true)).includes('kernel'), `${name}: 16 tokens`);
  }
});
