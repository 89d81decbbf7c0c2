import type { DotPlan } from '../check/dot.js';
import type { Instruction } from '../check/program.js';
import type { Unit } from './unit.js';

const CALLS: Readonly<Record<string, string>> = {
  f16: 'mma_m16n8k16<false>',
  bf16: 'mma_m16n8k16<true>',
  i8: 'mma_m16n8k32_s8',
  i4: 'mma_m16n8k64_s4',
};

/** Writes Dot: three loops where the tiles of a thread are a grid of m, n and k, else one line an instruction. */
export function writeDot(unit: Unit, node: Instruction & { op: 'Dot' }): void {
  const { a, b, c, out, plan, text } = node;
  unit.header('mma');
  unit.use('four');
  unit.select(`mma.${plan.mma.name}.${plan.mma.operand}`);
  const to = out === c ? unit.name(c) : unit.declare(out, text);
  if (out !== c) unit.writer.line(`memcpy(${to}, ${unit.name(c)}, sizeof(${to}));`);
  else unit.writer.line(`// ${text}`);
  const call = (sums: string, rows: string, columns: string, next: string): string =>
    `${CALLS[plan.mma.operand]}(four(${to} + ${sums}), four(${unit.name(a)} + ${rows}), ${unit.name(b)}[${columns}], ${unit.name(b)}[${next}]);`;
  const grid = gridOf(plan);
  if (!grid) {
    for (const step of plan.steps)
      unit.writer.line(call(`${4 * step.c}`, `${4 * step.a}`, `${2 * step.b}`, `${2 * step.b + 1}`));
    return;
  }
  const times = (...terms: readonly (readonly [number, string])[]): string =>
    terms
      .flatMap(([factor, name]) => (factor === 0 ? [] : [factor === 1 ? name : `${factor} * ${name}`]))
      .join(' + ') || '0';
  const { rows, columns, depth } = grid;
  unit.writer.loop('i', rows, () =>
    unit.writer.loop('j', columns, () =>
      unit.writer.loop('k', depth, () => {
        const of = times([2 * grid.bn, 'j'], [2 * grid.bk, 'k']);
        unit.writer.line(
          call(
            times([4 * columns, 'i'], [4, 'j']),
            times([4 * grid.am, 'i'], [4 * grid.ak, 'k']),
            of,
            of === '0' ? '1' : `${of} + 1`,
          ),
        );
      }),
    ),
  );
}

interface Grid {
  readonly rows: number;
  readonly columns: number;
  readonly depth: number;
  readonly am: number;
  readonly ak: number;
  readonly bn: number;
  readonly bk: number;
}

function gridOf({ steps }: DotPlan): Grid | undefined {
  const depth = steps.filter((step) => step.c === 0).length;
  const tiles = steps.length / depth;
  const at = (c: number, k: number): DotPlan['steps'][number] => steps[c * depth + k]!;
  for (let columns = 1; columns <= tiles; columns++) {
    if (tiles % columns !== 0) continue;
    const rows = tiles / columns;
    const grid = {
      rows,
      columns,
      depth,
      am: rows > 1 ? at(columns, 0).a - at(0, 0).a : 0,
      ak: depth > 1 ? at(0, 1).a - at(0, 0).a : 0,
      bn: columns > 1 ? at(1, 0).b - at(0, 0).b : 0,
      bk: depth > 1 ? at(0, 1).b - at(0, 0).b : 0,
    };
    const fits = steps.every(({ a, b, c }, i) => {
      const [m, n, k] = [Math.floor(c / columns), c % columns, i % depth];
      return a === grid.am * m + grid.ak * k && b === grid.bn * n + grid.bk * k;
    });
    if (fits) return grid;
  }
  return undefined;
}
