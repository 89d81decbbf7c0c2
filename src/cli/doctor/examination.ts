import { existsSync, readFileSync } from 'node:fs';
import os from 'node:os';
import { execa } from 'execa';
import { addon } from '../../../native/binding.js';
import { asLpqError } from '../terminal/failure.js';
import { bytes } from '../terminal/units.js';

/** One thing that was looked for. */
export interface Finding {
  readonly name: string;
  /** broken: lpq cannot run without it; missing: it can, at a cost. */
  readonly status: 'ok' | 'missing' | 'broken';
  /** What was found, or that nothing was. */
  readonly found: string;
  /** What the lack costs. */
  readonly cost?: string;
  readonly remedy?: string;
  /** Numbers behind the sentence. */
  readonly data?: Readonly<Record<string, unknown>>;
}

/** Looks at everything that lpq uses or could use. Never throws for what is missing. */
export async function examine(): Promise<Finding[]> {
  const [compiler, cmake, ninja, openblas, gpus, nvcc] = await Promise.all([
    findCompiler(),
    findTool('cmake', /version (\S+)/),
    findTool('ninja', /(\S+)/),
    findLibrary('libopenblas.so.0', 'libopenblas.so'),
    findGpus(),
    findTool(existsSync('/usr/local/cuda/bin/nvcc') ? '/usr/local/cuda/bin/nvcc' : 'nvcc', /release (\S+?),/),
  ]);
  const driver = await findLibrary('libcuda.so.1');
  return [
    node(),
    native(),
    processor(),
    memory(),
    tool(
      'C++ compiler',
      compiler,
      'this machine cannot build the native part',
      'Install g++ >= 11 or clang++ >= 14, or set CXX.',
    ),
    tool('cmake', cmake, 'this machine cannot build the native part', 'Install cmake >= 3.22.'),
    tool('ninja', ninja, 'only time: make builds the native part too', 'Install ninja-build.'),
    {
      name: 'OpenBLAS',
      status: openblas ? 'ok' : 'missing',
      found: openblas ?? 'not found',
      ...(!openblas && { cost: 'nothing: lpq has its own linear algebra' }),
    },
    tool(
      'CUDA driver',
      driver,
      'lpq cannot use a GPU; everything runs on the CPU',
      "Install NVIDIA's driver (libcuda.so.1), if there is a GPU.",
    ),
    gpus,
    tool(
      'nvcc',
      nvcc,
      'this machine cannot compile the CUDA kernels; it builds only the CPU part',
      'Install the CUDA toolkit.',
    ),
  ];
}

function node(): Finding {
  const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
  const ok = major > 20 || (major === 20 && minor >= 19);
  return {
    name: 'node',
    status: ok ? 'ok' : 'broken',
    found: process.versions.node,
    ...(!ok && { remedy: 'Install Node.js 20.19 or newer.' }),
  };
}

function native(): Finding {
  try {
    const loaded = addon();
    const operations = loaded.operations().length;
    return {
      name: 'native addon',
      status: 'ok',
      found: `${operations} operations, ${loaded.isa()} kernels`,
      data: { operations, isa: loaded.isa() },
    };
  } catch (error) {
    const { message, hint } = asLpqError(error);
    return { name: 'native addon', status: 'broken', found: message, ...(hint !== undefined && { remedy: hint }) };
  }
}

function processor(): Finding {
  const threads = os.availableParallelism();
  const wish = Number(process.env.LPQ_THREADS ?? '0');
  const model = os.cpus()[0]?.model.trim() || os.arch();
  const chosen = wish > 0 ? `, LPQ_THREADS asks for ${wish}` : '';
  return {
    name: 'processor',
    status: 'ok',
    found: `${model}, ${threads} threads${chosen}`,
    data: { model, threads, arch: os.arch(), ...(wish > 0 && { LPQ_THREADS: wish }) },
  };
}

function memory(): Finding {
  const limit = process.constrainedMemory();
  const total = limit > 0 ? Math.min(limit, os.totalmem()) : os.totalmem();
  const available = process.availableMemory();
  return {
    name: 'memory',
    status: 'ok',
    found: `${bytes(total)}, ${bytes(available)} available`,
    data: { total, available },
  };
}

