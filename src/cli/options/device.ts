import { addon, type Device } from '../../../native/binding.js';
import { LpqError, notTaken } from '../../core/error.js';

/**
 * The device of --device. auto: cuda:0 where a driver shows a device, else cpu. `cuda`: whether the command has CUDA
 * operations at all. Throws LPQ_USAGE for what is no device, LPQ_DEVICE for one that cannot be had and why.
 */
export function chooseDevice(wish: string, cuda = true): Device {
  if (wish === 'cpu') return 'cpu';
  if (wish === 'auto') return cuda && deviceCount() > 0 ? 'cuda:0' : 'cpu';
  const match = /^cuda(?::(\d+))?$/.exec(wish);
  if (!match) throw notTaken('--device', wish, 'auto, cpu, cuda or cuda:N');
  if (!cuda)
    throw new LpqError('LPQ_DEVICE', `--device ${wish} is not available: this command computes on the CPU`, {
      got: wish,
      expected: 'auto or cpu',
      hint: 'Use --device cpu, or leave the option out.',
    });
  const ordinal = Number(match[1] ?? 0);
  const devices = listed(wish);
  if (ordinal < devices.length) return `cuda:${ordinal}`;
  throw new LpqError(
    'LPQ_DEVICE',
    `--device ${wish} is not available: the driver shows ${devices.length} CUDA device(s)`,
    {
      got: wish,
      expected: devices.map((device, i) => `cuda:${i} (${device.name})`).join(', ') || 'cpu',
      hint: 'Use --device cpu, or a device that lpq doctor lists.',
    },
  );
}

/**
 * The devices of --device where several may work together: a list (cuda:0,cuda:1), cuda:all, or what chooseDevice() takes.
 * Throws what it throws, and LPQ_USAGE for a device named twice.
 */
export function chooseDevices(wish: string): Device[] {
  if (wish === 'cuda:all') return listed(wish).flatMap(({ arch }, i) => (arch >= 80 ? [`cuda:${i}` as const] : []));
  const parts = wish.split(',');
  if (parts.length === 1) return [chooseDevice(wish)];
  const devices = parts.map((part) => chooseDevice(part.trim()));
  const twice = devices.find((device, i) => devices.indexOf(device) !== i);
  if (twice !== undefined || devices.includes('cpu'))
    throw new LpqError('LPQ_USAGE', `--device does not take '${wish}'`, {
      got: twice === undefined ? 'cpu in a list' : `${twice} twice`,
      expected: 'different CUDA devices, such as cuda:0,cuda:1',
    });
  return devices;
}

function listed(wish: string): ReturnType<ReturnType<typeof addon>['cudaDevices']> {
  const loaded = addon();
  try {
    return loaded.cudaDevices();
  } catch (cause) {
    // A driver that is there and cannot be used says more than a machine without one.
    if (!isAbsent(cause)) throw cause;
    throw new LpqError('LPQ_DEVICE', `--device ${wish} is not available: ${(cause as Error).message}`, {
      got: wish,
      expected: 'auto or cpu',
      hint: 'Use --device cpu, or install an NVIDIA driver for CUDA 12 or newer.',
      cause,
    });
  }
}

function deviceCount(): number {
  try {
    return addon()
      .cudaDevices()
      .filter(({ arch }) => arch >= 80).length;
  } catch {
    return 0; // no driver is an ordinary case
  }
}

/**
 * Why --device auto does not take a GPU although there seems to be one: a driver that is too old or does not start, a
 * device that is too old. undefined where there is nothing to say.
 */
export function obstacle(): string | undefined {
  try {
    const devices = addon().cudaDevices();
    const [first] = devices;
    if (first === undefined || devices.some(({ arch }) => arch >= 80)) return undefined;
    return `${first.name} has compute capability ${first.arch / 10}, lpq needs 8.0 or newer`;
  } catch (cause) {
    return isAbsent(cause) ? undefined : (cause as Error).message;
  }
}

/** No driver, or no device: an ordinary case. */
function isAbsent(cause: unknown): boolean {
  const { code, message } = cause as Error & { code?: string };
  return code === 'LPQ_CUDA_DEVICE' || (code === 'LPQ_CUDA_DRIVER' && message.startsWith('no NVIDIA driver was found'));
}

/** Bytes of '24g', '512m' or a plain number. Throws LPQ_USAGE. */
export function parseBytes(option: string): (text: string) => number {
  return (text) => {
    const match = /^(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?$/i.exec(text.trim());
    const bytes = match ? Math.floor(Number(match[1]) * 1024 ** ' kmgt'.indexOf((match[2] || ' ').toLowerCase())) : 0;
    if (bytes > 0) return bytes;
    throw notTaken(option, text, 'a size such as 24g or 512m');
  };
}
