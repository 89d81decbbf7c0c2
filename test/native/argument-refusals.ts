import type { NativeRuntime } from '../../native/binding.js';
import { argumentCases, type Given } from './argument-cases.js';

/** What is wrong with a call, and what the backend says: `CODE: sentence`, or nothing where it takes it. */
export interface Refusal {
  readonly op: string;
  readonly wrong: 'parameter' | 'dtype' | 'shape';
  readonly name: string;
  readonly said: string;
}

/** Calls every operation of the table with a parameter that it does not know, and with each tensor of a wrong dtype and of a wrong shape. */
export async function refusals(rt: NativeRuntime, cases = argumentCases): Promise<Refusal[]> {
  const found: Refusal[] = [];
  for (const { op, inputs, outputs, params, measures } of cases) {
    const attempt = async (wrong: Refusal['wrong'], name: string) => {
      const made = new Map(
        [...inputs, ...outputs].map(({ name: each, dtype, shape }) => {
          const bad = each === name;
          return [
            each,
            rt.allocate(bad && wrong === 'dtype' ? 'u64' : dtype, bad && wrong === 'shape' ? [...shape, 2] : shape),
          ];
        }),
      );
      const of = (list: readonly Given[]) => list.map(({ name: each }) => made.get(each)!);
      rt.enqueue(op, of(inputs), of(outputs), wrong === 'parameter' ? { ...params, nonsense: 1 } : params);
      const said = await rt.sync().then(
        () => '',
        (error: unknown) => `${(error as { code?: string }).code}: ${(error as Error).message}`,
      );
      found.push({ op, wrong, name, said });
    };
    await attempt('parameter', 'nonsense');
    for (const name of new Set([...inputs, ...outputs].map((each) => each.name)))
      if (!measures.includes(name)) for (const wrong of ['dtype', 'shape'] as const) await attempt(wrong, name);
  }
  return found;
}
