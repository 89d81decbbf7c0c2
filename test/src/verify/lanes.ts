// The calls of verify_emulate_lanes that a verification makes, kept to run them again with another text of the program.
import { createHash } from 'node:crypto';
import path from 'node:path';
import { fromTyped, type NativeRuntime, type OpParams, type Tensor } from '../../../native/binding.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { type EmulatorResult, emulate } from '../../../src/verify/native.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { scratch } from '../../formats/scratch.js';
import { checkpointOf, type Made } from '../pack/checkpoint.js';

export interface LaneCall {
  readonly inputs: readonly Tensor[];
  readonly params: OpParams & { program: string; tensors: string; seed: number; strips: number[] };
}

/** Packs modules for a target, verifies them, and returns what its emulator was called with, in the order of the modules. */
export async function laneCalls(
  runtime: NativeRuntime,
  target: string,
  modules: Readonly<Record<string, Made>>,
): Promise<LaneCall[]> {
  const calls: LaneCall[] = [];
  const recording = new Proxy(runtime, {
    get(to, key) {
      const value = Reflect.get(to, key, to);
      if (key === 'enqueue')
        return (op: string, inputs: readonly Tensor[], outputs: readonly Tensor[], params: LaneCall['params']) => {
          if (op === 'verify_emulate_lanes') calls.push({ inputs: inputs.map(copy), params });
          return to.enqueue(op, inputs, outputs, params);
        };
      return typeof value === 'function' ? value.bind(to) : value;
    },
  });
  const dir = scratch();
  const input = await checkpointOf(dir, 'canonical', modules);
  const output = path.join(dir, 'packed');
  await packCheckpoint({ input, target, output, runtime });
  input.close();
  const { failures } = await verifyArtifact({ dir: output, runtime: recording });
  if (failures.length > 0) throw new Error(failures[0]!.message);
  return calls;
}

const copy = (tensor: Tensor): Tensor => fromTyped(tensor.dtype, tensor.shape, tensor.bytes().slice());

export const again = (runtime: NativeRuntime, { inputs, params }: LaneCall, program: string): Promise<EmulatorResult> =>
  emulate(runtime, 'lanes', inputs, { ...params, program });

/** SHA-256 of the packed tensors that a program reads. */
export function packedHash({ inputs, params }: LaneCall): string {
  const hash = createHash('sha256');
  for (const tensor of inputs.slice(-params.tensors.split(' ').length)) hash.update(tensor.bytes());
  return hash.digest('hex');
}

const OTHER: Readonly<Record<string, string>> = {
  ...{ '+': '-', '-': '+', '*': '+', '/': '*', '%': '/', '<<': '>>', '>>': '<<', '&': '|', '|': '&' },
  ...{ '==': '<', '<': '==' },
  ...{ sub2: 'mul2', mul2: 'sub2', pair: 'min', min: 'pair', number: 'numbers2', numbers2: 'number' },
  ...{ word: 'half', half: 'byte', byte: 'half', scale: 'byte', mma_a: 'mma_b', mma_b: 'mma_884', mma_884: 'mma_b' },
  ...{ scale_a: 'scale_b', scale_b: 'scale_a' },
};
const KEPT = /^(for|in|if|else|packed|scales|zeros|meta)$/;

/** What a token of a line may become: another number, operator or function, or another value of a variable that is read. */
function others(token: string, before: string, after: string): string[] {
  if (/^\d/.test(token)) return [Number(token) + 1, Number(token) - 1].filter((n) => n >= 0).map(String);
  const isName = /^\w/.test(token);
  if (!isName || after.startsWith('(')) return OTHER[token] ? [OTHER[token]] : [];
  const isWritten = /^\s*(for )?$/.test(before);
  return KEPT.test(token) || isWritten || after.startsWith('[') ? [] : [`(${token} + 1)`];
}

/** Every text with one number, operator, variable or function changed, or one statement missing; each with a name. */
export function* mutants(text: string): Generator<readonly [what: string, mutant: string]> {
  let start = 0;
  for (const [row, line] of text.split('\n').entries()) {
    const code = line.replace(/#.*/, '').trimEnd();
    const put = (from: number, to: number, by: string) => text.slice(0, start + from) + by + text.slice(start + to);
    if (code !== '' && !code.endsWith(':')) yield [`line ${row + 1} is missing`, put(0, code.length, '')];
    for (const { 0: token, index } of code.matchAll(/\w+|<<|>>|==|[-+*/%&|<]/g)) {
      const [before, after] = [code.slice(0, index), code.slice(index + token.length)];
      for (const by of others(token, before, after))
        yield [`line ${row + 1}: ${(before + by + after).trim()}`, put(index, index + token.length, by)];
    }
    start += line.length + 1;
  }
}
