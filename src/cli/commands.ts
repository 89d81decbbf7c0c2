import type { Command, Option } from 'commander';

/** A command as completion scripts and the manual page show it. */
export interface CommandFacts {
  /** 'quantize', 'bench kernels'. */
  readonly path: string;
  readonly description: string;
  /** As in its usage line: '<model>', '[other]'. */
  readonly args: readonly { readonly usage: string; readonly description: string }[];
  readonly options: readonly OptionFacts[];
}

export interface OptionFacts {
  readonly short: string | undefined;
  readonly long: string;
  /** As declared: '--bits <n>'. */
  readonly usage: string;
  readonly description: string;
  readonly takesValue: boolean;
  /** The default, where the description does not tell it. */
  readonly otherwise: string | undefined;
}

/** Every command that can be run, in the order of the work; what only groups others is no command of its own. */
export function listCommands(program: Command): CommandFacts[] {
  const below = (command: Command, parents: readonly string[]): CommandFacts[] =>
    command.commands.flatMap((child) => {
      const names = [...parents, child.name()];
      return child.commands.length > 0 ? below(child, names) : [factsOf(child, names.join(' '))];
    });
  return below(program, []);
}

function factsOf(command: Command, path: string): CommandFacts {
  const args = command.registeredArguments.map((arg) => {
    const name = `${arg.name()}${arg.variadic ? '...' : ''}`;
    return { usage: arg.required ? `<${name}>` : `[${name}]`, description: arg.description };
  });
  return { path, description: command.description(), args, options: command.options.map(optionFacts) };
}

function optionFacts(option: Option): OptionFacts {
  const { short, long, flags, description, required, optional, defaultValue } = option;
  const shown = ['string', 'number'].includes(typeof defaultValue) && !/default/.test(description);
  return {
    short,
    long: long ?? short ?? flags,
    usage: flags,
    description,
    takesValue: required || optional,
    otherwise: shown ? String(defaultValue) : undefined,
  };
}
