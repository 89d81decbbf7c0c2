import { execFileSync, spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..', '..');
const sources = path.join(root, 'test', 'native', 'fake-cuda');

/** Every name that the host's code may ask for: as it stands there, and with the dtypes it may append. */
function kernelNames(): string[] {
  const dtypes = ['f32', 'f64', 'f16', 'bf16', 'i32'];
  const pairs = dtypes.flatMap((from) => dtypes.map((to) => `${from}_${to}`));
  const cuda = path.join(root, 'native', 'cuda');
  const files = readdirSync(cuda, { recursive: true, encoding: 'utf8' }).filter((file) => /\.(cpp|h|cu)$/.test(file));
  const stems = new Set(
    files.flatMap((file) => readFileSync(path.join(cuda, file), 'utf8').match(/\blpq_[a-z0-9_]*[a-z0-9]/g) ?? []),
  );
  // Sizes are appended too, one or two of them.
  const sizes = [0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 256, 512].map(String);
  const endings = [...dtypes, ...pairs, ...sizes, ...sizes.flatMap((a) => sizes.map((b) => `${a}_${b}`))];
  return [...stems].flatMap((stem) => [stem, ...endings.map((ending) => `${stem}_${ending}`)]);
}

/** A driver that is none, kernels that are none, and folders for libraries; all of it for the environment of a child. */
export interface FakeCuda {
  readonly dir: string;
  /** LD_LIBRARY_PATH, LPQ_CUDA_FATBIN and LPQ_CUDA_LIBS, an empty folder. */
  readonly env: Readonly<Record<string, string>>;
  /** A folder with a library NAME made of the C text: for LPQ_CUDA_LIBS. */
  library(name: string, text: string): string;
  /**
   * Compiles layout.cpp, cached.cpp, experts.cpp or latent.cpp with the simulator, for FAKE_CUDA_KERNELS. A sentence why not where there is no C++ compiler.
   */
  simulated(kernels: 'layout' | 'cached' | 'experts' | 'latent'): { readonly file: string } | string;
  remove(): void;
}

/**
 * Compiles the fake, with kernels of these names besides, and with `hopper` what products of codes ask a driver for; a sentence why not
 * where there is no C compiler.
 */
export function fakeCuda(kernels: readonly string[] = [], { hopper = false } = {}): FakeCuda | string {
  const dir = mkdtempSync(path.join(tmpdir(), 'lpq-fake-cuda-'));
  const remove = () => rmSync(dir, { recursive: true, force: true });
  const compile = (from: string, to: string) =>
    execFileSync(
      'cc',
      ['-shared', '-fPIC', '-O1', '-Wall', '-Werror', ...(hopper ? ['-DFAKE_CUDA_HOPPER'] : []), '-o', to, from],
      { stdio: 'pipe' },
    );
  try {
    compile(path.join(sources, 'fake_cuda.c'), path.join(dir, 'libcuda.so.1'));
  } catch (error) {
    remove();
    if ((error as NodeJS.ErrnoException).code === 'ENOENT')
      return 'SKIPPED: there is no C compiler (cc) for the fake driver';
    throw error;
  }
  const fatbin = path.join(dir, 'kernels.fatbin');
  writeFileSync(fatbin, emptyKernels([...new Set([...kernelNames(), ...kernels])]));
  const empty = path.join(dir, 'empty');
  mkdirSync(empty);
  let made = 0;
  return {
    dir,
    env: { LD_LIBRARY_PATH: dir, LPQ_CUDA_FATBIN: fatbin, LPQ_CUDA_LIBS: empty },
    library(name, text) {
      const folder = path.join(dir, `libraries-${made++}`);
      mkdirSync(folder);
      writeFileSync(path.join(folder, 'library.c'), text);
      compile(path.join(folder, 'library.c'), path.join(folder, name));
      return folder;
    },
    simulated(kernels) {
      const compiler = [process.env.CXX, 'c++', 'g++', 'clang++'].find(
        (name) => name !== undefined && spawnSync(name, ['--version']).status === 0,
      );
      if (compiler === undefined) return 'SKIPPED: there is no C++ compiler for the simulator';
      const file = path.join(dir, `${kernels}.so`);
      const native = path.join(root, 'native');
      const tests = path.join(root, 'test', 'native');
      const folders = [path.join(tests, 'simulator'), native, path.join(native, 'include')];
      const from = [`fake-cuda/${kernels}.cpp`, 'simulator/simulator.cpp'];
      const flags = [
        '-std=c++20',
        '-O1',
        '-Wno-unknown-pragmas',
        '-shared',
        '-fPIC',
        ...folders.flatMap((each) => ['-I', each]),
      ];
      execFileSync(compiler, [...flags, '-o', file, ...from.map((each) => path.join(tests, each))], { stdio: 'pipe' });
      return { file };
    },
    remove,
  };
}

/** A file of kernels as native/cuda/registry.h describes it, with names and no code; one image is for Hopper alone. */
function emptyKernels(names: readonly string[]): Buffer {
  const u32 = (value: number) => {
    const bytes = Buffer.alloc(4);
    bytes.writeUInt32LE(value);
    return bytes;
  };
  const text = (value: string) => Buffer.concat([u32(value.length), Buffer.from(value)]);
  const place = (offset: number) => {
    const bytes = Buffer.alloc(16);
    bytes.writeBigUInt64LE(BigInt(offset), 0);
    bytes.writeBigUInt64LE(64n, 8);
    return bytes;
  };
  const head = (offset: number) =>
    Buffer.concat([
      Buffer.from('LPQFAT2\0'),
      u32(2),
      ...[text('fake'), u32(names.length), ...names.map(text), place(offset)],
      ...[text('hopper'), u32(1), text('lpq_hopper_alone'), place(offset + 64)],
    ]);
  const offset = Math.ceil(head(0).length / 64) * 64;
  const images = Buffer.alloc(128);
  images.writeUInt32LE(90, 64);
  return Buffer.concat([head(offset), Buffer.alloc(offset - head(0).length), images]);
}

/** What a program said on stderr, but for AddressSanitizer's word about fibers, which the host's multiprocessors are. */
export function complaints(stderr: string): string {
  return stderr.replace(/^==\d+==WARNING: ASan doesn't fully support makecontext.*\n/gm, '');
}
