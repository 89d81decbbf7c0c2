import { type Carried, checkpointOf, type Made, made } from '../src/pack/checkpoint.js';

const EXPERTS = 6;

/**
 * A checkpoint for library/experts.c: modules e0.p0, e0.p1, ... of 6 experts with `parts` modules each, of 71 outputs, which are neither whole
 * blocks nor even in number; those of one part have biases; and `taller` and `other`, which are not like them.
 */
export async function expertModules(dir: string, name: string, parts: 1 | 2) {
  const zeros = parts === 2 ? ({ kind: 'int', dtype: 'u8' } as const) : ({ kind: 'none' } as const);
  const type = parts === 2 ? 'u4' : 'i4';
  const module = (n: number, seed: number) => made({ type, n, k: 288, group: 32, zeros, seed });
  const modules: Record<string, Made> = {
    taller: module(96, 90),
    other: made({ type: type.replace('4', '3'), n: 71, k: 288, group: 32, zeros, seed: 91 }),
  };
  const carried: Carried[] = [];
  for (let e = 0; e < EXPERTS; e++)
    for (let p = 0; p < parts; p++) {
      modules[`e${e}.p${p}`] = module(71, 10 * e + p + 1);
      // bf16 of small numbers of either sign.
      const data = Uint16Array.from({ length: 71 }, (_, i) => 0x3f80 + ((i * 37 + e) % 256) + (i % 2 ? 0x8000 : 0));
      if (parts === 1) carried.push({ name: `e${e}.p${p}.bias`, dtype: 'BF16', shape: [71], data });
    }
  return checkpointOf(dir, name, modules, undefined, carried);
}

/**
 * A checkpoint for library/mixture.c: gate, up and down of 6 experts, of 160 features, in groups of 32,, and 71 within, so that those of up stand from 96 on,
 * with biases.
 */
export async function mixtureModules(dir: string, name: string) {
  const zeros = { kind: 'int', dtype: 'u8' } as const;
  const modules: Record<string, Made> = {};
  const carried: Carried[] = [];
  for (let e = 0; e < EXPERTS; e++)
    for (const [p, [part, n, k, group]] of (
      [
        ['gate', 71, 160, 32],
        ['up', 71, 160, 32],
        ['down', 160, 71, 0],
      ] as const
    ).entries()) {
      modules[`e${e}.${part}`] = made({ type: 'u4', n, k, ...(group && { group }), zeros, seed: 10 * e + p + 1 });
      // bf16 from 1/4 to 1, of either sign.
      const data = Uint16Array.from({ length: n }, (_, i) => 0x3e80 + ((i * 37 + e + p) % 256) + (i % 2 ? 0x8000 : 0));
      carried.push({ name: `e${e}.${part}.bias`, dtype: 'BF16', shape: [n], data });
    }
  return checkpointOf(dir, name, modules, undefined, carried);
}
