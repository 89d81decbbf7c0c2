import { WGMMA_M64N8K16 } from '../../layout/fragment.js';
import type { Expr } from '../language/ast.js';
import { elementType } from '../types.js';
import type { Call, Rule } from './instructions.js';
import { divide } from './layout-map.js';
import { copied, place } from './places.js';
import type { Action, MemoryTensor } from './program.js';
import { refuse, typeOf } from './scope.js';

const number = (value: number): Expr => ({ kind: 'number', value });
/** Columns that wgmma takes, in eights (native/cuda/ptx/wgmma.cuh). */
const EIGHTS = [1, 2, 4, 8, 12, 16, 20, 24, 32];

/** Instructions of sm_90, an extension of the paper's machine. */
export const HOPPER: Readonly<Record<string, Rule>> = {
  AllocateBarrier: { args: ['count', 'copies?'], makes: 1, check: onHopper(allocateBarrier) },
  CopyTensor: {
    args: ['shared', 'tensor', 'barrier', 'index', 'offset?', 'at?'],
    makes: 0,
    check: onHopper(copyTensor),
  },
  BarrierWait: { args: ['barrier', 'index', 'parity'], makes: 0, check: onHopper(barrierWait) },
  WarpgroupDot: { args: ['a', 'shared', 'c', 'at?', 'out?'], makes: 1, check: onHopper(warpgroupDot) },
  WarpgroupWait: { args: [], makes: 0, check: onHopper(() => ({ op: 'WarpgroupWait' })) },
};

function onHopper(check: Rule['check']): Rule['check'] {
  return (call) => {
    if (call.scope.arch < 90)
      refuse(call, 'this instruction needs sm_90', {
        got: `sm_${call.scope.arch}`,
        hint: 'Pass --arch 90.',
      });
    return check(call);
  };
}

/** Barriers are pairs of words in shared memory, which nothing else reads. */
function allocateBarrier(call: Call): Action {
  const count = call.scope.constant(call.args.get('count')!, call);
  const copies = call.args.has('copies') ? call.scope.constant(call.args.get('copies')!, call) : 1;
  if (count < 1 || copies < 1) refuse(call, 'it needs at least one barrier, and at least one copy per barrier');
  const modes = [[{ size: count, stride: number(2) }], [{ size: 2, stride: number(1) }]];
  const tensor = {
    scope: 'shared',
    dtype: elementType('u32'),
    shape: [number(count), number(2)],
    modes,
    swizzle: false,
  } as const;
  return { op: 'AllocateBarrier', copies, out: call.scope.memory(call.outputs[0]!, tensor, call) };
}

function barrierOf(call: Call): { barrier: MemoryTensor; index: Expr } {
  const barrier = call.scope.inMemory(call.args.get('barrier')!, 'shared', call);
  if (barrier.dtype.name !== 'u32')
    refuse(call, `${barrier.name} is not a barrier`, { hint: 'AllocateBarrier makes barriers.' });
  return { barrier, index: call.scope.number(call.args.get('index')!, call) };
}

function copyTensor(call: Call): Action {
  const to = call.scope.inMemory(call.args.get('shared')!, 'shared', call);
  const from = call.scope.inMemory(call.args.get('tensor')!, 'global', call);
  if (to.dtype !== from.dtype)
    refuse(call, `${to.name} and ${from.name} have different types`, { got: typeOf(to), expected: typeOf(from) });
  const { at, shape } = copied(call, to);
  const source = place(call, call.args.get('offset'), from, shape);
  const row = (shape.at(-1)! * to.dtype.bits) / 8;
  if (row !== 128 || !to.swizzle || to.dtype.bits < 8)
    refuse(call, 'TMA copies rows of 128 bytes to a swizzled tensor', { got: `rows of ${row} bytes of ${typeOf(to)}` });
  if (shape.length !== 2 || from.shape.length > 3 || from.pointer === undefined || shape[0]! > 256)
    refuse(call, 'a box of TMA has at most 256 rows of a tensor of two or three dimensions that a parameter points to');
  return { op: 'CopyTensor', to, at, from, source, shape, ...barrierOf(call) };
}

function barrierWait(call: Call): Action {
  return { op: 'BarrierWait', ...barrierOf(call), parity: call.scope.number(call.args.get('parity')!, call) };
}

/** c [64, n] += a [64, 64 or a multiple of 16] times the rows of b [n, 64]. */
function warpgroupDot(call: Call): Action {
  const a = call.scope.registers(call.args.get('a')!, call);
  const c = call.scope.registers(call.args.get('c')!, call);
  const b = call.scope.inMemory(call.args.get('shared')!, 'shared', call);
  const { at, shape } = copied({ ...call, args: new Map(call.args) }, b);
  const of = divide(a.layout, WGMMA_M64N8K16.a);
  const sums = divide(c.layout, WGMMA_M64N8K16.c);
  if (!of || !sums || of.groups !== 1 || sums.groups !== 1)
    refuse(call, 'the layouts of a and c must be products that end in wgmma_a and wgmma_c, of one warpgroup');
  if ((a.dtype.name !== 'f16' && a.dtype.name !== 'bf16') || b.dtype !== a.dtype || c.dtype.name !== 'f32')
    refuse(call, 'it multiplies f16 or bf16, and sums in f32', {
      got: `${typeOf(a)}, ${typeOf(b)} and ${typeOf(c)}`,
    });
  const inOrder = (dim: number, quotient: typeof of): boolean =>
    quotient.coordinates.every((each, axis) => each.every((tile, i) => tile === (axis === dim ? i : 0)));
  if (
    !inOrder(1, of) ||
    !inOrder(1, sums) ||
    shape.length !== 2 ||
    a.layout.shape[1] !== shape[1] ||
    c.layout.shape[1] !== shape[0]
  )
    refuse(
      call,
      `shapes [${a.layout.shape}] x [${shape.toReversed()}] do not give [${c.layout.shape}] with tiles in order`,
    );
  if (!b.swizzle || shape[1] !== 64 || !EIGHTS.includes(shape[0]! / 8))
    refuse(call, 'the operand in shared memory must be swizzled, with rows of 64 numbers', {
      got: typeOf(b),
      expected: `${EIGHTS.map((each) => 8 * each).join(', ')} rows`,
    });
  const out = call.args.get('out');
  const made = out ? call.scope.registers(out, call) : call.scope.register(call.outputs[0]!, c.dtype, c.layout, call);
  if (made !== c) refuse(call, 'the result must be assigned to c', { hint: `Assign it to ${c.name}.` });
  return { op: 'WarpgroupDot', a, b, at, c, out: made };
}
