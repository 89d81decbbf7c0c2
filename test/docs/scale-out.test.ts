import assert from 'node:assert/strict';
import { cpSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { execa } from 'execa';
import { lpq, model, root, scratch } from '../src/cli/lpq.js';

const text = readFileSync(path.join(root, 'docs', 'scale-out.md'), 'utf8');
/** What stands in the page as I/16 is run as I/2. */
const TASKS = 2;

function found(pattern: RegExp): string {
  const [, words] = pattern.exec(text) ?? [];
  assert.ok(words, String(pattern));
  return words;
}

test('the scripts for Slurm and Kubernetes, as they stand in docs/scale-out.md, make what one process makes', async (t) => {
  const dir = scratch(t);
  const source = path.join(dir, 'model');
  cpSync(model, source, { recursive: true });
  writeFileSync(path.join(dir, 'lpq'), `#!/bin/sh\nexec '${process.execPath}' '${root}/bin/lpq.js' "$@"\n`, {
    mode: 0o755,
  });
  const shell = async (script: string, env: Record<string, string>) =>
    execa('bash', ['-c', script], { cwd: dir, env: { ...env, PATH: `${dir}:${process.env.PATH}` } });
  const slurm = found(/(#!\/bin\/bash\n#SBATCH[\s\S]*?)```/).replace('/16"', `/${TASKS}"`);
  const pod = found(/- (lpq quantize \/data.*)/)
    .replace('/16"', `/${TASKS}"`)
    .replaceAll('/data/', `${dir}/pods-`);
  cpSync(source, path.join(dir, 'pods-model'), { recursive: true });
  await Promise.all(
    Array.from({ length: TASKS }, async (_, i) => {
      const place = { MODEL: source, OUT: path.join(dir, 'tasks-out') };
      await shell(slurm, { ...place, SLURM_ARRAY_TASK_ID: String(i) });
      await shell(pod, { JOB_COMPLETION_INDEX: String(i) });
    }),
  );
  await shell(found(/--wrap '(.*?)'/), { OUT: path.join(dir, 'tasks-out') });
  await shell(found(/`(lpq merge \/data\/out)`/).replace('/data/', `${dir}/pods-`), {});
  for (const [name, from] of [
    ['tasks-out', 'model'],
    ['pods-out', 'pods-model'],
  ] as const) {
    const [one, many] = [path.join(dir, `${name}-one`), path.join(dir, name)];
    const args = [
      'quantize',
      path.join(dir, from),
      '-o',
      one,
      '--bits',
      '4',
      '--method',
      'rtn',
      '--no-report',
      '--quiet',
    ];
    const whole = await lpq(args);
    assert.equal(whole.code, 0, whole.stderr);
    assert.deepEqual(readdirSync(many).sort(), readdirSync(one).sort());
    for (const file of readdirSync(one))
      assert.ok(readFileSync(path.join(one, file)).equals(readFileSync(path.join(many, file))), `${name}/${file}`);
  }
});
