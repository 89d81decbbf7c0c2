import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { ALL } from '../../sample.js';
import { root } from '../../src/cli/lpq.js';
import { ENGINES } from '../engines.js';
import { pythonOf, unpackedWheel } from '../run.js';
import { GPU_CELLS } from './cells.js';
import { prepare } from './prepare.js';

/** The driver for a host with a GPU, with a vLLM that only pretends, and in vLLM's build for the CPU. */

const python = process.env.LPQ_PYTHON ?? 'python3';
const drive = path.join(root, 'test', 'engines', 'gpu', 'drive.py');
const dir = mkdtempSync(path.join(os.tmpdir(), 'lpq-drive-'));
after(() => rmSync(dir, { recursive: true, force: true }));

/** What each directory's name makes it do. */
const VLLM = `
import os, sys, time
class SamplingParams:
    def __init__(self, **said): self.__dict__.update(said)
class Place:
    def __init__(self, **said): self.__dict__.update(said)
class LLM:
    def __init__(self, directory, **said):
        self.what = os.path.basename(directory)
        if self.what == 'hang': time.sleep(60)
        if self.what == 'crash': print('no room on the card', file=sys.stderr); os._exit(3)
        if self.what == 'refuse': raise ValueError('Value error, no kernel takes it [type=value_error]\\nmore')
        if self.what == 'raise': raise RuntimeError('out of memory')
    def generate(self, prompt, wanted, use_tqdm):
        ids = prompt['prompt_token_ids']
        far = 3.0 if self.what == 'far' else 0.0
        tokens = [9, 9] if self.what == 'behind' else [7, 6] if self.what == 'near' else [7, 8]
        places = [None, *({token: Place(logprob=-1.0 + far)} for token in ids[1:])]
        return [Place(prompt_logprobs=places, outputs=[Place(token_ids=tokens)])]
`;
const TORCH = `
__version__ = 'pretended'
class cuda:
    @staticmethod
    def is_available(): return False
    @staticmethod
    def device_count(): return 0
    @staticmethod
    def synchronize(): pass
    class Event:
        def __init__(self, enable_timing): pass
        def record(self): pass
        def elapsed_time(self, last): return 100.0
`;
const stubs = path.join(dir, 'stubs');
mkdirSync(stubs);
writeFileSync(path.join(stubs, 'vllm.py'), VLLM);
writeFileSync(path.join(stubs, 'torch.py'), TORCH);

const EXPECTED = {
  ...{ ids: [1, 2, 3], tokens: [7, 8], logprobs: [-1, -1], bound: 0.5 },
  best: [
    [
      [7, -0.1],
      [9, -4],
    ],
    [
      [8, -0.1],
      [6, -0.3],
    ],
  ],
};

/** Runs cells of these names, each of the directory that is named so. */
function run(names: readonly string[], more: readonly string[] = [], changes: object = {}) {
  const prepared = mkdtempSync(path.join(dir, 'prepared-'));
  const common = { group: 'standard', dtype: 'bfloat16', plugin: false, ranks: 1, compiled: false, rounds: false };
  const cells = names.map((name) => ({ name, directory: name, expected: EXPECTED, ...common, ...changes }));
  writeFileSync(path.join(prepared, 'cells.json'), JSON.stringify({ cells }));
  const out = path.join(prepared, 'record.json');
  const args = ['--prepared', prepared, '--out', out, '--device', 'cpu', '--cells', `^(${names.join('|')})$`, ...more];
  const env = { ...process.env, PYTHONPATH: stubs, PYTHONDONTWRITEBYTECODE: '1' };
  const ran = spawnSync(python, [drive, ...args], { encoding: 'utf8', env });
  const record = existsSync(out) ? JSON.parse(readFileSync(out, 'utf8')) : undefined;
  return { code: ran.status, stdout: ran.stdout, stderr: ran.stderr, record };
}

