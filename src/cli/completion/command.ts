import type { Command } from 'commander';
import { LpqError } from '../../core/error.js';
import { type CommandFacts, listCommands } from '../commands.js';
import { describeTargets } from '../pack/command.js';
import type { Run } from '../run.js';

const SHELLS = { bash, zsh, fish } as const;

/** `lpq completion SHELL`: a script that completes commands, options and the values that options take. */
export function completionCommand(program: Command, run: Run): Command {
  return program
    .command('completion')
    .description('print a completion script, for example: source <(lpq completion bash)')
    .argument('<shell>', Object.keys(SHELLS).join(', '))
    .action(async (shell: string) => {
      if (!Object.hasOwn(SHELLS, shell))
        throw new LpqError('LPQ_USAGE', `there is no completion for '${shell}'`, {
          got: shell,
          expected: Object.keys(SHELLS).join(', '),
        });
      await describeTargets(program);
      const script = SHELLS[shell as keyof typeof SHELLS](listCommands(program), await values());
      run.report.result({ command: 'completion', shell, script }, script);
    });
}

type Values = Readonly<Record<string, readonly string[]>>;

/** What options take, where that is a list; all others take files, directories or numbers. */
async function values(): Promise<Values> {
  const { PACK_TARGETS } = await import('../../pack/targets/index.js');
  const { PRESETS } = await import('../../quantize/scheme.js');
  const { flagOf, isWords } = await import('../../quantize/option.js');
  const { FIELDS } = await import('../quantize/fields.js');
  const targets = PACK_TARGETS.map(({ name }) => name);
  const widths = Array.from({ length: 8 }, (_, i) => i + 1);
  return {
    ...Object.fromEntries(
      FIELDS.flatMap((field) => (isWords(field.takes) ? [[flagOf(field), field.takes] as const] : [])),
    ),
    '--scale-dtype': ['f16', 'bf16', 'f32', 'e8m0', 'e4m3'],
    '--device': ['auto', 'cpu', 'cuda', 'cuda:0', 'cuda:all'],
    '--group-size': ['32', '64', '128', 'channel'],
    '--bits': widths.map(String),
    '--dtype': [
      ...widths.map((bits) => `u${bits}`),
      ...widths.slice(1).map((bits) => `i${bits}`),
      ...['f4e2m1', 'f6e3m2', 'f6e2m3', 'f8e4m3', 'f8e5m2'],
      ...Object.keys(PRESETS),
    ],
    '--target': targets,
    '--pack': targets,
  };
}

function words(options: CommandFacts['options']): string[] {
  return options.flatMap(({ short, long }) => (short && short !== long ? [short, long] : [long]));
}

/** The first words of commands, each once, with a description. */
function heads(commands: readonly CommandFacts[]): [string, string][] {
  const found = new Map<string, string>();
  for (const { path, description } of commands) {
    const [head = '', rest] = path.split(' ');
    if (!found.has(head)) found.set(head, rest === undefined ? description : `${head} ...`);
  }
  return [...found];
}

function bash(commands: readonly CommandFacts[], choices: Values): string {
  const groups = commands.filter(({ path }) => path.includes(' '));
  const inner = new Map<string, string[]>();
  for (const { path } of groups) {
    const [head = '', rest = ''] = path.split(' ');
    inner.set(head, [...(inner.get(head) ?? []), rest]);
  }
  const cases = commands.map(({ path, options }) => `    '${path}') opts='${words(options).join(' ')}' ;;`);
  const valued = Object.entries(choices).map(([flag, list]) => `    ${flag}) vals='${list.join(' ')}' ;;`);
  const takes = [
    ...new Set(commands.flatMap(({ options }) => options.filter((o) => o.takesValue).flatMap((o) => words([o])))),
  ];
  return `# lpq completion for bash: source <(lpq completion bash)
_lpq() {
  local cur prev cmd opts vals
  COMPREPLY=()
  cur=\${COMP_WORDS[COMP_CWORD]}
  prev=\${COMP_WORDS[COMP_CWORD-1]}
  # Readline cuts words at colons: cuda:0 and 2:4 are three words each.
  if [[ $cur == : ]]; then prev=\${COMP_WORDS[COMP_CWORD-2]}; cur=\${COMP_WORDS[COMP_CWORD-1]}:
  elif [[ $prev == : ]]; then prev=\${COMP_WORDS[COMP_CWORD-3]}; cur=\${COMP_WORDS[COMP_CWORD-2]}:$cur; fi
  if (( COMP_CWORD == 1 )); then
    COMPREPLY=($(compgen -W '${[...heads(commands).map(([head]) => head), 'help'].join(' ')} --help --version' -- "$cur"))
    return
  fi
  cmd=\${COMP_WORDS[1]}
  case $cmd in
${[...inner].map(([head, rest]) => `    ${head}) if (( COMP_CWORD == 2 )); then COMPREPLY=($(compgen -W '${rest.join(' ')}' -- "$cur")); return; fi; cmd="$cmd \${COMP_WORDS[2]}" ;;`).join('\n')}
  esac
  vals=
  case $prev in
${valued.join('\n')}
  esac
  if [[ -n $vals ]]; then
    COMPREPLY=($(compgen -W "$vals" -- "$cur"))
    [[ $cur == *:* ]] && COMPREPLY=("\${COMPREPLY[@]#"\${cur%:*}:"}")
    return
  fi
  case $prev in
    ${takes.join('|')}) COMPREPLY=($(compgen -f -- "$cur")); return ;;
  esac
  if [[ $cur == -* ]]; then
    opts=
    case $cmd in
${cases.join('\n')}
    esac
    COMPREPLY=($(compgen -W "$opts --help" -- "$cur"))
  elif [[ $cmd == completion ]]; then COMPREPLY=($(compgen -W 'bash zsh fish' -- "$cur"))
  else COMPREPLY=($(compgen -f -- "$cur"))
  fi
}
complete -o filenames -F _lpq lpq
`;
}

