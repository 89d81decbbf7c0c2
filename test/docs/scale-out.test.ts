import assert from 'node:assert/strict';
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import test, { type TestContext } from 'node:test';
import { execa } from 'execa';
import { parse } from 'yaml';
import { CALIB, lpq, model, root, scratch } from '../src/cli/lpq.js';

const text = readFileSync(path.join(root, 'docs', 'scale-out.md'), 'utf8');
/** What stands in the page as I/16 is run as I/2. */
const TASKS = 2;
const fewer = (script: string) =>
  script
    .replaceAll('/16"', `/${TASKS}"`)
    .replaceAll(/0-15\b|=16\b/g, (all) => all.replace(/\d+$/, String(all.includes('-') ? TASKS - 1 : TASKS)));

function found(pattern: RegExp): string {
  const [, words] = pattern.exec(text) ?? [];
  assert.ok(words, String(pattern));
  return words;
}

/**
 * A folder with the model, and a PATH with lpq and stand-ins of Slurm: sbatch reads the #SBATCH lines of its script as the real one does,
 * runs the tasks of an array at once, each again (requeued) where it was killed, and --wrap after what it depends on; srun runs --ntasks
 * copies of a command. Both refuse options that they do not know.
 */
function cluster(t: TestContext): {
  dir: string;
  shell: (script: string, env?: Record<string, string>) => Promise<string>;
} {
  const dir = scratch(t);
  const bin = path.join(dir, 'bin');
  mkdirSync(bin);
  cpSync(model, path.join(dir, 'model'), { recursive: true });
  const program = (name: string, words: string) => writeFileSync(path.join(bin, name), words, { mode: 0o755 });
  program('lpq', `#!/bin/sh\nexec '${process.execPath}' '${root}/bin/lpq.js' "$@"\n`);
  program('sbatch', SBATCH);
  program('srun', SRUN);
  const shell = async (script: string, env: Record<string, string> = {}) =>
    (await execa('bash', ['-euc', script], { cwd: dir, env: { ...env, PATH: `${bin}:${process.env.PATH}` } })).stdout;
  return { dir, shell };
}

const SBATCH = `#!/bin/bash
set -eu
wrap= script= parsable= after=
option() {
  case "$1" in
    --array=0-*) last=\${1#--array=0-}; [[ $last =~ ^[0-9]+$ ]] ;;
    --cpus-per-task=*) [[ \${1#*=} =~ ^[0-9]+$ ]] ;;
    --dependency=afterok:*) after=\${1#*afterok:} ;;
    --parsable) parsable=1 ;;
    *) echo "sbatch: unrecognized option $1" >&2; exit 1 ;;
  esac
}
while [ $# -gt 0 ]; do
  case "$1" in --wrap) wrap=$2; shift 2 ;; -*) option "$1"; shift ;; *) script=$1; shift ;; esac
done
if [ -n "$wrap" ]; then [ -e "job-$after.done" ]; exec sh -c "$wrap" >&2; fi
[ "$(head -n 1 "$script")" = '#!/bin/bash' ]
while read -r word rest; do [ "$word" = '#SBATCH' ] && option "$rest"; done < <(sed -n '2,/^[^#]/p' "$script")
pids=()
for ((i = 0; i <= last; i++)); do
  (SLURM_ARRAY_TASK_ID=$i bash "$script" || SLURM_ARRAY_TASK_ID=$i bash "$script") >&2 & pids+=($!)
done
for pid in "\${pids[@]}"; do wait "$pid"; done
touch job-4711.done
if [ -n "$parsable" ]; then echo 4711; else echo 'Submitted batch job 4711'; fi
`;

const SRUN = `#!/bin/bash
set -eu
n=1
while [ $# -gt 0 ]; do
  case "$1" in
    --ntasks=*) n=\${1#*=} ;;
    --cpus-per-task=*) [[ \${1#*=} =~ ^[0-9]+$ ]] ;;
    -*) echo "srun: unrecognized option $1" >&2; exit 1 ;;
    *) break ;;
  esac
  shift
done
pids=()
for ((i = 0; i < n; i++)); do SLURM_PROCID=$i "$@" & pids+=($!); done
for pid in "\${pids[@]}"; do wait "$pid"; done
`;

/** The directory `made` is, byte for byte, what one process makes. */
async function same(made: string, args: readonly string[], output = '-o'): Promise<void> {
  const one = `${made}-one`;
  const more = output === '-o' ? ['--no-report'] : [];
  const whole = await lpq(['quantize', ...args, output, one, '--quiet', ...more]);
  assert.equal(whole.code, 0, whole.stderr);
  assert.deepEqual(readdirSync(made).sort(), readdirSync(one).sort());
  for (const file of readdirSync(one))
    assert.ok(readFileSync(path.join(one, file)).equals(readFileSync(path.join(made, file))), `${made}/${file}`);
}

