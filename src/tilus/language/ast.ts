/**
 * The syntax of a program: constants, a grid, parameters and a body (Tilus, Fig. 7). Values are plain data; `parse` makes them from text,
 * `build` makes them from calls, and `print` turns them into text.
 */
export interface Source {
  readonly constants: readonly { readonly name: string; readonly value: Expr; readonly line: number }[];
  readonly name: string;
  readonly grid: readonly Expr[];
  readonly parameters: readonly Parameter[];
  readonly body: readonly Statement[];
}

/** `type` is an expression, so that a constant may choose it; a pointer has `*`. */
export interface Parameter {
  readonly name: string;
  readonly type: Expr;
  readonly pointer: boolean;
}

export type Expr =
  | { readonly kind: 'number'; readonly value: number; readonly real?: boolean }
  | { readonly kind: 'name'; readonly name: string }
  | { readonly kind: 'call'; readonly name: string; readonly args: readonly Expr[] }
  /** left.name(args), the product of layouts; without args `name` is a constant. */
  | { readonly kind: 'dot'; readonly left: Expr; readonly name: string; readonly args?: readonly Expr[] }
  | { readonly kind: 'binary'; readonly op: BinaryOp; readonly a: Expr; readonly b: Expr }
  | { readonly kind: 'unary'; readonly op: '-' | 'not'; readonly a: Expr }
  | { readonly kind: 'list'; readonly items: readonly Expr[] }
  /** `start:` in an offset: the tile lies along this dimension and begins there. */
  | { readonly kind: 'slice'; readonly start: Expr };

export const BINARY_LEVELS = [
  ['or'],
  ['and'],
  ['==', '!=', '<', '<=', '>', '>='],
  ['+', '-'],
  ['*', '/', '%'],
] as const;
export type BinaryOp = (typeof BINARY_LEVELS)[number][number];

export interface Argument {
  /** Of `dtype=f16`. */
  readonly name?: string;
  readonly value: Expr;
}

export type Statement = { readonly line: number } & (
  | {
      readonly kind: 'call';
      readonly outputs: readonly string[];
      readonly name: string;
      readonly args: readonly Argument[];
    }
  | { readonly kind: 'assign'; readonly name: string; readonly value: Expr }
  | {
      readonly kind: 'if';
      readonly condition: Expr;
      readonly body: readonly Statement[];
      readonly otherwise: readonly Statement[];
    }
  | {
      readonly kind: 'for';
      readonly variable: string;
      readonly range: readonly Expr[];
      readonly body: readonly Statement[];
    }
  | { readonly kind: 'while'; readonly condition: Expr; readonly body: readonly Statement[] }
);
