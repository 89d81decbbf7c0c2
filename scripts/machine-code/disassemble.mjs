// What a compiled file of kernels holds, read with cuobjdump and nvdisasm (pip: nvidia-cuda-cuobjdump, nvidia-cuda-nvdisasm).
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import path from 'node:path';

/** Instructions that a comparison counts apart, by the start of their names. */
const CLASSES = {
  tensor: /^(HMMA|IMMA|QMMA|HGMMA|IGMMA|QGMMA)/,
  global: /^(LDG|STG|LDGSTS|RED|ATOMG|ATOM|LD\b|ST\b|UBLK|UTMA)/,
  shared: /^(LDS|STS|LDSM|STSM|ATOMS)/,
  local: /^(LDL|STL)/,
  half: /^(HADD|HMUL|HFMA|HSETP|HMNMX|HSET)/,
  float: /^(FADD|FMUL|FFMA|FSETP|FMNMX|FSEL|MUFU|F2F|I2F|F2I|FRND|FCHK|FSWZ|D[AFMS])/,
  barrier: /^(BAR|SYNCS|WARPSYNC|DEPBAR|MEMBAR|FENCE|ERRBAR|WARPGROUP|UCGABAR|ACQBULK|PREEXIT|LDGDEPBAR|CCTL)/,
  branch: /^(BRA|BRX|BSSY|BSYNC|EXIT|CALL|RET|BREAK|JMP|YIELD|NANOSLEEP)/,
};

/** Standard output of a command; rejects with its errors. */
function output(command, args) {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, {
      env: { ...process.env, PATH: `${path.dirname(command)}${path.delimiter}${process.env.PATH}` },
    });
    const [out, errors] = [[], []];
    child.stdout.on('data', (chunk) => out.push(chunk));
    child.stderr.on('data', (chunk) => errors.push(chunk));
    child.on('error', reject);
    child.on('close', (status) => {
      if (status === 0) resolve(Buffer.concat(out).toString());
      else reject(new Error(`${command} ${args.join(' ')}: ${Buffer.concat(errors)}`));
    });
  });
}

/**
 * The kernels of one file: {arch, name, hash, registers, stack, shared, instructions, classes}. `hash` is of the
 * instructions in their order, with registers, predicates, barriers and branch targets numbered by first use, so that
 * it stays when a compiler names them otherwise. Scheduling hints and padding are left out.
 */
export async function kernelsOf(cuobjdump, file) {
  const [code, usage] = await Promise.all([
    output(cuobjdump, ['-sass', file]),
    output(cuobjdump, ['-res-usage', file]),
  ]);
  const resources = readUsage(usage);
  return readCode(code).map(({ arch, name, lines }) => {
    const text = normalise(lines);
    const classes = {};
    for (const line of text) {
      const word = line.replace(/^@!?\w+ /, '');
      const found = Object.entries(CLASSES).find(([, pattern]) => pattern.test(word))?.[0] ?? 'integer';
      classes[found] = (classes[found] ?? 0) + 1;
    }
    const hash = createHash('sha256').update(text.join('\n')).digest('hex').slice(0, 16);
    return { arch, name, hash, ...resources.get(`${arch} ${name}`), instructions: text.length, classes };
  });
}

function readCode(text) {
  const kernels = [];
  let [arch, kernel] = ['', undefined];
  for (const line of text.split('\n')) {
    const code = /^\s*code for (sm_\w+)/.exec(line);
    const head = /^\s*Function : (\S+)/.exec(line);
    const instruction = /^\s*\/\*([0-9a-f]{4,})\*\/\s+(.*?)\s*;/.exec(line);
    if (code) arch = code[1];
    else if (head) {
      kernel = { arch, name: head[1], lines: [] };
      kernels.push(kernel);
    } else if (instruction && kernel) kernel.lines.push([Number.parseInt(instruction[1], 16), instruction[2]]);
  }
  return kernels;
}

/** Of -res-usage: registers, bytes of stack (spills lie there), bytes of static shared memory, by "arch name". */
function readUsage(text) {
  const found = new Map();
  let [arch, name] = ['', ''];
  for (const line of text.split('\n')) {
    const code = /^arch = (sm_\w+)/.exec(line);
    const head = /^\s*Function (\S+):/.exec(line);
    const row = /REG:(\d+) STACK:(\d+) SHARED:(\d+)/.exec(line);
    if (code) arch = code[1];
    else if (head) name = head[1];
    else if (row)
      found.set(`${arch} ${name}`, { registers: Number(row[1]), stack: Number(row[2]), shared: Number(row[3]) });
  }
  return found;
}

/** The instructions up to the endless branch that pads a function. */
function normalise(lines) {
  const end = lines.findLastIndex(([, text]) => text !== 'NOP' && !/^BRA 0x/.test(text)) + 1;
  const places = new Map(lines.slice(0, end).map(([address], i) => [address, i]));
  const names = new Map();
  const counts = {};
  const numbered = (kind, word) => {
    if (!names.has(word)) {
      counts[kind] = (counts[kind] ?? 0) + 1;
      names.set(word, `${kind}${counts[kind]}`);
    }
    return names.get(word);
  };
  return lines.slice(0, end).map(([, text]) =>
    text
      .replace(/\b(UR|UP|R|P|B|SB)(\d+)\b/g, (word, kind) => numbered(kind, word))
      .replace(/`\(\S+\)/g, 'TARGET')
      .replace(/^((?:@!?\w+ )?(?:BRA|BSSY|CALL|BRX|RET|WARPSYNC|BREAK)\S*.*?)(0x[0-9a-f]+)$/, (_, start, address) => {
        const place = places.get(Number.parseInt(address, 16));
        return `${start}${place === undefined ? 'END' : `#${place}`}`;
      }),
  );
}
