import assert from 'node:assert/strict';
import { test } from 'node:test';
import { EXAMPLES } from '../../../src/cli/help.js';
import { buildProgram } from '../../../src/cli/main.js';

const program = await buildProgram();

test('every command stands under a heading, and every option of quantize too', () => {
  for (const command of program.commands) assert.notEqual(command.helpGroup(), '', command.name());
  const help = program.helpInformation();
  for (const heading of ['Make:', 'Check:', 'Run:', 'Look:']) assert.match(help, new RegExp(`^${heading}$`, 'm'));
  const quantize = program.commands.find((command) => command.name() === 'quantize');
  for (const heading of ['Weights:', 'Method:', 'Calibration:', 'Engine:', 'Device:', 'Output:'])
    assert.match(quantize?.helpInformation() ?? '', new RegExp(`^${heading}$`, 'm'));
});

test('the examples of help use commands and options that there are', () => {
  for (const [name, examples] of Object.entries(EXAMPLES)) {
    assert.ok(name === '' || program.commands.some((command) => command.name() === name), name);
    for (const [example] of examples) {
      const [, verb, ...words] = example.split(' ');
      const command = program.commands.find((each) => each.name() === verb);
      assert.ok(command, example);
      if (name !== '') assert.equal(verb, name, example);
      const flags = command.options.flatMap(({ short, long }) => [short, long]);
      for (const word of words)
        if (word.startsWith('-') && word !== '--help') assert.ok(flags.includes(word), `${example}: ${word}`);
    }
  }
});
