import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { Kernel } from '../../../src/tilus/compile/compile.js';
import { evaluate } from '../../../src/tilus/interpret/evaluate.js';
import type { LaunchArguments } from '../../../src/tilus/interpret/run.js';
import { root } from '../cli/lpq.js';

/** A launch of a generated kernel on the host's simulator of a GPU (test/native/simulator). */
export interface Launch {
  readonly kernel: Kernel;
  readonly blocks: number;
  /** In the order of the parameters. */
  readonly args: LaunchArguments;
}

export const hostCompiler = (): string | undefined =>
  [process.env.CXX, 'c++', 'g++', 'clang++'].find(
    (name) => name !== undefined && spawnSync(name, ['--version']).status === 0,
  );

/** Compiles all kernels as one program and runs them; bytes of pointers that are outputs are written. Throws what a kernel does wrong. */
export function simulate(compiler: string, launches: readonly Launch[]): void {
  const folder = mkdtempSync(path.join(tmpdir(), 'lpq-tilus-'));
  try {
    const runs = launches.map((launch, i) => runText(folder, launch, i));
    const text = `${launches.map(({ kernel }) => kernel.text).join('\n')}
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include "asynchronous.h"
#include "memory.h"
static std::vector<unsigned char> read(const std::string& name) {
  std::ifstream file(name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
static void write(const std::string& name, Memory<unsigned char>& memory, size_t bytes) {
  std::ofstream(name, std::ios::binary).write(reinterpret_cast<const char*>(memory.data()), static_cast<long>(bytes));
}
int main() {
  int failures = 0;
${runs.join('\n')}
  return failures;
}
`;
    writeFileSync(path.join(folder, 'kernels.cpp'), text);
    const file = path.join(folder, 'kernels');
    const includes = ['test/native/simulator', 'native', 'native/include'].flatMap((each) => [
      '-I',
      path.join(root, each),
    ]);
    const simulator = path.join(root, 'test/native/simulator/simulator.cpp');
    const options = ['-std=c++20', '-O0', '-Wno-unknown-pragmas', ...includes];
    const build = spawnSync(compiler, [...options, '-o', file, path.join(folder, 'kernels.cpp'), simulator], {
      encoding: 'utf8',
    });
    if (build.status !== 0) throw new Error(build.stderr.slice(0, 3000));
    const ran = spawnSync(file, { encoding: 'utf8' });
    if (ran.status !== 0) throw new Error(`${ran.stdout}${ran.stderr}`);
    for (const [i, { args }] of launches.entries())
      for (const [name, arg] of Object.entries(args))
        if (typeof arg === 'object' && 'output' in arg) arg.output.set(readFileSync(path.join(folder, `${i}-${name}`)));
  } finally {
    rmSync(folder, { recursive: true });
  }
}

function runText(folder: string, { kernel, blocks, args }: Launch, i: number): string {
  const lines: string[] = [];
  const given = Object.entries(args).map(([name, arg]) => {
    if (typeof arg === 'number') return String(arg);
    const file = path.join(folder, `${i}-${name}`);
    writeFileSync(file, arg instanceof Uint8Array ? arg : arg.output);
    lines.push(`    Memory<unsigned char> ${name}_(read("${file}"));`);
    return `${name}_.data()`;
  });
  const scalars = new Map(Object.entries(args).filter((pair): pair is [string, number] => typeof pair[1] === 'number'));
  for (const [at, { tensor, box }] of kernel.maps.entries()) {
    const dims = tensor.shape.map((size) => evaluate(size, scalars)).toReversed();
    const bytes = tensor.dtype.bits / 8;
    const [x, y = 1, z = 1] = dims as [number, number?, number?];
    lines.push(
      `    lpq::cuda::${kernel.name}_kernel::TensorMap map${at}{};`,
      `    const simt::BoxMap box${at}{${tensor.pointer}_.data(), {${x}, ${y}, ${z}}, {${x * bytes}, ${x * y * bytes}}, {${box}}, ${bytes}, 1};`,
      `    std::memcpy(&map${at}, &box${at}, sizeof(box${at}));`,
    );
    given.push(`map${at}`);
  }
  if (kernel.workspaceBytes > 0) {
    lines.push(`    Memory<unsigned char> workspace(std::vector<unsigned char>(${kernel.workspaceBytes}, 0xff));`);
    given.push('workspace.data()');
  }
  const written = Object.entries(args).flatMap(([name, arg]) =>
    typeof arg === 'object' && 'output' in arg
      ? [`    write("${path.join(folder, `${i}-${name}`)}", ${name}_, ${arg.output.length});`]
      : [],
  );
  return `  {
${lines.join('\n')}
    simt::begin(${i + 1});
    const std::string error = simt::try_run(${blocks}, ${kernel.threads}, 1, simt::kShared, ${i + 1}, [&] {
      lpq::cuda::${kernel.name}_kernel::${kernel.name}(${given.join(', ')});
    });
    if (!error.empty()) std::printf("${kernel.name}: %s\\n", error.c_str()), ++failures;
${written.join('\n')}
  }`;
}