function tool(name: string, found: string | undefined, cost: string, remedy: string): Finding {
  return found === undefined
    ? { name, status: 'missing', found: 'not found', cost, remedy }
    : { name, status: 'ok', found };
}

async function findCompiler(): Promise<string | undefined> {
  const wish = process.env.CXX;
  for (const name of wish ? [wish] : ['c++', 'g++', 'clang++']) {
    const found = await findTool(name, /(\d+\.\d+(\.\d+)?)\s*$/m);
    if (found) return found;
  }
  return undefined;
}

/** 'cmake 3.25.1', or undefined when the tool does not run. */
async function findTool(command: string, version: RegExp): Promise<string | undefined> {
  const { exitCode, stdout } = await execa(command, ['--version'], { reject: false, timeout: 10_000, stdin: 'ignore' });
  return exitCode === 0 ? `${command} ${version.exec(stdout)?.[1] ?? ''}`.trim() : undefined;
}

/** The path of the first library that the loader would find. */
async function findLibrary(...names: string[]): Promise<string | undefined> {
  const { stdout } = await execa('ldconfig', ['-p'], {
    reject: false,
    timeout: 10_000,
    stdin: 'ignore',
    env: { PATH: `${process.env.PATH ?? ''}:/usr/sbin:/sbin` },
  });
  for (const name of names) {
    const cached = (stdout ?? '').split('\n').find((line) => line.trim().startsWith(`${name} `));
    const place = cached?.split('=>')[1]?.trim();
    if (place) return place;
    for (const dir of libraryPath()) if (existsSync(`${dir}/${name}`)) return `${dir}/${name}`;
  }
  return undefined;
}

function libraryPath(): string[] {
  const own = (process.env.LD_LIBRARY_PATH ?? '').split(':').filter((dir) => dir !== '');
  return [...own, '/usr/lib/x86_64-linux-gnu', '/usr/lib/aarch64-linux-gnu', '/usr/lib64', '/usr/lib/wsl/lib'];
}

export interface Gpu {
  readonly name: string;
  readonly memoryMiB: number;
  readonly driver: string;
  readonly computeCapability: string;
}

async function findGpus(): Promise<Finding> {
  const fields = 'name,memory.total,driver_version,compute_cap';
  const { exitCode, stdout } = await execa('nvidia-smi', [`--query-gpu=${fields}`, '--format=csv,noheader,nounits'], {
    reject: false,
    timeout: 20_000,
    stdin: 'ignore',
  });
  const gpus =
    exitCode === 0
      ? (stdout ?? '')
          .split('\n')
          .filter((line) => line.includes(','))
          .map(parseGpu)
      : [];
  if (gpus.length === 0) {
    const present = existsSync('/proc/driver/nvidia/version') ? firstLine('/proc/driver/nvidia/version') : undefined;
    return {
      name: 'GPUs',
      status: 'missing',
      found: present ? `nvidia-smi lists none, although a driver is loaded (${present})` : 'none',
      cost: 'everything runs on the CPU',
    };
  }
  return presentGpus(gpus);
}

export function presentGpus(gpus: readonly Gpu[]): Finding {
  const target = ({ computeCapability }: Gpu) => `sm_${computeCapability.replace('.', '')}`;
  const text = gpus.map((gpu) => `${gpu.name} (${bytes(gpu.memoryMiB * 2 ** 20)}, ${target(gpu)})`);
  const without = [...new Set(gpus.filter(({ computeCapability }) => Number(computeCapability) >= 9).map(target))];
  return {
    name: 'GPUs',
    status: 'ok',
    found: text.join(', '),
    ...(without.length > 0 && {
      cost: `${without.join(', ')}: no INT4 tensor cores, so W4Ax multiplies 4-bit blocks as INT8: fewer bytes, but not fewer operations`,
    }),
    data: { gpus },
  };
}

function parseGpu(line: string): Gpu {
  const [name = '', memory = '0', driver = '', computeCapability = ''] = line.split(',').map((cell) => cell.trim());
  return { name, memoryMiB: Number(memory), driver, computeCapability };
}

function firstLine(file: string): string {
  return readFileSync(file, 'utf8').split('\n')[0] ?? '';
}
