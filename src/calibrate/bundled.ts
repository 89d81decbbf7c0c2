import { existsSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { LpqError } from '../core/error.js';

/** share/ of the installed package. Throws LPQ_FILE when the installation lacks it. */
export function shareDirectory(): string {
  let dir = path.dirname(fileURLToPath(import.meta.url));
  // From src/calibrate or dist/src/calibrate up to the package's root.
  for (let up = 0; up < 4; up++) {
    dir = path.dirname(dir);
    if (existsSync(path.join(dir, 'package.json'))) return path.join(dir, 'share');
  }
  throw new LpqError('LPQ_FILE', 'the package directory of lpq was not found', { hint: 'Install lpq again.' });
}

/** The text that calibrates a model when none is given: public-domain books. Throws LPQ_FILE. */
export function bundledCalibration(): string {
  const file = path.join(shareDirectory(), 'calibration', 'books.txt');
  if (existsSync(file)) return file;
  throw new LpqError('LPQ_FILE', `the bundled calibration text ${file} is missing`, {
    hint: 'Install lpq again, or give a text with --calib.',
  });
}