test("Slurm's array as it stands in docs/scale-out.md, with a task that is lost once, makes what one process makes", async (t) => {
  const { dir, shell } = cluster(t);
  const script = fewer(found(/(#!\/bin\/bash\n#SBATCH[\s\S]*?)```/));
  // The first try of task 1 is killed as soon as it has written something.
  const lost = `if [ "$SLURM_ARRAY_TASK_ID" = 1 ] && mkdir lost 2>/dev/null; then
  lpq() { command lpq "$@" & until [ -e "$OUT.shard-1-of-2.partial" ]; do sleep 0.01; done; kill -9 $!; wait $!; }
fi\n`;
  const at = script.indexOf('lpq quantize');
  writeFileSync(path.join(dir, 'quantize.sh'), `${script.slice(0, at)}${lost}${script.slice(at)}`);
  const env = { MODEL: path.join(dir, 'model'), OUT: path.join(dir, 'out') };
  await shell(found(/```\n(id=\$\(sbatch [\s\S]*?)```/), env);
  assert.ok(existsSync(path.join(dir, 'lost')));
  await same(env.OUT, [env.MODEL, '--bits', '4', '--method', 'rtn']);
});

test("srun's parts of statistics, and those of an array, as they stand there, are the same", async (t) => {
  const { dir, shell } = cluster(t);
  const short = ` ${['--samples', '4', '--seq-len', '32', ...CALIB].join(' ')}`;
  const brief = (script: string) => fewer(script).replaceAll('--resume', `--resume${short}`);
  const stats = path.join(dir, 'stats');
  const env = { MODEL: path.join(dir, 'model'), STATS: stats };
  await shell(brief(found(/```\n(srun [\s\S]*?)```/)), env);
  const array = brief(found(/`(lpq quantize "\$MODEL" --save-stats .*?)`/s).replaceAll('\n', ' '));
  const other = path.join(dir, 'other');
  for (let i = 0; i < TASKS; i++) await shell(array, { ...env, STATS: other, SLURM_ARRAY_TASK_ID: String(i) });
  await shell('lpq merge "$STATS"', { STATS: other });
  for (const file of readdirSync(stats))
    assert.ok(readFileSync(path.join(stats, file)).equals(readFileSync(path.join(other, file))), file);
});

interface Job {
  readonly apiVersion: string;
  readonly kind: string;
  readonly metadata: { readonly name: string };
  readonly spec: {
    readonly completionMode: string;
    readonly completions: number;
    readonly parallelism: number;
    readonly backoffLimitPerIndex: number;
    readonly template: {
      readonly spec: {
        readonly restartPolicy: string;
        readonly containers: readonly {
          readonly name: string;
          readonly image: string;
          readonly command: readonly string[];
          readonly args: readonly string[];
          readonly resources: { readonly requests: Readonly<Record<string, string>> };
          readonly volumeMounts: readonly { readonly name: string; readonly mountPath: string }[];
        }[];
        readonly volumes: readonly {
          readonly name: string;
          readonly persistentVolumeClaim: { readonly claimName: string };
        }[];
      };
    };
  };
}

test('the Job of Kubernetes as it stands there is one, and its pods make what one process makes', async (t) => {
  const { dir, shell } = cluster(t);
  const job = parse(found(/```yaml\n([\s\S]*?)```/), { strict: true }) as Job;
  const { spec } = job;
  const pod = spec.template.spec;
  const [container] = pod.containers;
  assert.ok(container);
  // What the API server checks of such a Job: fields by name, an index for each pod, a policy that indexed retries go with, mounted volumes.
  assert.deepEqual(Object.keys(job), ['apiVersion', 'kind', 'metadata', 'spec']);
  assert.deepEqual([job.apiVersion, job.kind], ['batch/v1', 'Job']);
  assert.match(job.metadata.name, /^[a-z0-9]([-a-z0-9]*[a-z0-9])?$/);
  assert.deepEqual(Object.keys(spec).sort(), [
    'backoffLimitPerIndex',
    'completionMode',
    'completions',
    'parallelism',
    'template',
  ]);
  assert.deepEqual([spec.completionMode, pod.restartPolicy], ['Indexed', 'Never']);
  assert.ok(spec.parallelism <= spec.completions && spec.backoffLimitPerIndex > 0);
  assert.deepEqual(Object.keys(container).sort(), ['args', 'command', 'image', 'name', 'resources', 'volumeMounts']);
  assert.deepEqual(
    container.volumeMounts.map(({ name }) => name),
    pod.volumes.map(({ name }) => name),
  );
  for (const amount of Object.values(container.resources.requests)) assert.match(amount, /^\d+(Gi|Mi|m)?$/);
  // The program of a pod, with the environment that an indexed one has; /data is this folder.
  const here = (words: string) => fewer(words).replaceAll('/data/', `${dir}/`);
  const line = [...container.command, ...container.args.map(here)];
  const words = line.map((word) => `'${word.replaceAll("'", `'\\''`)}'`).join(' ');
  assert.match(container.args[0] ?? '', new RegExp(`/${spec.completions}"`));
  await Promise.all(Array.from({ length: TASKS }, (_, i) => shell(words, { JOB_COMPLETION_INDEX: String(i) })));
  await shell(here(found(/`(lpq merge \/data\/out)`/)));
  await same(path.join(dir, 'out'), [path.join(dir, 'model'), '--bits', '4', '--method', 'rtn']);
});
