import { existsSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { type Cell, GROUP, type Place } from './cells.js';
import type { Inputs } from './inputs.js';

/** Programs and environments that are no part of lpq (scripts/peers.mjs makes them). */
export interface Places {
  /** The tree, with dist. */
  readonly root: string;
  /** Where lpq computes; Python's tools read LPQ_PEER_DEVICE. */
  readonly device: Place;
  /** A Python of each. */
  readonly gptqmodel: string;
  readonly llmcompressor: string;
  readonly autoround: string;
  /** With what llama.cpp's converter needs. */
  readonly consumers: string;
  /** llama.cpp's source, and its program. */
  readonly llamaSource: string;
  readonly llamaQuantize: string;
}

/** Where they are: environment variables, else below build/. */
export function places(root: string, device: Place): Places {
  const { env } = process;
  const build = (...parts: string[]) => path.join(root, 'build', ...parts);
  const python = (dir: string) => path.join(dir, 'bin', 'python');
  const sources = build('engines', 'llama', 'source');
  const [version = ''] = existsSync(sources) ? readdirSync(sources).filter((name) => !name.endsWith('.gz')) : [];
  return {
    root,
    device,
    gptqmodel: env.LPQ_GPTQMODEL_PYTHON ?? python(build('engines', 'gptqmodel')),
    llmcompressor: env.LPQ_LLMCOMPRESSOR_PYTHON ?? python(build('peers', 'llmcompressor')),
    autoround: env.LPQ_AUTOROUND_PYTHON ?? python(build('peers', 'autoround')),
    consumers: env.LPQ_CONSUMERS_PYTHON ?? python(build('consumers')),
    llamaSource: env.LPQ_LLAMA_SOURCE ?? path.join(sources, version, 'llama.cpp'),
    llamaQuantize: env.LPQ_LLAMA_QUANTIZE ?? build('peers', 'llama', 'bin', 'llama-quantize'),
  };
}

/** How a tool is run, and how its result is read. */
interface Tool {
  /** What is named beside it. */
  readonly version: (at: Places) => readonly string[];
  /** The timed command; `out` is the artifact. */
  readonly command: (cell: Cell, inputs: Inputs, out: string, at: Places) => readonly string[];
  /** Done before, and not timed. */
  readonly before?: (inputs: Inputs, at: Places) => { readonly made: string; readonly command: readonly string[] };
  /** For `lpq eval`: what of the artifact. */
  readonly artifact: (out: string) => string;
  /** A directory that transformers opens, the command that makes it of the artifact, and the Python that opens it. */
  readonly transformers: (
    out: string,
    at: Places,
  ) => { readonly python: string; readonly args: readonly string[]; readonly made?: readonly string[] };
}

const driver = (at: Places, name: string) => path.join(at.root, 'bench', 'peers', name);
export const lpq = (at: Places, ...args: string[]) => [process.execPath, path.join(at.root, 'bin', 'lpq.js'), ...args];
const pip = (python: string, name: string) => [
  python,
  '-c',
  `from importlib.metadata import version as v; print("${name}", v("${name}"), "torch", v("torch"), "transformers", v("transformers"))`,
];

/** One that is a driver of bench/peers in an environment of its own. */
function python(name: 'gptqmodel' | 'llmcompressor' | 'autoround', distribution: string): Tool {
  return {
    version: (at) => pip(at[name], distribution),
    command: ({ bits, args }, { model, samples }, out, at) => [
      at[name],
      driver(at, `drive_${name}.py`),
      model,
      samples,
      out,
      String(bits),
      String(GROUP),
      ...args,
    ],
    artifact: (out) => out,
    transformers: (out, at) => ({ python: at[name], args: name === 'gptqmodel' ? [out, name] : [out] }),
  };
}

const gguf = (model: string, out: string) => path.join(out, `${model}.gguf`);

export const TOOLS: Readonly<Record<string, Tool>> = {
  lpq: {
    version: (at) => ['sh', '-c', 'echo "lpq $("$@")"', 'sh', ...lpq(at, '--version')],
    command: ({ bits, args, model }, { model: dir }, out, at) =>
      lpq(
        at,
        ...['quantize', dir, '-o', out, '--bits', String(bits), '--group-size', String(GROUP)],
        ...['--calib', model.calib, '--samples', String(model.samples), '--seq-len', String(model.length)],
        ...['--bos', 'never', '--device', at.device, '--no-eval', '--no-report', '--quiet', ...args],
      ),
    artifact: (out) => out,
    // As a format that transformers reads in fp32.
    transformers: (out, at) => ({
      python: at.llmcompressor,
      args: [`${out}-packed`],
      made: lpq(at, 'pack', out, '--target', 'compressed-tensors', '-o', `${out}-packed`, '--quiet'),
    }),
  },
  gptqmodel: python('gptqmodel', 'gptqmodel'),
  llmcompressor: python('llmcompressor', 'llmcompressor'),
  autoround: python('autoround', 'auto-round'),
  'llama.cpp': {
    version: (at) => ['sh', '-c', `basename "$(dirname '${at.llamaSource}')"`],
    before: ({ model, samples }, at) => {
      const made = samples.replace(/-samples\.json$/, '-bf16.gguf');
      return { made, command: [at.consumers, driver(at, 'drive_gguf.py'), at.llamaSource, model, made] };
    },
    // Embeddings and the head stay as they are, as those of the others do.
    command: ({ args, name }, { samples }, out, at) => [
      'sh',
      '-c',
      'mkdir -p "$1" && exec "$2" --token-embedding-type bf16 --output-tensor-type bf16 "$3" "$4" "$5" 2',
      'sh',
      ...[out, at.llamaQuantize, samples.replace(/-samples\.json$/, '-bf16.gguf'), gguf(name, out), args[0] as string],
    ],
    artifact: (out) => gguf(path.basename(out), out),
    transformers: (out, at) => ({ python: at.llmcompressor, args: [out, `${path.basename(out)}.gguf`] }),
  },
};
