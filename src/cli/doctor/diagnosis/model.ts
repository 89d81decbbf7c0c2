import { type FileTensors, FloatView } from '../../../../formats/foreign/floats.js';
import type { ForeignContext, ForeignModule } from '../../../../formats/foreign/module.js';
import { LpqError } from '../../../core/error.js';
import { architectureOf } from '../../../model/architectures/index.js';
import { expertSource } from '../../../model/fused-experts.js';
import { buildGraph } from '../../../model/graph.js';
import { asNamed } from '../../../model/named.js';
import { planModel } from '../../../model/plan.js';
import type { WeightShapes } from '../../../model/source.js';
import type { Findings } from './finding.js';

/** Missing tensors are named up to this many. */
const NAMED = 8;

/** Every tensor that the architecture needs is there, in the shape that config.json says. */
export function diagnoseModel(
  dir: string,
  config: Readonly<Record<string, unknown>>,
  tensors: FileTensors,
  foreign:
    | {
        readonly ctx: ForeignContext;
        readonly method: string;
        readonly published: boolean;
        readonly modules: readonly ForeignModule[];
      }
    | undefined,
  findings: Findings,
): void {
  try {
    const view = viewOf(dir, config, tensors, foreign);
    const graph = buildGraph(planModel(asNamed(architectureOf(config, dir), view), config, dir));
    const shapes = shapesOf(view, foreign);
    const missing: string[] = [];
    let needed = 0;
    for (const demanded of [graph.outer, ...graph.blocks.map((block) => block.tensors)])
      for (const [name, shape] of demanded) {
        needed++;
        const got = shapes(name);
        if (!got) missing.push(name);
        else if (`${got}` !== `${shape}`)
          findings.add('model', 'problem', `'${name}' does not have the shape that config.json says`, {
            got: `[${got}]`,
            expected: `[${shape}]`,
          });
      }
    if (missing.length > 0)
      findings.add(
        'model',
        'problem',
        `${missing.length} of ${needed} tensors that ${graph.architecture} needs are missing`,
        {
          got:
            missing.slice(0, NAMED).join(', ') + (missing.length > NAMED ? `, and ${missing.length - NAMED} more` : ''),
          remedy: 'Download the checkpoint again; an unreadable module counts as missing.',
        },
      );
    findings.looked('model', `${needed} tensors of ${graph.architecture}`);
  } catch (error) {
    if (!(error instanceof LpqError)) throw error;
    if (error.code === 'LPQ_ARCH_UNKNOWN')
      findings.add('model', 'warning', `the architecture is unknown, so this check cannot find missing tensors`, {
        got: error.got,
      });
    else findings.error('model', error);
  }
}

type Foreign = Parameters<typeof diagnoseModel>[3];

function viewOf(
  dir: string,
  config: Readonly<Record<string, unknown>>,
  tensors: FileTensors,
  foreign: Foreign,
): WeightShapes {
  const own = foreign?.published ? new FloatView(tensors, foreign.method, foreign.ctx) : tensors;
  // Experts that share a tensor are looked for as the linears that they are; nothing is read of them.
  return expertSource({
    dir,
    config: { ...config },
    names: () => own.names(),
    has: (name) => own.has(name),
    shape: (name) => own.shape(name),
    tensor: (name) => Promise.resolve(own.tensor(name)),
  });
}

function shapesOf(view: WeightShapes, foreign: Foreign): (name: string) => readonly number[] | undefined {
  const read = foreign?.published ? [] : (foreign?.modules ?? []);
  const modules = new Map(read.map(({ name, declaration }) => [`${name}.weight`, declaration.shape]));
  return (name) => modules.get(name) ?? (view.has(name) ? view.shape(name) : undefined);
}
