import { localCount, threadCount } from '../../layout/layout.js';
import type { Expr } from '../language/ast.js';
import { ELEMENT_TYPES } from '../types.js';
import { planDot } from './dot.js';
import { HOPPER } from './hopper.js';
import { sameLayout } from './layout-map.js';
import { pairs } from './pairs.js';
import { copied, memoryModes, place } from './places.js';
import { type Action, ARITHMETIC, type Arithmetic, bitsOf, type RegisterTensor } from './program.js';
import { refuse, type Scope, typeOf, type Where } from './scope.js';

/** A call of an instruction: its arguments by name, and the names of its results. */
export interface Call extends Where {
  readonly scope: Scope;
  readonly args: ReadonlyMap<string, Expr>;
  readonly outputs: readonly string[];
}

export interface Rule {
  /** In order; those with ? are optional. */
  readonly args: readonly string[];
  /** Number of results: 1, 0, or any number. */
  readonly makes: 0 | 1 | 'any';
  readonly check: (call: Call) => Action;
}

/** Bytes of AllocateGlobal. */
const WORKSPACE = 2 ** 30;

const given = (call: Call, name: string): Expr => call.args.get(name)!;

/** Table 1, and after it what sm_90 added. Instructions that return a register tensor also take out=, an existing one that they write to. */
export const INSTRUCTIONS: Readonly<Record<string, Rule>> = {
  BlockIndices: { args: [], makes: 'any', check: blockIndices },
  AllocateGlobal: { args: ['dtype', 'shape', 'layout?'], makes: 1, check: (call) => allocate(call, 'global') },
  AllocateShared: {
    args: ['dtype', 'shape', 'layout?', 'swizzle?'],
    makes: 1,
    check: (call) => allocate(call, 'shared'),
  },
  AllocateRegister: { args: ['dtype', 'layout', 'init?'], makes: 1, check: allocateRegister },
  ViewGlobal: { args: ['ptr', 'dtype?', 'shape', 'layout?'], makes: 1, check: viewGlobal },
  LoadGlobal: { args: ['tensor', 'layout', 'offset?', 'out?'], makes: 1, check: (call) => load(call, 'global') },
  LoadShared: { args: ['tensor', 'layout', 'offset?', 'out?'], makes: 1, check: (call) => load(call, 'shared') },
  StoreGlobal: {
    args: ['value', 'tensor', 'offset?', 'transposed?'],
    makes: 0,
    check: (call) => store(call, 'global'),
  },
  StoreShared: { args: ['value', 'tensor', 'offset?'], makes: 0, check: (call) => store(call, 'shared') },
  CopyAsync: { args: ['shared', 'tensor', 'offset?', 'at?'], makes: 0, check: copyAsync },
  CopyAsyncCommitGroup: { args: [], makes: 0, check: () => ({ op: 'CopyAsyncCommitGroup' }) },
  CopyAsyncWaitGroup: { args: ['n'], makes: 0, check: waitGroup },
  ...Object.fromEntries(
    ARITHMETIC.map(
      (op) => [op, { args: ['a', 'b', 'out?'], makes: 1, check: (call: Call) => arithmetic(call, op) }] as const,
    ),
  ),
  Neg: { args: ['a', 'out?'], makes: 1, check: negate },
  Cast: { args: ['a', 'dtype', 'layout?', 'out?'], makes: 1, check: cast },
  View: { args: ['a', 'dtype?', 'layout?', 'out?'], makes: 1, check: view },
  Dot: { args: ['a', 'b', 'c', 'out?'], makes: 1, check: dot },
  Synchronize: { args: [], makes: 0, check: () => ({ op: 'Synchronize' }) },
  Exit: { args: [], makes: 0, check: () => ({ op: 'Exit' }) },
  ...HOPPER,
  Print: {
    args: ['tensor'],
    makes: 0,
    check: (call) => ({ op: 'Print', tensor: call.scope.tensor(given(call, 'tensor'), call) }),
  },
};

/** The tensor that an instruction writes: a new one of its name, or that of out=. */
function output(call: Call, dtype: RegisterTensor['dtype'], layout: RegisterTensor['layout']): RegisterTensor {
  const out = call.args.get('out');
  if (!out) return call.scope.register(call.outputs[0]!, dtype, layout, call);
  const tensor = call.scope.registers(out, call);
  if (tensor.dtype !== dtype || !sameLayout(tensor.layout, layout))
    refuse(call, `out=${tensor.name} has a different type or layout from the result`, {
      got: typeOf(tensor),
      expected: `${dtype.name}[${layout.shape}], in the same layout`,
    });
  return tensor;
}

