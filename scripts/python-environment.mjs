import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';

/** Runs a command with its output shown; whether it succeeded. */
const run = (command, args, env = {}) => {
  const { status, error } = spawnSync(command, args, {
    stdio: ['ignore', 'inherit', 'inherit'],
    env: { ...process.env, ...env },
  });
  if (error) console.error(`${command}: ${error.message}`);
  return status === 0;
};

/**
 * Makes `place` a virtual environment with the exact versions of the file `list`, by LPQ_PYTHON or python3; PyTorch's own index serves where
 * the configured ones lack its build without CUDA. What has these versions stays. Whether it is there; nothing half-made is. Packages that
 * come as source only are built with `builders`, in the environment `env`.
 */
export function pythonEnvironment(place, list, { builders = [], env = {} } = {}) {
  const stamp = path.join(place, 'requirements.txt');
  const wanted = readFileSync(list, 'utf8');
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === wanted) {
    console.log(`${place} is up to date`);
    return true;
  }
  rmSync(place, { recursive: true, force: true });
  const pip = ['-m', 'pip', 'install', '--quiet', '--no-deps', '--disable-pip-version-check'];
  const install = [...pip, ...(builders.length > 0 ? ['--no-build-isolation'] : []), '-r', list];
  const own = path.join(place, 'bin', 'python');
  const done =
    run(process.env.LPQ_PYTHON ?? 'python3', ['-m', 'venv', place]) &&
    (builders.length === 0 || run(own, [...pip, ...builders])) &&
    (run(own, install, env) ||
      run(own, [...install, '--extra-index-url', 'https://download.pytorch.org/whl/cpu'], env));
  if (done) writeFileSync(stamp, wanted);
  else rmSync(place, { recursive: true, force: true });
  return done;
}
