// Makes build/consumers, a Python with the exact versions of test/consumers/requirements.txt, for the tests of that folder. Where it
// cannot (no Python, no index) it says so and ends with 1 if CI=true, else with 0: the tests then say that they are skipped.
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const place = path.join(root, 'build', 'consumers');
const list = path.join(root, 'test', 'consumers', 'requirements.txt');
const stamp = path.join(place, 'requirements.txt');
const python = process.env.LPQ_PYTHON ?? 'python3';

/** Runs a command with its output shown; whether it succeeded. */
const run = (command, args) => {
  const { status, error } = spawnSync(command, args, { stdio: ['ignore', 'inherit', 'inherit'] });
  if (error) console.error(`${command}: ${error.message}`);
  return status === 0;
};

const wanted = readFileSync(list, 'utf8');
if (existsSync(stamp) && readFileSync(stamp, 'utf8') === wanted) console.log(`${place} is up to date`);
else {
  rmSync(place, { recursive: true, force: true });
  const install = ['-m', 'pip', 'install', '--quiet', '--no-deps', '--disable-pip-version-check', '-r', list];
  const own = path.join(place, 'bin', 'python');
  const done =
    run(python, ['-m', 'venv', place]) &&
    (run(own, install) || run(own, [...install, '--extra-index-url', 'https://download.pytorch.org/whl/cpu']));
  if (done) writeFileSync(stamp, wanted);
  else {
    rmSync(place, { recursive: true, force: true });
    const demanded = process.env.CI === 'true';
    console.error(
      `\n${demanded ? 'FAILED' : 'SKIPPED'}: the packages of test/consumers/requirements.txt could not be installed (LPQ_PYTHON: ${python}); ` +
        "the tests that load lpq's outputs in transformers, compressed-tensors and gguf-py need them",
    );
    process.exit(demanded ? 1 : 0);
  }
}