function blockIndices(call: Call): Action {
  for (const name of call.outputs) if (!call.scope.addScalar(name, call)) refuse(call, `${name} exists already`);
  return { op: 'BlockIndices', outputs: call.outputs };
}

function allocateRegister(call: Call): Action {
  const { scope } = call;
  const dtype = scope.type(given(call, 'dtype'), call);
  const init = call.args.get('init');
  const out = scope.register(call.outputs[0]!, dtype, scope.layout(given(call, 'layout'), call), call);
  return { op: 'AllocateRegister', out, ...(init && { init: scope.real(init, call) }) };
}

function allocate(call: Call, scope: 'global' | 'shared'): Action {
  const dtype = call.scope.type(given(call, 'dtype'), call);
  const swizzle = call.args.has('swizzle') && call.scope.constant(given(call, 'swizzle'), call) !== 0;
  const modes = memoryModes(call, dtype, swizzle);
  for (const size of modes.shape)
    if (size.kind !== 'number') refuse(call, 'what is allocated has a size that is known before the launch');
  const bytes = (modes.shape.reduce((all, size) => all * (size as { value: number }).value, 1) * dtype.bits) / 8;
  if (bytes > WORKSPACE) refuse(call, 'a workspace is at most 1 GiB', { got: `${bytes} bytes` });
  const out = call.scope.memory(call.outputs[0]!, { scope, dtype, swizzle, ...modes }, call);
  return { op: scope === 'global' ? 'AllocateGlobal' : 'AllocateShared', out };
}

function viewGlobal(call: Call): Action {
  const pointer = given(call, 'ptr');
  const type = pointer.kind === 'name' ? call.scope.constants.get(`*${pointer.name}`) : undefined;
  if (pointer.kind !== 'name' || type === undefined)
    refuse(call, 'ptr is not a pointer parameter', { expected: 'such as f16* a_ptr' });
  const dtype = call.args.has('dtype')
    ? call.scope.type(given(call, 'dtype'), call)
    : ELEMENT_TYPES.get((type as { name: string }).name)!;
  const modes = memoryModes(call, dtype, false);
  const out = call.scope.memory(
    call.outputs[0]!,
    { scope: 'global', dtype, swizzle: false, pointer: pointer.name, ...modes },
    call,
  );
  return { op: 'ViewGlobal', out };
}

function load(call: Call, where: 'global' | 'shared'): Action {
  const from = call.scope.inMemory(given(call, 'tensor'), where, call);
  const layout = call.scope.layout(given(call, 'layout'), call);
  const at = place(call, call.args.get('offset'), from, layout.shape);
  return { op: where === 'global' ? 'LoadGlobal' : 'LoadShared', from, at, out: output(call, from.dtype, layout) };
}

function store(call: Call, where: 'global' | 'shared'): Action {
  const value = call.scope.registers(given(call, 'value'), call);
  const to = call.scope.inMemory(given(call, 'tensor'), where, call);
  if (value.dtype !== to.dtype)
    refuse(call, `${value.name} and ${to.name} have different types`, {
      got: typeOf(value),
      expected: typeOf(to),
      hint: 'Cast or View it first.',
    });
  const turned = call.args.has('transposed') && call.scope.constant(given(call, 'transposed'), call) !== 0;
  const { shape } = value.layout;
  const straight = place(call, call.args.get('offset'), to, turned ? shape.toReversed() : shape);
  const at = turned ? { ...straight, axes: straight.axes.toReversed() } : straight;
  return { op: where === 'global' ? 'StoreGlobal' : 'StoreShared', value, to, at };
}

function copyAsync(call: Call): Action {
  const to = call.scope.inMemory(given(call, 'shared'), 'shared', call);
  const from = call.scope.inMemory(given(call, 'tensor'), 'global', call);
  if (to.dtype !== from.dtype)
    refuse(call, `${to.name} and ${from.name} have different types`, { got: typeOf(to), expected: typeOf(from) });
  const { at, shape } = copied(call, to);
  const source = place(call, call.args.get('offset'), from, shape);
  const bits = shape.at(-1)! * to.dtype.bits;
  if (bits % 128 !== 0 || 128 % to.dtype.bits !== 0)
    refuse(call, 'cp.async copies 16 bytes at a time, and the last dimension is not a multiple of 16 bytes', {
      got: `${bits / 8} bytes`,
    });
  const dense = (of: typeof to, axis: number): boolean => {
    const [mode, ...more] = of.modes[axis]!;
    return more.length === 0 && mode?.stride.kind === 'number' && mode.stride.value === 1;
  };
  if (!dense(to, at.axes.at(-1)!) || !dense(from, source.axes.at(-1)!))
    refuse(call, 'cp.async copies elements that are contiguous along the last dimension of both tensors');
  return { op: 'CopyAsync', to, at, from, source, shape };
}

