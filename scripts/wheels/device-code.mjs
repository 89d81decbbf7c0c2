// Machine code for GPUs in a shared library: section .nv_fatbin is a row of containers, one a compilation unit, each a header (magic, version,
// its own size, bytes of what follows) and images: kind (1 PTX, 2 machine code), version, header size, payload size, ..., architecture.
const MAGIC = 0xba55ed50;
const [PTX, MACHINE] = [1, 2];

/** Offset and size of a 64-bit ELF file's section; undefined where it has none. */
export function sectionOf(elf, wanted) {
  if (elf.length < 64 || elf.readUInt32BE(0) !== 0x7f454c46 || elf[4] !== 2) return undefined;
  const [count, names] = [elf.readUInt16LE(0x3c), elf.readUInt16LE(0x3e)];
  const header = (i) => Number(elf.readBigUInt64LE(0x28)) + 64 * i;
  const place = (i) => [24, 32].map((offset) => Number(elf.readBigUInt64LE(header(i) + offset)));
  if (count === 0 || header(count) > elf.length) return undefined;
  const [table] = place(names);
  for (let i = 0; i < count; i++) {
    const start = table + elf.readUInt32LE(header(i));
    if (elf.toString('latin1', start, elf.indexOf(0, start)) !== wanted) continue;
    const [offset, size] = place(i);
    return { offset, size };
  }
  return undefined;
}

/** The images of a container, each { kind, arch, start, end }; undefined where its bytes are not as expected. */
function imagesOf(bytes, start, end) {
  const images = [];
  for (let at = start; at < end; ) {
    if (at + 64 > end) return undefined;
    const after = at + bytes.readUInt32LE(at + 4) + Number(bytes.readBigUInt64LE(at + 8));
    if (after > end || after <= at) return undefined;
    images.push({ kind: bytes.readUInt16LE(at), arch: bytes.readUInt32LE(at + 28), start: at, end: after });
    at = after;
  }
  return images;
}

/** What a GPU of `arch` takes of a container: its machine code (of the same generation, no newer), else the newest PTX that it compiles. */
function taken(images, arch) {
  const fits = (image) => Math.floor(image.arch / 10) === Math.floor(arch / 10) && image.arch <= arch;
  const own = images.filter((image) => image.kind === MACHINE && fits(image));
  if (own.length > 0) return own.filter((image) => image.arch === Math.max(...own.map((other) => other.arch)));
  const sources = images.filter((image) => image.kind === PTX && image.arch <= arch);
  return sources.filter((image) => image.arch === Math.max(...sources.map((other) => other.arch)));
}

/**
 * A copy of a shared library in which each container holds what a GPU of `arch` takes, closed up, and zeros after it; a container that such a
 * GPU takes nothing of stays, because an empty one is no program. Also the bytes that became zeros. undefined: no such code, or of another form.
 */
export function onlyCodeFor(arch, elf) {
  const section = sectionOf(elf, '.nv_fatbin');
  if (section === undefined) return undefined;
  const made = Buffer.from(elf);
  const end = section.offset + section.size;
  let cleared = 0;
  for (let at = section.offset; at + 16 <= end; ) {
    if (elf.readUInt32LE(at) !== MAGIC) {
      at += 8; // alignment between containers
      continue;
    }
    const first = at + elf.readUInt16LE(at + 6);
    const last = first + Number(elf.readBigUInt64LE(at + 8));
    const images = last <= end ? imagesOf(elf, first, last) : undefined;
    if (images === undefined) return undefined;
    const kept = taken(images, arch);
    if (kept.length > 0 && kept.length < images.length) {
      let to = first;
      for (const image of kept) to += elf.copy(made, to, image.start, image.end);
      made.fill(0, to, last);
      made.writeBigUInt64LE(BigInt(to - first), at + 8);
      cleared += last - to;
    }
    at = last;
  }
  return { library: made, cleared };
}
