import type { Layout } from '../../layout/layout.js';
import type { Expr } from '../language/ast.js';
import type { ElementType } from '../types.js';
import type { DotPlan } from './dot.js';

/** A tensor of registers: each thread holds its elements one after another, `dtype.bits` wide, as the layout numbers them. */
export interface RegisterTensor {
  readonly scope: 'register';
  readonly id: number;
  readonly name: string;
  readonly dtype: ElementType;
  readonly layout: Layout;
}

/** A mode of one dimension of a tensor in memory, most significant first: a digit of the index, and its stride in elements. */
export interface MemoryMode {
  /** Absent for the outermost mode of a dimension that is known only at launch. */
  readonly size?: number;
  readonly stride: Expr;
}

/** A tensor in global or shared memory. */
export interface MemoryTensor {
  readonly scope: 'global' | 'shared';
  readonly id: number;
  readonly name: string;
  readonly dtype: ElementType;
  readonly shape: readonly Expr[];
  readonly modes: readonly (readonly MemoryMode[])[];
  /** The row number permutes the 16-byte chunks of a row, so that eight rows of a column are in different banks. */
  readonly swizzle: boolean;
  /** The parameter at which a view of global memory begins; absent for allocations. */
  readonly pointer?: string;
}

export type Tensor = RegisterTensor | MemoryTensor;

/** The place of a tile in a tensor: the index at which it begins, and the dimensions that it spans. */
export interface Place {
  readonly offset: readonly Expr[];
  readonly axes: readonly number[];
}

export const ARITHMETIC = ['Add', 'Sub', 'Mul', 'Div', 'Mod'] as const;
export type Arithmetic = (typeof ARITHMETIC)[number];

export type Action =
  | { readonly op: 'BlockIndices'; readonly outputs: readonly string[] }
  | { readonly op: 'AllocateRegister'; readonly out: RegisterTensor; readonly init?: Expr }
  | { readonly op: 'AllocateShared' | 'AllocateGlobal' | 'ViewGlobal'; readonly out: MemoryTensor }
  | {
      readonly op: 'LoadGlobal' | 'LoadShared';
      readonly out: RegisterTensor;
      readonly from: MemoryTensor;
      readonly at: Place;
    }
  | {
      readonly op: 'StoreGlobal' | 'StoreShared';
      readonly value: RegisterTensor;
      readonly to: MemoryTensor;
      readonly at: Place;
    }
  | {
      readonly op: 'CopyAsync';
      readonly to: MemoryTensor;
      readonly at: Place;
      readonly from: MemoryTensor;
      readonly source: Place;
      /** Of what is copied. */
      readonly shape: readonly number[];
    }
  | { readonly op: 'CopyAsyncCommitGroup' | 'Synchronize' | 'Exit' }
  | { readonly op: 'CopyAsyncWaitGroup'; readonly groups: number }
  | { readonly op: Arithmetic; readonly a: RegisterTensor; readonly b: RegisterTensor; readonly out: RegisterTensor }
  | {
      readonly op: 'Cast';
      readonly a: RegisterTensor;
      readonly out: RegisterTensor;
      /** For each element of a thread, its element of `a`, if the order changes. */
      readonly order?: Int32Array;
    }
  | { readonly op: 'Neg' | 'View'; readonly a: RegisterTensor; readonly out: RegisterTensor }
  | {
      readonly op: 'Dot';
      readonly a: RegisterTensor;
      readonly b: RegisterTensor;
      readonly c: RegisterTensor;
      readonly out: RegisterTensor;
      readonly plan: DotPlan;
    }
  | { readonly op: 'Print'; readonly tensor: Tensor }
  | HopperAction;

/** The extension of Table 1 for sm_90: TMA boxes, barriers that count their bytes, products of warpgroups. */
export type HopperAction =
  | { readonly op: 'AllocateBarrier'; readonly out: MemoryTensor; readonly copies: number }
  | {
      readonly op: 'CopyTensor';
      readonly to: MemoryTensor;
      readonly at: Place;
      readonly from: MemoryTensor;
      readonly source: Place;
      readonly shape: readonly number[];
      readonly barrier: MemoryTensor;
      readonly index: Expr;
    }
  | { readonly op: 'BarrierWait'; readonly barrier: MemoryTensor; readonly index: Expr; readonly parity: Expr }
  | {
      readonly op: 'WarpgroupDot';
      readonly a: RegisterTensor;
      /** [n, 64], one row per column of the product. */
      readonly b: MemoryTensor;
      readonly at: Place;
      readonly c: RegisterTensor;
      readonly out: RegisterTensor;
    }
  | { readonly op: 'WarpgroupWait' };

/** A checked statement. `text` is how it was written, `line` where. */
export type Node = { readonly line: number; readonly text: string } & (
  | Action
  | { readonly op: 'assign'; readonly name: string; readonly value: Expr; readonly fresh: boolean }
  | { readonly op: 'if'; readonly condition: Expr; readonly body: readonly Node[]; readonly otherwise: readonly Node[] }
  | {
      readonly op: 'for';
      readonly variable: string;
      readonly start: Expr;
      readonly end: Expr;
      readonly step: number;
      readonly body: readonly Node[];
    }
  | { readonly op: 'while'; readonly condition: Expr; readonly body: readonly Node[] }
);

export type Instruction = Node & Action;

/** A checked program with known constants, which the interpreter runs and the compiler emits. */
export interface Program {
  readonly name: string;
  readonly grid: readonly Expr[];
  readonly parameters: readonly { readonly name: string; readonly dtype: ElementType; readonly pointer: boolean }[];
  readonly body: readonly Node[];
  /** Of a block. */
  readonly threads: number;
  /** Tensors of shared memory, each with the byte that it begins at, and the bytes of all. */
  readonly shared: {
    readonly bytes: number;
    readonly places: readonly { readonly tensor: MemoryTensor; readonly byte: number }[];
  };
  /** The constants in use, to show the program. */
  readonly constants: ReadonlyMap<string, string>;
}

/** Bits of a thread. */
export function bitsOf(tensor: { readonly dtype: ElementType }, locals: number): number {
  return tensor.dtype.bits * locals;
}
