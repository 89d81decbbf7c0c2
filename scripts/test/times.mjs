// A reporter of node:test: seconds that the top-level tests of each file took, the slowest first.
import path from 'node:path';

export default async function* times(source) {
  const files = new Map();
  for await (const { type, data } of source) {
    if ((type !== 'test:pass' && type !== 'test:fail') || data.nesting !== 0 || !data.file) continue;
    files.set(data.file, (files.get(data.file) ?? 0) + data.details.duration_ms);
  }
  for (const [file, ms] of [...files].sort(([, a], [, b]) => b - a))
    yield `${(ms / 1000).toFixed(1).padStart(8)}  ${path.relative(process.cwd(), file)}\n`;
}