test('cells that fail, hang, end their process or differ cost no other', () => {
  const names = ['good', 'raise', 'crash', 'near', 'hang', 'refuse', 'far', 'behind', 'last'];
  const { code, stdout, record } = run(names, ['--limit', '5']);
  assert.equal(code, 1);
  const told = Object.fromEntries(
    record.cells.map(({ name, outcome, reason }: { name: string; outcome: string; reason?: string }) => [
      name,
      [outcome, reason],
    ]),
  );
  assert.deepEqual(Object.keys(told), names);
  assert.deepEqual(told.good, ['ran', undefined]);
  assert.deepEqual(told.near, ['ran', undefined]);
  assert.deepEqual(told.last, ['ran', undefined]);
  assert.deepEqual(told.raise, ['failed', 'RuntimeError: out of memory']);
  assert.deepEqual(told.refuse, ['refused', 'ValueError: no kernel takes it']);
  assert.match(told.crash![1], /^its process ended with 3; last: .*no room on the card$/);
  assert.match(told.hang![1], /^no result in 5 s/);
  assert.deepEqual(told.far, ['differs', 'a logprob is 3 off, beyond 0.5']);
  assert.deepEqual(told.behind, ['differs', "greedy token 0 is 9, 3.9 behind lpq's best"]);
  assert.match(stdout, /3 ran, 2 differs, 3 failed, 1 refused, 0 skipped/);
});

test('processes share the card, and what they print is kept', () => {
  const logs = path.join(dir, 'logs');
  const { stdout, record } = run(['good', 'raise', 'crash', 'last'], ['--jobs', '3', '--logs', logs]);
  assert.match(stdout, /2 ran, 0 differs, 2 failed, 0 refused, 0 skipped/);
  assert.equal(record.cells.length, 4);
  const files = readdirSync(logs).sort();
  assert.deepEqual(
    files.map((file) => file.split('-')[0]),
    ['crash', 'good', 'last'],
  );
  assert.match(readFileSync(path.join(logs, files[0]!), 'utf8'), /no room on the card/);
  assert.match(
    readFileSync(path.join(logs, files[1]!), 'utf8'),
    /Traceback[\s\S]*RuntimeError: out of memory\nraise: /,
  );
});

const REPLAYED = `
import json, speed
from types import SimpleNamespace as Place
class Graph:
    count = 0
    def replay(self): self.count += 1
class Key(Place): __hash__ = object.__hash__
graphs = {Key(num_tokens=tokens, num_reqs=requests): Graph() for tokens, requests in ((16, None), (32, 16), (16, 16), (1, 1))}
found = speed.replayed(Place(cudagraph_manager=Place(graphs=graphs)), 16)
absent = [speed.replayed(runner, 16) for runner in (None, Place(), Place(cudagraph_manager=None), Place(cudagraph_manager=Place(graphs={})))]
print(json.dumps([[graph.count for graph in graphs.values()], found["card_us"], found["launch_us"] >= 0, absent, speed.host() > 0]))
`;

test("a step's graph is timed by itself: that of as many sequences, a token each, where there is one", () => {
  const env = { ...process.env, PYTHONPATH: stubs, PYTHONDONTWRITEBYTECODE: '1' };
  const ran = spawnSync(python, ['-c', REPLAYED], { encoding: 'utf8', env, cwd: path.dirname(drive) });
  assert.equal(ran.status, 0, ran.stderr);
  // 100 ms of the pretended card for 50 replays; one before them, and five that are timed on the host.
  assert.deepEqual(JSON.parse(ran.stdout), [[0, 0, 56, 0], 2000, true, [{}, {}, {}, {}], true]);
});

