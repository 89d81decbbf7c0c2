import { createHash } from 'node:crypto';
import path from 'node:path';
import { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import { otherSource } from '../../formats/canonical/same-source.js';
import { type CanonicalModule, canonicalSchema } from '../../formats/canonical/schema.js';
import { type ModuleDeclaration, PARTS } from '../../formats/canonical/tensors.js';
import type { CanonicalWriter, ModuleData } from '../../formats/canonical/write.js';
import { readRegular } from '../../formats/directory/read-file.js';
import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { LpqError } from '../core/error.js';
import { quantType } from '../core/quant-type.js';
import type { Block, BlockWeights } from '../model/program.js';
import type { ModuleLine } from './events.js';
import { bitsPerWeight } from './grid.js';
import type { Redo } from './redo-rule.js';
import { replayedWeights } from './replay.js';
import { printScheme, type QuantScheme } from './scheme.js';
import type { SourceView } from './source-view.js';

/**
 * The modules of an earlier checkpoint that a run takes over as they are. What is redone sees their quantized weights in all blocks and
 * stages before it, as it did in the earlier run; those behind it keep the codes that they got for other inputs.
 */
export class KeptModules {
  readonly schemes: ReadonlyMap<string, QuantScheme>;

  private constructor(
    private readonly checkpoint: CanonicalCheckpoint,
    private readonly names: readonly string[],
    /** Of the earlier manifest: it names every byte that is kept. */
    readonly sha256: string,
  ) {
    this.schemes = new Map(names.map((name) => [name, schemeOfModule(checkpoint.module(name))]));
  }

  /** `plainHead`: lm_head, where it is not to be quantized. Throws LPQ_REDO where the checkpoint is not one to go on from, LPQ_CANONICAL and what else opening it throws. */
  static open({ match, from }: Redo, source: SourceView, plainHead: string | undefined): KeptModules {
    const checkpoint = openEarlier(from, source);
    try {
      const { modules } = canonicalSchema.parse(checkpoint.manifest);
      if (plainHead !== undefined && match.test(plainHead) && Object.hasOwn(modules, plainHead))
        throw new LpqError('LPQ_REDO', `--redo matches ${plainHead}, which ${from} quantizes and this run does not`, {
          hint: 'Add --lm-head, or let --redo match less.',
        });
      const names = checkpoint.moduleNames().filter((name) => !match.test(name));
      const sha256 = createHash('sha256')
        .update(readRegular(path.join(from, 'lpq.json')))
        .digest('hex');
      return new KeptModules(checkpoint, names, sha256);
    } catch (error) {
      checkpoint.close();
      throw error;
    }
  }

  /** As the earlier manifest declares them. */
  declarations(): [string, ModuleDeclaration][] {
    return this.names.map((name) => {
      const { sha256, quality, ...declaration } = this.checkpoint.module(name);
      return [name, declaration];
    });
  }

  get kv(): CanonicalCheckpoint['manifest']['kv'] {
    return this.checkpoint.manifest.kv;
  }

  get kvMost(): CanonicalCheckpoint['manifest']['kvMost'] {
    return this.checkpoint.manifest.kvMost;
  }

  /** How the earlier run did on them, in the order of its manifest. */
  lines(): ModuleLine[] {
    return this.names.map((name) => {
      const { quality, shape } = this.checkpoint.module(name);
      const scheme = this.schemes.get(name) as QuantScheme;
      const unknown = {
        method: 'unknown',
        bitsPerWeight: bitsPerWeight(scheme, ...shape),
        relativeError: null,
        damp: null,
      };
      return { name, scheme: printScheme(scheme), ...(quality ?? unknown), tokens: null, seconds: 0 };
    });
  }

  /** Their dequantized weights of a block, by full weight name, on a device. The caller disposes of them. */
  weights(rt: NativeRuntime, block: Block): BlockWeights {
    return replayedWeights(rt, block, this.schemes, this.checkpoint);
  }

  /** Copies one to the output. Throws LPQ_CANONICAL where its bytes are not those that the earlier run wrote. */
  async copy(name: string, writer: CanonicalWriter): Promise<void> {
    const { sha256, quality } = this.checkpoint.module(name);
    const data: ModuleData = {};
    const tensors: Tensor[] = [];
    try {
      for (const part of PARTS) {
        const tensor = this.checkpoint.part(name, part);
        if (!tensor) continue;
        tensors.push(tensor);
        data[part] = tensor;
      }
      await writer.writeModule(name, data, quality);
    } finally {
      for (const tensor of tensors) tensor.dispose();
    }
    const written = await writer.hashes(name);
    if (PARTS.some((part) => written[part] !== sha256[part])) await this.checkpoint.requireHashes(name);
  }

  close(): void {
    this.checkpoint.close();
  }
}

/** A checkpoint to go on from. Throws LPQ_REDO where it is of another model, or has modules that stand for nothing alone. */
export function openEarlier(from: string, source: SourceView): CanonicalCheckpoint {
  const checkpoint = CanonicalCheckpoint.open(from);
  try {
    const { provenance, modules } = canonicalSchema.parse(checkpoint.manifest);
    const other = otherSource(provenance.source, source.dir, source.weights.fingerprint());
    if (other)
      throw new LpqError('LPQ_REDO', `${from} was made from another model than ${source.dir}`, {
        ...other,
        hint: 'Give the model that it was quantized from.',
      });
    const odd = Object.entries(modules).find(([, module]) => !isPlain(module));
    if (odd)
      throw new LpqError('LPQ_REDO', `${odd[0]} of ${from} depends on other modules and cannot be kept without them`, {
        got: `--method ${provenance.method}`,
        expected: 'a checkpoint that lpq quantize made with --method rtn or gptq',
        hint: 'Quantize the whole model again.',
      });
    if (provenance.options.tuneNorms === true)
      throw new LpqError('LPQ_REDO', `the norms of ${from} were trained with its codes`, {
        got: '--tune-norms',
        expected: "a checkpoint with the model's own norms",
        hint: 'Quantize the whole model again.',
      });
    return checkpoint;
  } catch (error) {
    checkpoint.close();
    throw error;
  }
}

/** Of the modules that lpq quantize makes, one whose weight is its own: no gather, no activations solved for, no blocks of rows. */
function isPlain({ groupIndex, permutation, activations, inputType, zeros, scales }: CanonicalModule): boolean {
  return (
    !groupIndex &&
    !permutation &&
    activations === undefined &&
    inputType === undefined &&
    zeros.kind !== 'float' &&
    scales.block[0] === 1
  );
}

export function schemeOfModule({ type, granularity, zeros, scales, sparsity }: CanonicalModule): QuantScheme {
  return {
    type: quantType(type),
    granularity,
    symmetric: zeros.kind !== 'int',
    scaleDtype: scales.dtype,
    globalScale: scales.global,
    ...(scales.twoLevel && { twoLevel: true as const }),
    ...(sparsity === '2:4' && { sparsity }),
  };
}
