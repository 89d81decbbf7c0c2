import type { Command } from 'commander';
import { listCommands } from './commands.js';

/** share/man/man1/lpq.1: the manual page (man(7) macros), made from what the command line declares. */
export function manualPage(program: Command, version: string): string {
  const lines = [
    `.\\" Made by npm run man from the declarations of src/cli; do not edit.`,
    `.TH LPQ 1 "" "lpq ${version}" "User Commands"`,
    '.SH NAME',
    'lpq \\- quantize large language models offline, pack the weights for a target, and prove what was packed',
    '.SH SYNOPSIS',
    '.B lpq',
    '.I COMMAND',
    '.RI [ OPTION ...]',
    '.SH DESCRIPTION',
    roff(
      'lpq turns a Hugging Face checkpoint into deployable low-bit weights: quantize writes a neutral quantized checkpoint, pack lays it out for a kernel or another program, verify proves the packed bytes. Results go to standard output, everything else to standard error.',
    ),
    '.SH COMMANDS',
  ];
  for (const { path, description, args, options } of listCommands(program)) {
    lines.push(`.SS "lpq ${roff([path, ...args.map(({ usage }) => usage)].join(' ')).replace(/"/g, '""')}"`);
    lines.push(`${sentence(roff(description))}`);
    for (const { usage, description: text } of args) lines.push('.TP', `.I ${roff(usage)}`, sentence(roff(text)));
    for (const { usage, description: text, otherwise } of options) {
      const more = otherwise === undefined ? '' : ` (default: ${otherwise})`;
      lines.push('.TP', `.B ${roff(usage)}`, sentence(roff(text + more)));
    }
  }
  lines.push(
    '.SH EXIT STATUS',
    ...[
      ['0', 'success, and the result was delivered'],
      ['1', 'verification found a difference'],
      ['2', 'usage: an option, an argument or a recipe is wrong'],
      ['3', 'environment: a device, memory, the disk or the network'],
      ['4', 'bad input: a checkpoint, a text or an artifact is damaged or unknown'],
      ['130', 'interrupted'],
      ['141', 'stdout or stderr was closed before everything was written'],
    ].flatMap(([code, text]) => ['.TP', `.B ${code}`, sentence(text as string)]),
    roff('lpq explain CODE says what an error means and what to do about it.'),
    '.SH ENVIRONMENT',
    ...[
      ['LPQ_THREADS', 'number of threads'],
      ['LPQ_BLAS', 'openblas: compute with an installed OpenBLAS'],
      ['LPQ_CUDA_LIBS', 'folders with cuBLAS and cuSOLVER'],
      ['NO_COLOR', 'no colours, whatever its value'],
      ['HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, HF_TOKEN, HF_ENDPOINT', 'as for the Hugging Face Hub'],
    ].flatMap(([name, text]) => ['.TP', `.B ${name}`, sentence(text as string)]),
    '.SH EXAMPLES',
    '.EX',
    'lpq quantize Llama\\-3.1\\-8B \\-o llama\\-w4 \\-\\-bits 4 \\-\\-group\\-size 128',
    'lpq pack llama\\-w4 \\-\\-target marlin \\-o llama\\-w4\\-marlin',
    'lpq verify llama\\-w4\\-marlin \\-\\-against llama\\-w4',
    '.EE',
  );
  return `${lines.join('\n')}\n`;
}

function roff(text: string): string {
  return text
    .replace(/\\/g, '\\e')
    .replace(/-/g, '\\-')
    .replace(/^([.'])/, '\\&$1');
}

function sentence(text: string): string {
  return /[.)]$/.test(text) ? text : `${text}.`;
}