function zsh(commands: readonly CommandFacts[], choices: Values): string {
  const clean = (text: string) => text.replace(/[[\]'\\:$`"]/g, (char) => (char === ':' ? ' -' : ''));
  const spec = ({ short, long, description, takesValue }: CommandFacts['options'][number]) => {
    const list = choices[long];
    const value = !takesValue
      ? ''
      : list
        ? `:value:(${list.map((each) => each.replace(/:/g, '\\:')).join(' ')})`
        : ':value:_files';
    const names = short && short !== long ? `'(${short} ${long})'{${short},${long}}` : long;
    return `${names}'[${clean(description)}]${value}'`;
  };
  const cases = commands.map(
    ({ path, options }) =>
      `    '${path}') _arguments ${options.map((option) => spec(option)).join(' ')} '--help[show help]' '*:file:${path === 'completion' ? '(bash zsh fish)' : '_files'}' ;;`,
  );
  const inner = commands
    .filter(({ path }) => path.includes(' '))
    .map(({ path, description }) => [path.split(' '), description] as const);
  const groups = [...new Set(inner.map(([[head]]) => head as string))];
  return `#compdef lpq
# lpq completion for zsh: put it in a directory of $fpath as _lpq, or: source <(lpq completion zsh)
_lpq() {
  local -a names
  if (( CURRENT == 2 )); then
    names=(${heads(commands)
      .map(([head, text]) => `'${head}:${clean(text)}'`)
      .join(' ')})
    _describe command names
    return
  fi
  local cmd=$words[2]
  case $cmd in
${groups
  .map((head) => {
    const list = inner.filter(([[first]]) => first === head).map(([[, second], text]) => `'${second}:${clean(text)}'`);
    return `    ${head}) if (( CURRENT == 3 )); then names=(${list.join(' ')}); _describe command names; return; fi; cmd="$cmd $words[3]"; shift words; (( CURRENT-- )) ;;`;
  })
  .join('\n')}
  esac
  shift words
  (( CURRENT-- ))
  case $cmd in
${cases.join('\n')}
  esac
}
if [[ $funcstack[1] == _lpq ]]; then _lpq "$@"; else compdef _lpq lpq; fi
`;
}

function fish(commands: readonly CommandFacts[], choices: Values): string {
  const quote = (text: string) => `'${text.replace(/\\/g, '\\\\').replace(/'/g, "\\'")}'`;
  const lines = heads(commands).map(
    ([head, text]) => `complete -c lpq -n __fish_use_subcommand -f -a ${head} -d ${quote(text)}`,
  );
  for (const { path, description, options } of commands) {
    const [head = '', rest] = path.split(' ');
    const when =
      rest === undefined
        ? `__fish_seen_subcommand_from ${head}`
        : `__fish_seen_subcommand_from ${head}; and __fish_seen_subcommand_from ${rest}`;
    if (rest !== undefined)
      lines.push(
        `complete -c lpq -n '__fish_seen_subcommand_from ${head}; and not __fish_seen_subcommand_from ${rest}' -f -a ${rest} -d ${quote(description)}`,
      );
    for (const { short, long, description: text, takesValue } of options) {
      const list = choices[long];
      lines.push(
        [
          `complete -c lpq -n ${quote(when)}`,
          ...(short && short !== long ? [`-s ${short.slice(1)}`] : []),
          `-l ${long.replace(/^--/, '')}`,
          ...(takesValue ? [list ? `-x -a ${quote(list.join(' '))}` : '-r'] : []),
          `-d ${quote(text)}`,
        ].join(' '),
      );
    }
  }
  lines.push(`complete -c lpq -n '__fish_seen_subcommand_from completion' -f -a 'bash zsh fish'`);
  return `# lpq completion for fish: lpq completion fish > ~/.config/fish/completions/lpq.fish\n${lines.join('\n')}\n`;
}
