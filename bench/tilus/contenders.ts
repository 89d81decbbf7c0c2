import { mkdirSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { check, type Settings } from '../../src/tilus/check/check.js';
import { compile } from '../../src/tilus/compile/compile.js';
import type { Compiled } from '../../src/tilus/device/launch.js';
import { buildCubins } from '../../src/tilus/device/nvcc.js';
import { enumerate } from '../../src/tilus/enumerate.js';
import type { Source } from '../../src/tilus/language/ast.js';
import { program } from '../../src/tilus/programs.js';

/** What runs after a program to finish its product, with the pointers that it shares under other names. */
export interface After {
  readonly source: Source;
  readonly settings: Settings;
  /** For each pointer of it, a pointer of the program, or a name of its own. */
  readonly pointers: Readonly<Record<string, string>>;
}

/** A configuration that can be timed: launches in order. */
export interface Contender {
  readonly settings: Settings;
  readonly launches: readonly (Compiled & { readonly pointers: Readonly<Record<string, string>> })[];
}

export interface Contenders {
  readonly contenders: readonly Contender[];
  readonly refused: readonly { readonly settings: Settings; readonly why: string }[];
  readonly checkSeconds: number;
  readonly compileSeconds: number;
}

export interface ContenderRequest {
  readonly source: Source;
  readonly all: readonly Settings[];
  /** Whose shared memory programs must fit. */
  readonly arch: 80 | 86 | 89 | 90;
  /** Of the device, as nvcc takes it. */
  readonly deviceArch: number;
  /** A folder for nvcc's files, which is made; each needs its own as long as the runtime lives. */
  readonly folder: string;
  readonly after?: (settings: Settings) => After | undefined;
  readonly jobs?: number;
  readonly onBuilt?: (done: number, total: number) => void;
}

/** The parts of a split product are added up. */
export function sumAfter({ N, SPLIT = 1 }: Settings): After | undefined {
  if (SPLIT === 1) return undefined;
  const pointers = { parts_ptr: 'c_ptr', bias_ptr: 'bias_ptr', c_ptr: 'sum' };
  return { source: program('sum'), settings: { N: N!, SPLIT }, pointers };
}

/** Checks a program in every configuration and compiles those that can run, with as many compilers at once as there are processors. */
export async function buildContenders(request: ContenderRequest): Promise<Contenders> {
  const { source, all, arch, deviceArch, folder, after = () => undefined } = request;
  const started = performance.now();
  const candidates = enumerate(source, all, arch);
  const finishers = new Map<string, Compiled & { pointers: Readonly<Record<string, string>> }>();
  const drafts = candidates.flatMap(({ settings, program: checked, kernel }) => {
    if (!checked || !kernel) return [];
    const next = after(settings);
    const key = next && JSON.stringify(next.settings);
    if (next && !finishers.has(key!)) {
      const finisher = check(next.source, { settings: next.settings, arch });
      const name = `${source.name}_after_${finishers.size}`;
      finishers.set(key!, { program: finisher, kernel: compile(finisher, name), cubin: '', pointers: next.pointers });
    }
    return [{ settings, program: checked, kernel, key }];
  });
  mkdirSync(folder, { recursive: true });
  const checked = performance.now();
  const kernels = [...drafts, ...finishers.values()].map(({ kernel }) => kernel);
  const cubins = await buildCubins(kernels, deviceArch, folder, {
    jobs: request.jobs ?? availableParallelism(),
    onBuilt: (done) => request.onBuilt?.(done, kernels.length),
  });
  const finished = new Map(
    [...finishers].map(([key, each], i) => [key, { ...each, cubin: cubins[drafts.length + i]! }] as const),
  );
  return {
    contenders: drafts.map(({ settings, program: each, kernel, key }, i) => ({
      settings,
      launches: [
        { program: each, kernel, cubin: cubins[i]!, pointers: {} },
        ...(key === undefined ? [] : [finished.get(key)!]),
      ],
    })),
    refused: candidates.flatMap(({ settings, refused }) => (refused === undefined ? [] : [{ settings, why: refused }])),
    checkSeconds: (checked - started) / 1000,
    compileSeconds: (performance.now() - checked) / 1000,
  };
}
