import { closeSync, constants, fstatSync, openSync, readFileSync } from 'node:fs';

/**
 * The contents of a regular file of a checkpoint or an artifact. Throws the system's error, or one that says what lies there instead: a
 * named pipe would be waited for without an end.
 */
export function readRegular(file: string): Buffer {
  const fd = openSync(file, constants.O_RDONLY | constants.O_NONBLOCK);
  try {
    const facts = fstatSync(fd);
    if (!facts.isFile()) throw new Error(`${file} is ${facts.isDirectory() ? 'a directory' : 'no regular file'}`);
    return readFileSync(fd);
  } finally {
    closeSync(fd);
  }
}

/** The same as UTF-8. */
export const readRegularText = (file: string): string => readRegular(file).toString('utf8');
