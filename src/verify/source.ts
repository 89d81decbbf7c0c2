import { type ArtifactManifest, artifactSchema, type PackedModule } from '../../formats/artifact/schema.js';
import { readManifest } from '../../formats/canonical/read.js';
import { Checkpoint, readConfig } from '../../formats/safetensors/checkpoint.js';
import { fromTyped, type NativeRuntime, type Tensor, typed } from '../../native/binding.js';
import { LpqError } from '../core/error.js';
import { quantType, typeParams } from '../core/quant-type.js';
import type { PackedWeight } from '../model/kernels/kernel.js';
import type { MixedWeight, WeightSource } from '../model/source.js';
import { type Decoded, decodeModule, disposeDecoded, weightLike } from './decode.js';
import { mixedOf } from './decode-comet.js';
import { expectation } from './expectation.js';
import { isGguf } from './gguf.js';
import { GgufSource } from './gguf-source.js';
import { packedWeight } from './layouts/index.js';
import { dequantize, settle } from './native.js';
import { quantizesActivations } from './targets/index.js';

/**
 * A packed directory as a weight source: NAME.weight of a packed module is read back by the verifier's decoder and
 * dequantized to f32 with its own arithmetic, so that an evaluation sees what the bytes mean and not what the packer
 * thought. `kernels`: modules that a packed kernel reads are handed out as they lie there instead; `codes`: also those whose
 * activations a kernel rounds to codes.
 * Throws LPQ_ARTIFACT, LPQ_CONFIG, LPQ_SAFETENSORS, LPQ_FILE.
 */
export function artifactSource(
  dir: string,
  rt: NativeRuntime,
  kernels = false,
  codes = false,
): ArtifactSource | GgufSource {
  const manifest = readManifest(dir, artifactSchema, 'LPQ_ARTIFACT');
  if (isGguf(manifest)) return new GgufSource(dir, manifest, rt);
  return new ArtifactSource(dir, readConfig(dir), manifest, Checkpoint.open(dir), rt, kernels, codes);
}

export class ArtifactSource implements WeightSource {
  constructor(
    readonly dir: string,
    readonly config: Record<string, unknown>,
    readonly manifest: ArtifactManifest,
    private readonly weights: Checkpoint,
    private readonly runtime: NativeRuntime,
    /** Whether whoever computes has kernels that multiply packed weights. */
    private readonly kernels = false,
    /** Whether those for activations that become codes are among them. */
    private readonly codes = false,
  ) {}

  get kv(): ArtifactManifest['kv'] {
    return this.manifest.kv;
  }

  *names(): Iterable<string> {
    yield* Object.keys(this.manifest.carried);
    for (const module of Object.keys(this.manifest.modules)) yield `${module}.weight`;
  }

  has(name: string): boolean {
    return this.module(name) !== undefined || Object.hasOwn(this.manifest.carried, name);
  }

  shape(name: string): readonly number[] {
    const found = this.module(name)?.[1];
    return found && !storedPlain(found) ? found.shape : this.weights.shape(name);
  }

  quantized(name: string): boolean {
    const found = this.module(name)?.[1];
    return found !== undefined && !storedPlain(found);
  }

  /** Packed and carried-as-codes modules: new f32 [N, K]. Everything else: a view. Throws LPQ_VERIFY for wrong padding. */
  async tensor(name: string): Promise<Tensor> {
    const found = this.module(name);
    if (!found) return this.float(name);
    const [module, entry] = found;
    if (entry.layout === 'dense') {
      this.requireShapes(module, entry);
      return this.float(name);
    }
    const decoded = await this.decoded(module, entry);
    try {
      const { parts } = decoded;
      const weight = weightLike(entry, 'f32');
      const inputs = {
        codes: parts.get('codes')!,
        scales: parts.get('scales')!,
        zeros: parts.get('zeros'),
        group: decoded.group,
        permutation: parts.get('permutation'),
        global: parts.get('global_scale'),
        mask: parts.get('mask'),
      };
      const [blockN, blockK] = entry.scales.block;
      const zero = entry.zeros.kind === 'const' ? entry.zeros.value : 0;
      dequantize(this.runtime, inputs, weight, typeParams(quantType(entry.type)), { blockN, blockK, zero });
      await settle(this.runtime);
      return weight;
    } finally {
      disposeDecoded(decoded);
    }
  }

