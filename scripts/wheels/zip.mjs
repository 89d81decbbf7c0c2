// Wheels as zip archives: read whole, written without compression, so that xz finds what files share.
import { crc32, inflateRawSync } from 'node:zlib';
import { fail } from './fail.mjs';

const [LOCAL, CENTRAL, END] = [0x04034b50, 0x02014b50, 0x06054b50];

/** The files of an archive in memory, in order: [{ name, mode, data() }]. */
export function readZip(bytes, what) {
  const broken = (why) => fail(`${what} is no whole wheel: ${why}`, 'download it again');
  let end = bytes.length - 22;
  while (end >= 0 && bytes.readUInt32LE(end) !== END) end--;
  if (end < 0) broken('it has no end record');
  const files = [];
  let at = bytes.readUInt32LE(end + 16);
  for (let left = bytes.readUInt16LE(end + 10); left > 0; left--) {
    if (at + 46 > bytes.length || bytes.readUInt32LE(at) !== CENTRAL) broken('its directory is cut short');
    const method = bytes.readUInt16LE(at + 10);
    const [crc, packed, size] = [16, 20, 24].map((offset) => bytes.readUInt32LE(at + offset));
    const [nameSize, extra, comment] = [28, 30, 32].map((offset) => bytes.readUInt16LE(at + offset));
    const mode = bytes.readUInt16LE(at + 40);
    const local = bytes.readUInt32LE(at + 42);
    const name = bytes.toString('utf8', at + 46, at + 46 + nameSize);
    at += 46 + nameSize + extra + comment;
    if (name.endsWith('/')) continue;
    if (name.startsWith('/') || name.split('/').includes('..')) broken(`it names the file '${name}'`);
    if (packed === 0xffffffff || size === 0xffffffff) broken(`'${name}' has 4 GiB or more`);
    files.push({
      name,
      mode,
      data() {
        const start = local + 30 + bytes.readUInt16LE(local + 26) + bytes.readUInt16LE(local + 28);
        const raw = bytes.subarray(start, start + packed);
        const data = method === 8 ? inflateRawSync(raw) : raw;
        if ((method !== 8 && method !== 0) || data.length !== size || crc32(data) !== crc)
          broken(`'${name}' is damaged`);
        return data;
      },
    });
  }
  return files;
}

/** The chunks of an archive of [{ name, mode, data }], uncompressed, with the same bytes for the same files. */
export function* zipped(files) {
  const directory = [];
  let offset = 0;
  for (const { name, mode, data } of files) {
    const raw = Buffer.from(name);
    const shared = Buffer.alloc(26);
    shared.writeUInt16LE(20, 0); // version that reads it
    shared.writeUInt16LE(0x800, 2); // names are UTF-8
    shared.writeUInt16LE(0x21, 8); // 1980-01-01
    shared.writeUInt32LE(crc32(data), 10);
    shared.writeUInt32LE(data.length, 14);
    shared.writeUInt32LE(data.length, 18);
    shared.writeUInt16LE(raw.length, 22);
    const head = Buffer.alloc(4);
    head.writeUInt32LE(LOCAL);
    const entry = Buffer.alloc(46);
    entry.writeUInt32LE(CENTRAL);
    entry.writeUInt16LE(0x314, 4); // made on Unix
    shared.copy(entry, 6);
    entry.writeUInt16LE(mode, 40);
    entry.writeUInt32LE(offset, 42);
    directory.push(entry, raw);
    yield* [head, shared, raw, data];
    offset += 30 + raw.length + data.length;
  }
  if (offset >= 0xffffffff || files.length > 0xffff) fail('a wheel of 4 GiB or more is not written', 'drop more of it');
  yield* directory;
  const tail = Buffer.alloc(22);
  tail.writeUInt32LE(END);
  tail.writeUInt16LE(files.length, 8);
  tail.writeUInt16LE(files.length, 10);
  tail.writeUInt32LE(
    directory.reduce((sum, part) => sum + part.length, 0),
    12,
  );
  tail.writeUInt32LE(offset, 16);
  yield tail;
}