function waitGroup(call: Call): Action {
  const groups = call.scope.constant(given(call, 'n'), call);
  if (groups < 0 || groups > 7)
    refuse(call, 'it takes 0 to 7, the number of groups that may be in flight', { got: String(groups) });
  return { op: 'CopyAsyncWaitGroup', groups };
}

function computable(call: Call, tensor: RegisterTensor): void {
  if (!['f16', 'bf16', 'f32', 'i32'].includes(tensor.dtype.name))
    refuse(call, `there is no arithmetic on ${tensor.dtype.name}`, {
      expected: 'f16, bf16, f32 or i32',
      hint: 'Cast it first.',
    });
}

/** b may have size 1 in dimensions where a has more: it counts for all of them, where the same threads hold it. */
function arithmetic(call: Call, op: Arithmetic): Action {
  const [a, b] = [call.scope.registers(given(call, 'a'), call), call.scope.registers(given(call, 'b'), call)];
  computable(call, a);
  if (a.dtype !== b.dtype)
    refuse(call, 'both must have the same type', { got: `${typeOf(a)} and ${typeOf(b)}`, hint: 'Cast one of them.' });
  if (op === 'Mod' && a.dtype.kind === 'float') refuse(call, 'Mod is of integers', { got: a.dtype.name });
  if (!pairs(a.layout, b.layout))
    refuse(call, 'b has neither the layout of a nor that of a with dimensions collapsed', {
      got: `${typeOf(a)} and ${typeOf(b)}`,
      hint: 'layout=L.collapse(d) is the layout of elements that all of dimension d share.',
    });
  return { op, a, b, out: output(call, a.dtype, a.layout) };
}

function negate(call: Call): Action {
  const a = call.scope.registers(given(call, 'a'), call);
  computable(call, a);
  return { op: 'Neg', a, out: output(call, a.dtype, a.layout) };
}

function cast(call: Call): Action {
  const a = call.scope.registers(given(call, 'a'), call);
  const dtype = call.scope.type(given(call, 'dtype'), call);
  const layout = call.args.has('layout') ? call.scope.layout(given(call, 'layout'), call) : a.layout;
  const order = layout.shape.join() === a.layout.shape.join() ? pairs(layout, a.layout) : undefined;
  if (!order)
    refuse(call, 'a Cast keeps every element in its thread; only their order may change', {
      got: `${layout.shape.join(' x ')} elements in another layout`,
      expected: typeOf(a),
    });
  const same = order.every((at, i) => at === i);
  return { op: 'Cast', a, out: output(call, dtype, layout), ...(!same && { order }) };
}

function view(call: Call): Action {
  const a = call.scope.registers(given(call, 'a'), call);
  const dtype = call.args.has('dtype') ? call.scope.type(given(call, 'dtype'), call) : a.dtype;
  const layout = call.args.has('layout') ? call.scope.layout(given(call, 'layout'), call) : a.layout;
  const [threads, bits] = [threadCount(layout), bitsOf({ dtype }, localCount(layout))];
  if (threads !== threadCount(a.layout))
    refuse(call, 'a View must keep the threads', { got: `${threads} threads`, expected: `${threadCount(a.layout)}` });
  if (bits !== bitsOf(a, localCount(a.layout)))
    refuse(call, 'a View must keep the bits of each thread', {
      got: `${localCount(layout)} elements of ${dtype.name}, ${bits} bits`,
      expected: `${bitsOf(a, localCount(a.layout))} bits`,
    });
  return { op: 'View', a, out: output(call, dtype, layout) };
}

function dot(call: Call): Action {
  const [a, b, c] = ['a', 'b', 'c'].map((name) => call.scope.registers(given(call, name), call)) as [
    RegisterTensor,
    RegisterTensor,
    RegisterTensor,
  ];
  const plan = planDot({ a, b, c });
  if (typeof plan === 'string')
    refuse(call, plan, { hint: 'mma_a(T), mma_b(T) and mma_c(T) are the layouts of operands.' });
  return { op: 'Dot', a, b, c, plan, out: output(call, c.dtype, c.layout) };
}