  /** Modules that a kernel of lpq reads as they are stored, whole. */
  packed(name: string): PackedWeight | undefined {
    const found = this.kernels ? this.module(name) : undefined;
    if (!found) return undefined;
    const [module, entry] = found;
    const load = (suffix: string): Tensor => {
      this.requireShapes(module, entry);
      return this.weights.tensor(`${module}.${suffix}`);
    };
    return packedWeight(module, entry, load, this.codes && quantizesActivations(this.manifest.target));
  }

  /** W4Ax: what the codes of a module that reads codes are multiplied with. Throws LPQ_VERIFY for wrong padding. */
  mixed(name: string): Promise<MixedWeight> | undefined {
    const found = this.module(name);
    if (!found?.[1].activations) return undefined;
    const [module, entry] = found;
    return this.decoded(module, entry).then(async (decoded) => {
      try {
        return await mixedOf(this.runtime, entry, decoded);
      } finally {
        disposeDecoded(decoded);
      }
    });
  }

  close(): void {
    this.weights.close();
  }

  /** Dispose of it. Throws LPQ_ARTIFACT, LPQ_VERIFY. */
  private async decoded(module: string, entry: PackedModule): Promise<Decoded> {
    this.requireShapes(module, entry);
    const decoded = await decodeModule(this.runtime, this.weights, module, entry);
    const [problem] = decoded.problems;
    if (!problem) return decoded;
    disposeDecoded(decoded);
    throw new LpqError('LPQ_VERIFY', `${this.dir}: '${problem.tensor}': ${problem.what}`, {
      got: problem.wrong.got,
      expected: problem.wrong.expected,
      hint: `Run lpq verify ${this.dir} for every difference.`,
    });
  }

  private module(name: string): [string, PackedModule] | undefined {
    const module = name.endsWith('.weight') ? name.slice(0, -'.weight'.length) : undefined;
    if (module === undefined || !Object.hasOwn(this.manifest.modules, module)) return undefined;
    return [module, this.manifest.modules[module]!];
  }

  private requireShapes(name: string, module: PackedModule): void {
    const { tensors, problems } = expectation(name, module);
    if (problems[0]) throw new LpqError('LPQ_ARTIFACT', `${this.dir}: module '${name}': ${problems[0]}`);
    for (const { name: tensor, dtypes, shape } of tensors) {
      const spec = this.weights.spec(tensor);
      if (!dtypes.includes(spec.dtype) || `${spec.shape}` !== `${shape}`)
        throw new LpqError(
          'LPQ_ARTIFACT',
          `${this.dir}: tensor '${tensor}' has another dtype or shape than its layout`,
          {
            got: `${spec.dtype} [${spec.shape}]`,
            expected: `${dtypes.join(' or ')} [${shape}]`,
          },
        );
    }
  }

  private float(name: string): Tensor {
    const tensor = this.weights.tensor(name);
    if (['f32', 'f16', 'bf16'].includes(tensor.dtype)) return tensor;
    const { dtype } = tensor;
    if (dtype === 'f64') {
      const narrow = fromTyped('f32', tensor.shape, Float32Array.from(typed<Float64Array>(tensor)));
      tensor.dispose();
      return narrow;
    }
    tensor.dispose();
    throw new LpqError('LPQ_DTYPE', `tensor '${name}' of ${this.dir} is no floating-point weight`, {
      got: dtype,
      expected: 'F32, F16, BF16 or F64',
    });
  }
}

/** Whether the module's weight is a plain tensor, shaped as in the source. */
function storedPlain(module: PackedModule): boolean {
  return module.layout === 'dense';
}
