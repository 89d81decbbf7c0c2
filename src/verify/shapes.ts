import type { ArtifactManifest, PackedModule } from '../../formats/artifact/schema.js';
import type { Checkpoint } from '../../formats/safetensors/checkpoint.js';
import type { WeightShapes } from '../model/source.js';

/** The weights of a packed directory by the model's names, as its manifest has them. */
export class ArtifactShapes implements WeightShapes {
  constructor(
    readonly dir: string,
    readonly config: Record<string, unknown>,
    readonly manifest: ArtifactManifest,
    protected readonly weights: Checkpoint,
  ) {}

  *names(): Iterable<string> {
    yield* Object.keys(this.manifest.carried);
    for (const module of Object.keys(this.manifest.modules)) yield `${module}.weight`;
  }

  has(name: string): boolean {
    return this.module(name) !== undefined || Object.hasOwn(this.manifest.carried, name);
  }

  shape(name: string): readonly number[] {
    const [, entry] = this.module(name) ?? [];
    return entry && !isPlain(entry) ? entry.shape : this.weights.shape(name);
  }

  quantized(name: string): boolean {
    const [, entry] = this.module(name) ?? [];
    return entry !== undefined && !isPlain(entry);
  }

  /** The module that a weight is of. */
  protected module(name: string): [string, PackedModule] | undefined {
    const module = name.endsWith('.weight') ? name.slice(0, -'.weight'.length) : undefined;
    if (module === undefined || !Object.hasOwn(this.manifest.modules, module)) return undefined;
    return [module, this.manifest.modules[module]!];
  }
}

/** Whether the module's weight is a plain tensor, shaped as in the source. */
function isPlain({ layout }: PackedModule): boolean {
  return layout === 'dense';
}
