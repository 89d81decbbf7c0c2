// Makes build/consumers, a Python with the exact versions of test/consumers/requirements.txt, for the tests of that folder. Where it
// cannot (no Python, no index) it says so and ends with 1 if CI=true, else with 0: the tests then say that they are skipped.
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { pythonEnvironment } from './python-environment.mjs';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const list = path.join(root, 'test', 'consumers', 'requirements.txt');

if (!pythonEnvironment(path.join(root, 'build', 'consumers'), list)) {
  const demanded = process.env.CI === 'true';
  console.error(
    `\n${demanded ? 'FAILED' : 'SKIPPED'}: the packages of test/consumers/requirements.txt could not be installed ` +
      `(LPQ_PYTHON: ${process.env.LPQ_PYTHON ?? 'python3'}); ` +
      "the tests that load lpq's outputs in transformers, compressed-tensors and gguf-py need them",
  );
  process.exit(demanded ? 1 : 0);
}
