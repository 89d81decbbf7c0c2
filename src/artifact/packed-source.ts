import type { ArtifactManifest, PackedModule } from '../../formats/artifact/schema.js';
import { floatTensor } from '../../formats/canonical/float-tensor.js';
import { partedCache } from '../../formats/kv/latent.js';
import type { Checkpoint } from '../../formats/safetensors/checkpoint.js';
import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { LpqError } from '../core/error.js';
import type { PackedWeight } from '../model/kernels/kernel.js';
import type { MixedWeight, WeightSource } from '../model/source.js';
import { type Decoded, decodeModule, disposeDecoded } from '../verify/decode.js';
import { mixedOf } from '../verify/decode-comet.js';
import { dequantized } from '../verify/dequantize.js';
import { expectation } from '../verify/expectation.js';
import { packedWeight } from '../verify/layouts/index.js';
import { ArtifactShapes } from '../verify/shapes.js';
import { quantizesActivations } from '../verify/targets/index.js';
import { codedWeight } from './coded.js';

/**
 * A packed directory of safetensors as a weight source: NAME.weight of a packed module is read back by the verifier's decoder and
 * dequantized to f32 with its own arithmetic, so that an evaluation sees what the bytes mean and not what the packer thought.
 */
export class PackedSource extends ArtifactShapes implements WeightSource {
  constructor(
    place: readonly [dir: string, config: Record<string, unknown>, manifest: ArtifactManifest, weights: Checkpoint],
    private readonly runtime: NativeRuntime,
    /** Whether whoever computes has kernels that multiply packed weights. */
    private readonly kernels: boolean,
    /** Whether those for activations that become codes are among them. */
    private readonly codes: boolean,
  ) {
    super(...place);
  }

  get kv(): WeightSource['kv'] {
    return partedCache(this.manifest.kv).kv;
  }

  get latents(): WeightSource['latents'] {
    return partedCache(this.manifest.kv).latents;
  }

  /** Packed and carried-as-codes modules: new f32 [N, K]. Everything else: a view. Throws LPQ_VERIFY for wrong padding. */
  async tensor(name: string): Promise<Tensor> {
    const found = this.module(name);
    if (!found) return floatTensor(this.weights, name);
    const [module, entry] = found;
    if (!this.quantized(name)) {
      this.requireShapes(module, entry);
      return floatTensor(this.weights, name);
    }
    return this.decoded(module, entry, (decoded) => dequantized(this.runtime, entry, decoded, 'f32'));
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

  /** The codes of a module, for the CPU's product over them; undefined where it does not take them. Throws LPQ_VERIFY for wrong padding. */
  coded(name: string): Promise<PackedWeight | undefined> | undefined {
    const found = this.quantized(name) ? this.module(name) : undefined;
    if (!found) return undefined;
    return this.decoded(...found, async ({ parts, group }) => {
      const weight = await codedWeight(this.runtime, found[1], parts, group);
      await this.runtime.sync();
      return weight;
    });
  }

  /** W4Ax: what the codes of a module that reads codes are multiplied with. Throws LPQ_VERIFY for wrong padding. */
  mixed(name: string): Promise<MixedWeight> | undefined {
    const found = this.module(name);
    if (!found?.[1].activations) return undefined;
    const [module, entry] = found;
    return this.decoded(module, entry, (decoded) => mixedOf(this.runtime, entry, decoded));
  }

  close(): void {
    this.weights.close();
  }

  /** What `use` makes of a module in canonical form. Throws LPQ_ARTIFACT, LPQ_VERIFY. */
  private async decoded<T>(module: string, entry: PackedModule, use: (decoded: Decoded) => Promise<T>): Promise<T> {
    this.requireShapes(module, entry);
    const decoded = await decodeModule(this.runtime, this.weights, module, entry);
    try {
      const [problem] = decoded.problems;
      if (!problem) return await use(decoded);
      throw new LpqError('LPQ_VERIFY', `${this.dir}: '${problem.tensor}': ${problem.what}`, {
        got: problem.wrong.got,
        expected: problem.wrong.expected,
        hint: `Run lpq verify ${this.dir} for every difference.`,
      });
    } finally {
      disposeDecoded(decoded);
    }
  }

  private requireShapes(name: string, module: PackedModule): void {
    const { tensors, problems } = expectation(name, module);
    if (problems[0]) throw new LpqError('LPQ_ARTIFACT', `${this.dir}: module '${name}': ${problems[0]}`);
    for (const { name: tensor, dtypes, shape } of tensors) {
      const spec = this.weights.spec(tensor);
      if (dtypes.includes(spec.dtype) && `${spec.shape}` === `${shape}`) continue;
      const message = `${this.dir}: tensor '${tensor}' does not have the dtype or shape of its layout`;
      const expected = `${dtypes.join(' or ')} [${shape}]`;
      throw new LpqError('LPQ_ARTIFACT', message, { got: `${spec.dtype} [${spec.shape}]`, expected });
    }
  }
}
