import type { PackedModule } from '../../formats/artifact/schema.js';
import type { TensorReader } from '../../formats/safetensors/read.js';
import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { quantType } from '../core/quant-type.js';
import type { PackedKernel, PackedWeight } from '../model/kernels/kernel.js';
import type { Decoded, DecodedPart } from './decode.js';
import type { ModuleContext } from './module.js';
import type { EmulatorResult, Wrong } from './native.js';

/** A tensor of a module by the last part of its name; any dtype of the list will do. */
export interface LayoutTensor {
  readonly suffix: string;
  readonly dtypes: readonly string[];
  readonly shape: readonly number[];
}

/** A part of a module on its way through an emulated kernel. */
export interface EmulatedPart {
  readonly name: string;
  readonly module: PackedModule;
  /** The module's name, or the rank's part of it. */
  readonly prefix: string;
  readonly parts: ReadonlyMap<DecodedPart, Tensor>;
  readonly strips: readonly number[];
}

/** The kernel of a layout, lane by lane on the CPU (native/cpu/verify). */
export interface Emulator {
  /** Output features of a strip, the least that is emulated. */
  strip(module: PackedModule): number;
  /** Undefined where no fp16 kernel can be emulated. */
  run(ctx: ModuleContext, part: EmulatedPart): Promise<EmulatorResult | undefined>;
  /** A clause about a register that is not what it must be; default: of a dequantized fp16 number. */
  wrong?(registers: Wrong): string;
}

/** What lpq runs the packed bytes with, and how far its outputs may be from fp64 (kernels.ts). */
export interface KernelRules {
  readonly binds: PackedKernel;
  /** Integers become f16 above 16 tokens, as in the papers' kernels. */
  readonly rounds?: boolean;
  /** Of integers the product of scale and zero point is stored, in f16. */
  readonly fused?: boolean;
  /** On devices weights become the type of the activations above 16 tokens. */
  readonly roundsOnDevices?: boolean;
  /** Activations become codes, one scale per token: of the weights' dtype (true), or of this one. */
  readonly codes?: true | 'i8';
  /** Instead of the comparison of products with fp64; returns the largest error / bound. */
  compare?(
    ctx: ModuleContext,
    rt: NativeRuntime,
    name: string,
    module: PackedModule,
    decoded: Decoded,
    packed: PackedWeight,
  ): Promise<number>;
}

/** What compressed-tensors' configuration says of a form. */
export interface CompressedForm {
  readonly format: string;
  /** One code a byte: a scale may be of whole blocks, or of the tensor. */
  readonly whole?: boolean;
  /** Stated of the scales. */
  readonly scaleDtype?: string;
}

/**
 * A layout to the verifier: what an artifact must hold, and how it is read back. Written from the layout's definition
 * (docs/internals/layouts) and nothing of the packer's. One file each in layouts/, listed in layouts/index.ts.
 */
export interface VerifiedLayout {
  /** As artifacts name it. */
  readonly name: string;
  /** Clauses: why the layout cannot hold the module. */
  problems(module: PackedModule): Iterable<string>;
  /** The tensors of a module, or of each rank's part of it, and nothing else. */
  tensors(module: PackedModule): readonly LayoutTensor[];
  /**
   * Reads a module's tensors, which have the shapes of `tensors`, back into canonical form. Values outside [N, K], bits behind the
   * last field, constant zero points and trivial g_idx are compared on the way.
   */
  decode(
    rt: NativeRuntime,
    weights: TensorReader,
    name: string,
    module: PackedModule,
    decoded: Decoded,
  ): void | Promise<void>;
  /** Tiles: N and K may be padded, and ranks may have parts of their own, which `decodePart` reads. */
  readonly tiles?: {
    /** The last part of the name of the tensor that holds the codes. */
    readonly codes: string;
    decodePart(
      rt: NativeRuntime,
      weights: TensorReader,
      name: string,
      prefix: string,
      module: PackedModule,
      decoded: Decoded,
    ): Promise<Map<DecodedPart, Tensor>>;
    readonly emulator: Emulator;
  };
  /** A module may say what its linear reads instead of its input. */
  readonly activations?: boolean;
  /** Whether it stores a scale of the input, from the module's PackedModule.inputMost. */
  readonly input?: boolean;
  /** Codes may stand whole in each word (PackedModule.packing). */
  readonly wholeWords?: boolean;
  readonly compressed?: CompressedForm;
  readonly kernel?: KernelRules;
}

/** What stored codes are: canonical code exclusive-or `flip`; the zero point as stored; undefined for one a group. */
export function storedForm(module: PackedModule): { bits: number; flip: number; zero: number | undefined } {
  const type = quantType(module.type);
  const bits = type.bits;
  const flip = type.kind === 'int' && type.signed ? 2 ** (bits - 1) : 0;
  const { zeros } = module;
  const zero = zeros.kind === 'const' ? zeros.value : zeros.kind === 'none' ? 0 : undefined;
  return { bits, flip, zero: zero === undefined ? undefined : zero + flip };
}

/** Whether the one zero point of all groups is the middle of the stored range. */
export function isSymmetric(module: PackedModule): boolean {
  const { bits, zero } = storedForm(module);
  return zero === 2 ** (bits - 1);
}

/** Whether a zero point as it is stored is outside of what codes can be. */
export function isOutside(zero: number | undefined, bits: number): boolean {
  return zero !== undefined && (!Number.isInteger(zero) || zero < 0 || zero >= 2 ** bits);
}

/** Of layouts of other programs that have every column in place. */
export function* inPlaceProblems(layout: string, { canonical }: PackedModule): Generator<string> {
  for (const part of ['g_idx', 'permutation', 'mask'] as const)
    if (canonical[part] !== undefined) yield `layout ${layout} has no ${part}`;
}

/** Of compressed-tensors' forms that say which types of codes they have. */
export function* codeProblems(layout: string, module: PackedModule, types: readonly string[]): Generator<string> {
  yield* inPlaceProblems(layout, module);
  const { name } = quantType(module.type);
  if (!types.includes(name)) yield `layout ${layout} has no ${name} codes`;
}
