import { localCount } from '../../layout/layout.js';
import type { MemoryTensor, Node, Program, RegisterTensor } from '../check/program.js';
import { HELPERS, type Helper } from './helpers.js';
import type { BoxMap } from './hopper.js';
import { Ranges, visit } from './ranges.js';
import { cppName, Writer } from './text.js';

/** How registers of a tensor are declared: floats and ints one an element, everything else bits in words. */
export type Storage = 'float' | 'int' | 'uint32_t';

export function storage(tensor: RegisterTensor): Storage {
  return tensor.dtype.name === 'f32' ? 'float' : tensor.dtype.name === 'i32' ? 'int' : 'uint32_t';
}

/** Words of 32 bits that a thread holds of a tensor. */
export const wordsOf = (tensor: RegisterTensor): number =>
  Math.ceil((localCount(tensor.layout) * tensor.dtype.bits) / 32);

/** Facts that are collected while a kernel is written. */
export class Unit {
  readonly writer = new Writer();
  readonly ranges: Ranges;
  readonly helpers = new Set<Helper>();
  /** Text of functions that one type needs, by their names. */
  readonly functions = new Map<string, string>();
  /** Headers of native/cuda/ptx. */
  readonly headers = new Set<string>();
  /** The selected instructions, and how often each is written. */
  readonly selected = new Map<string, number>();
  /** Bytes of each tensor of AllocateGlobal in the workspace. */
  readonly workspace = new Map<number, number>();
  workspaceBytes = 0;
  /** Whether the kernel needs sm_90a. */
  hopper = false;
  readonly maps: BoxMap[] = [];
  /** Sums of warpgroup products without a wait so far. */
  readonly sums = new Set<string>();
  private readonly names = new Map<number, string>();
  private readonly uses = new Map<string, number>();
  private readonly declared = new Set<number>();
  private readonly assigned = new Map<number, number>();

  constructor(readonly program: Program) {
    this.ranges = new Ranges(program);
    for (const { name } of program.parameters) this.uses.set(name, 1);
    visit(program.body, (node) => {
      const out = written(node);
      if (out) this.assigned.set(out.id, (this.assigned.get(out.id) ?? 0) + 1);
    });
  }

  name(tensor: RegisterTensor | MemoryTensor): string {
    let name = this.names.get(tensor.id);
    if (name === undefined) {
      const count = this.uses.get(tensor.name) ?? 0;
      this.uses.set(tensor.name, count + 1);
      name = count === 0 ? cppName(tensor.name) : `${tensor.name}_${count}`;
      this.names.set(tensor.id, name);
    }
    return name;
  }

  use(...helpers: readonly Helper[]): void {
    for (const helper of helpers) this.helpers.add(helper);
  }
  header(...names: readonly string[]): void {
    for (const name of names) this.headers.add(name);
  }
  select(instruction: string): void {
    this.selected.set(instruction, (this.selected.get(instruction) ?? 0) + 1);
  }

  /** The parameter of boxes of a tensor. */
  map(tensor: MemoryTensor, box: BoxMap['box']): string {
    this.use('tensor_map');
    const known = this.maps.find((each) => each.tensor === tensor && each.box.join() === box.join());
    if (known) return known.name;
    const name = `${this.name(tensor)}_map${this.maps.some((each) => each.tensor === tensor) ? `_${this.maps.length}` : ''}`;
    this.maps.push({ name, tensor, box });
    return name;
  }

  /** Whether only one instruction writes the tensor. */
  once(tensor: RegisterTensor): boolean {
    return this.assigned.get(tensor.id) === 1;
  }
  /** Declares the tensor's registers at its first use, with a comment that describes it. */
  declare(tensor: RegisterTensor, comment: string): string {
    const name = this.name(tensor);
    if (!this.declared.has(tensor.id)) {
      this.declared.add(tensor.id);
      this.writer.line(`// ${comment}`);
      this.writer.line(`${storage(tensor)} ${name}[${wordsOf(tensor)}];`);
    }
    return name;
  }
  /** Declares the tensor as another name of registers. */
  alias(tensor: RegisterTensor, of: RegisterTensor, comment: string): void {
    this.declared.add(tensor.id);
    this.writer.line(`// ${comment}`);
    this.writer.line(`const ${storage(of)} (&${this.name(tensor)})[${wordsOf(of)}] = ${this.name(of)};`);
  }

  preamble(): string {
    const needed = Object.entries(HELPERS).filter(([name]) => this.helpers.has(name as Helper));
    return [...needed.map(([, text]) => text), ...this.functions.values()].join('');
  }
}

/** The tensor of registers that a statement writes. */
export function written(node: Node): RegisterTensor | undefined {
  return 'out' in node && node.out.scope === 'register' ? node.out : undefined;
}
