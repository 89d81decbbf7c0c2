import { spawn } from 'node:child_process';
import { closeSync, openSync, readdirSync, readFileSync } from 'node:fs';

export interface Measured {
  /** From the start of the process to its end: with imports, reading, writing. */
  readonly seconds: number;
  /** Most resident bytes of the process and all that it started, together; pages of mapped files count. */
  readonly peakBytes: number;
  /** Most bytes of the device's memory in use, less those before; as the driver counts them, contexts too. */
  readonly deviceBytes?: number;
  readonly code: number | null;
}

/** Between looks at the memory: a tenth of the time so far, no more than this. */
const LONGEST_MS = 100;

/** Runs a command to its end, its output into `log`. */
export async function measured(
  command: readonly string[],
  options: {
    readonly env: Readonly<Record<string, string>>;
    readonly log: string;
    readonly cwd: string;
    readonly deviceMemory?: boolean;
    /** Then it is stopped with all that it started; its code is null. */
    readonly limitMs?: number;
  },
): Promise<Measured> {
  const device = options.deviceMemory ? new DeviceWatch() : undefined;
  await device?.begun;
  const [file, ...args] = command as [string, ...string[]];
  const log = openSync(options.log, 'w');
  const started = performance.now();
  const child = spawn(file, args, {
    cwd: options.cwd,
    env: { ...process.env, ...options.env },
    stdio: ['ignore', log, log],
    // A group of its own, which can be stopped as a whole.
    detached: options.limitMs !== undefined,
  });
  closeSync(log);
  const stop = options.limitMs === undefined ? undefined : setTimeout(() => stopGroup(child.pid), options.limitMs);
  let peakBytes = 0;
  let timer: NodeJS.Timeout | undefined;
  const look = () => {
    peakBytes = Math.max(peakBytes, residentBytes(child.pid as number));
    timer = setTimeout(look, Math.min(LONGEST_MS, (performance.now() - started) / 10));
  };
  look();
  try {
    const code = await new Promise<number | null>((resolve, reject) => {
      child.on('error', reject);
      child.on('exit', resolve);
    });
    const seconds = (performance.now() - started) / 1000;
    return { seconds, peakBytes, ...(device && { deviceBytes: device.rise }), code };
  } finally {
    clearTimeout(timer);
    clearTimeout(stop);
    device?.end();
  }
}

function stopGroup(pid: number | undefined): void {
  try {
    if (pid !== undefined) process.kill(-pid, 'SIGKILL');
  } catch {
    // It ended meanwhile.
  }
}

/** What the driver's own program calls the first device of CUDA_VISIBLE_DEVICES. */
const firstDevice = () => process.env.CUDA_VISIBLE_DEVICES?.split(',')[0] || '0';

/** Asks the driver's own program for the memory in use on the first device, ten times a second. */
class DeviceWatch {
  private first: number | undefined;
  private most = 0;
  private readonly child = spawn(
    'nvidia-smi',
    [`--id=${firstDevice()}`, '--query-gpu=memory.used', '--format=csv,noheader,nounits', '-lms', '100'],
    { stdio: ['ignore', 'pipe', 'ignore'] },
  );
  /** Settles with the first answer. Rejects where there is no such program. */
  readonly begun = new Promise<void>((resolve, reject) => {
    this.child.on('error', reject);
    this.child.on('exit', () => reject(new Error('nvidia-smi ended without telling of memory')));
    this.child.stdout.on('data', (lines: Buffer) => {
      for (const mebibytes of lines.toString().trim().split('\n').map(Number).filter(Number.isFinite)) {
        this.first ??= mebibytes;
        this.most = Math.max(this.most, mebibytes);
      }
      resolve();
    });
  });

  get rise(): number {
    return (this.most - (this.first ?? this.most)) * 2 ** 20;
  }

  end(): void {
    this.child.kill();
  }
}

/** Of a process and its descendants now; of the process alone no less than the most it ever had. */
function residentBytes(root: number): number {
  const parents = new Map<number, number>();
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    const parent = read(name, 'stat').split(') ').at(-1)?.split(' ')[1];
    if (parent !== undefined) parents.set(Number(name), Number(parent));
  }
  const within = (pid: number | undefined): boolean => pid !== undefined && (pid === root || within(parents.get(pid)));
  let now = 0;
  for (const pid of parents.keys()) if (within(pid)) now += field(pid, 'VmRSS');
  return Math.max(now, field(root, 'VmHWM'));
}

const field = (pid: number, name: string): number =>
  1024 * Number(new RegExp(`^${name}:\\s+(\\d+) kB`, 'm').exec(read(String(pid), 'status'))?.[1] ?? 0);

function read(pid: string, file: string): string {
  try {
    return readFileSync(`/proc/${pid}/${file}`, 'latin1');
  } catch {
    return ''; // ended meanwhile
  }
}