test('what the machine or the budget does not allow is skipped, with the reason', () => {
  const two = run(['good'], [], { ranks: 2 });
  assert.equal(two.record.cells[0].reason, 'it needs 2 cards, and there are 0');
  assert.equal(two.code, 2);
  const plugin = run(['good'], [], { plugin: true });
  assert.equal(plugin.record.cells[0].reason, 'no --wheel');
  const late = run(['good'], ['--budget', '10']);
  assert.equal(late.record.cells[0].reason, 'the budget of 10 s is used up');
  assert.match(run(['good'], ['--device', 'cuda']).stderr, /torch finds no GPU here/);
  assert.match(run(['good'], ['--cells', 'absent']).stderr, /no cell's name has 'absent'/);
});

test("experts in vLLM's own kernels have more time than other cells of their group", () => {
  const program =
    "import drive\nfor group, name in (('standard', 'gptq W4'), ('standard', 'gptq W4, experts'), ('plugin', 'lpq: experts')):\n" +
    "    print(drive.limit_of({'group': group, 'name': name}))";
  const env = { ...process.env, PYTHONPATH: path.dirname(drive), PYTHONDONTWRITEBYTECODE: '1' };
  const ran = spawnSync(python, ['-c', program], { encoding: 'utf8', env });
  assert.equal(ran.stdout, '150.0\n200.0\n180.0\n', ran.stderr);
});

test('names of cells are unique, and every group has some', () => {
  assert.equal(new Set(GPU_CELLS.map(({ name }) => name)).size, GPU_CELLS.length);
  assert.deepEqual([...new Set(GPU_CELLS.map(({ group }) => group))], ['standard', 'plugin', 'transformers']);
});

const engine = ENGINES.find(({ environment, plugin }) => environment === 'engines/vllm' && plugin)!;
const found = pythonOf(engine);
const skip = 'skip' in found ? found.skip : ALL ? false : 'SKIPPED: this takes three minutes; LPQ_TEST_ALL=1 runs it';

let stub: string | undefined;

/** Runs a program in vLLM's Python over the wheel, with a library whose device is the host's memory. */
function onStub(program: string, ...args: readonly string[]) {
  assert.ok('python' in found);
  if (stub === undefined) {
    const library = path.join(root, 'native', 'build', 'liblpq_kernels.so.1');
    const header = path.join(root, 'native', 'library');
    stub = path.join(dir, 'liblpq_device.so');
    const flags = ['-std=gnu11', '-O2', '-shared', '-fPIC', `-I${header}`, '-Wl,--no-as-needed'];
    const source = path.join(root, 'python', 'tests', 'device_stub.c');
    const rest = [source, library, `-Wl,-rpath,${path.dirname(library)}`, '-o', stub, '-lm', '-ldl'];
    const built = spawnSync(process.env.CC ?? 'cc', [...flags, ...rest], { encoding: 'utf8' });
    assert.equal(built.status, 0, built.stderr);
  }
  const own = { PYTHONPATH: unpackedWheel(found.python, dir), LPQ_KERNELS: stub, VLLM_LOGGING_LEVEL: 'ERROR' };
  const file = path.join(root, 'test', 'engines', 'gpu', program);
  return spawnSync(found.python, [file, ...args], { encoding: 'utf8', env: { ...process.env, ...own } });
}

const absent = 'skip' in found && found.skip;

test('the plugin registers, takes and multiplies on a device that is pretended', { skip: absent }, () => {
  const ran = onStub('plugin_cases.py');
  assert.equal(ran.status, 0, ran.stderr.slice(-3000));
  assert.ok(ran.stdout.trim().split('\n').length >= 7, ran.stdout);
});

/** Of what stands in layout tilus: the stub reads no other. */
const PRETENDED =
  /^(lpq: (gptq W3|W3, sm90|gptq W4|awq W4 with zero points|W4, sm90, experts)|transformers: (W3, sm90|W4, sm90, Qwen3-MoE))$/;
const COMPILED = /^lpq: (gptq W3|W3, sm90), compiled$/;

test('models run on a device that is pretended, compiled and not', { skip }, async () => {
  const prepared = path.join(dir, 'pretended');
  const wanted = GPU_CELLS.filter(({ name }) => PRETENDED.test(name) || COMPILED.test(name));
  await prepare(prepared, wanted);
  const ran = onStub('pretend.py', prepared, `${PRETENDED.source}|${COMPILED.source}`);
  assert.equal(ran.status, 0, ran.stderr.slice(-3000));
  const lines = ran.stdout.split('\n').filter((line) => line.startsWith('@@cell '));
  const outcomes = lines.map((line) => JSON.parse(line.slice('@@cell '.length)).outcome);
  assert.ok(outcomes.length >= 6, ran.stdout);
  assert.deepEqual([...new Set(outcomes)], ['ran'], ran.stdout);
  assert.match(ran.stdout, /^@@grouped [1-9]\d*$/m); // experts of a stage were multiplied together
});

test("the driver's cells run in vLLM's build for the CPU", { skip }, async () => {
  assert.ok('python' in found);
  const prepared = path.join(dir, 'real');
  await prepare(
    prepared,
    GPU_CELLS.filter(({ smoke }) => smoke),
  );
  const out = path.join(dir, 'real.json');
  const wheel = unpackedWheel(found.python, dir);
  const args = ['--prepared', prepared, '--out', out, '--device', 'cpu', '--small', '--wheel', wheel];
  const ran = spawnSync(found.python, [drive, ...args], { encoding: 'utf8' });
  assert.equal(ran.status, 0, ran.stdout + ran.stderr);
  const { cells } = JSON.parse(readFileSync(out, 'utf8'));
  for (const { name, outcome, group } of cells)
    assert.equal(outcome, group === 'cost' ? 'skipped' : 'ran', `${name}\n${ran.stdout}`);
});
