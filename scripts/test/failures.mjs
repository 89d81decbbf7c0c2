// A reporter of node:test: the tests that failed, each with its file and the beginning of its error, for the end of a long log.
import path from 'node:path';

const LINES = 12;

export default async function* failures(source) {
  for await (const { type, data } of source) {
    // A parent fails with its subtest, which says more.
    if (type !== 'test:fail' || data.details.error?.failureType === 'subtestsFailed') continue;
    const error = data.details.error?.cause ?? data.details.error;
    const text = String(error?.stack ?? error)
      .split('\n')
      .slice(0, LINES)
      .join('\n    ');
    yield `FAILED: ${data.file ? path.relative(process.cwd(), data.file) : ''}: ${data.name}\n    ${text}\n`;
  }
}
