// Opens pages of `lpq quantize` and `lpq report` in headless Chromium, on a desktop and on a phone, light and dark, and fails on a
// message in the console, a request, what runs over the edge, text that is small, pale, cut off or over other text
// (docs/reports.md). Arguments: pages; none: pages of the bundled model are made first, and of LPQ_SHARED's mixture of experts.
// Options: -o DIR for pages and screenshots, --record FILE for the result. LPQ_CHROMIUM names another browser.
import { execFileSync, spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';
import { blemishes } from './html/blemishes.mjs';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    output: { type: 'string', short: 'o', default: path.join(root, 'build/html') },
    record: { type: 'string' },
  },
});
const folder = path.resolve(options.output);
mkdirSync(folder, { recursive: true });
const chromium = process.env.LPQ_CHROMIUM ?? 'chromium';
const SCREENS = {
  desktop: { width: 1280, height: 900, deviceScaleFactor: 1, mobile: false },
  tablet: { width: 840, height: 1180, deviceScaleFactor: 1, mobile: true },
  phone: { width: 390, height: 844, deviceScaleFactor: 2, mobile: true },
};

/** Pages of each kind: dense with an evaluation, rounded, FMPQ, a mixture of experts, two runs, quality over size. */
function madePages() {
  const lpq = (...args) => {
    console.log(`lpq ${args.join(' ')}`);
    execFileSync(process.execPath, [path.join(root, 'bin/lpq.js'), ...args], {
      cwd: folder,
      stdio: ['ignore', 'ignore', 'inherit'],
    });
  };
  const dense = path.join(root, 'share/tiny-llama');
  const moe = path.join(process.env.LPQ_SHARED ?? path.join(root, '../shared'), 'models/tiny-qwen3-moe');
  const few = ['--samples', '16', '--seq-len', '128', '--quiet'];
  const runs = {
    dense: [dense, '--bits', '4', '--group-size', '64', ...few],
    mixed: [dense, '--target-bpw', '3.6', '--group-size', '64', ...few],
    rtn: [dense, '--dtype', 'nvfp4', '--method', 'rtn', '--quiet'],
    fmpq: [dense, '--bits', '4', '--method', 'fmpq', ...few],
    ...(existsSync(moe) ? { moe: [moe, '--bits', '3', '--group-size', '64', ...few] } : {}),
  };
  for (const [name, args] of Object.entries(runs)) {
    for (const end of ['', '.report.html', '.report.json'])
      rmSync(path.join(folder, `${name}${end}`), { recursive: true, force: true });
    lpq('quantize', ...args, '-o', name);
  }
  const text = readFileSync(path.join(root, 'share/text/books-valid.txt'));
  writeFileSync(path.join(folder, 'text.txt'), text.subarray(0, 40_000));
  lpq('eval', 'mixed', '--text', 'text.txt', '--ctx', '256', '--source', dense, '--report', '--quiet');
  rmSync(path.join(folder, 'comparison.html'), { force: true });
  lpq('report', 'dense', 'mixed', '-o', 'comparison.html');
  rmSync(path.join(folder, 'quality.html'), { force: true });
  lpq('compare', dense, 'dense', 'mixed', 'rtn', '--windows', '2', '--ctx', '256', '-o', 'quality.html', '--quiet');
  const pages = [...Object.keys(runs).map((name) => `${name}.report`), 'comparison', 'quality'];
  return pages.map((name) => path.join(folder, `${name}.html`));
}

/** A browser that is spoken to over two pipes (Chrome DevTools Protocol, messages that end in a zero byte). */
function openBrowser() {
  const profile = mkdtempSync(path.join(tmpdir(), 'lpq-chromium-'));
  const flags = ['--headless', '--remote-debugging-pipe', '--disable-gpu', '--hide-scrollbars', '--no-first-run'];
  const asRoot = process.getuid?.() === 0 ? ['--no-sandbox'] : [];
  const child = spawn(chromium, [...flags, ...asRoot, `--user-data-dir=${profile}`, 'about:blank'], {
    stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'],
  });
  const waiting = new Map();
  const heard = [];
  let serial = 0;
  let rest = '';
  const lost = (error) => {
    for (const { reject } of waiting.values()) reject(error);
    waiting.clear();
  };
  child.on('error', ({ message }) =>
    lost(new Error(`${chromium} does not start: ${message}; LPQ_CHROMIUM names another`)),
  );
  child.on('exit', (code) => lost(new Error(`${chromium} ended with ${code}`)));
  child.stdio[3].on('error', () => {});
  child.stdio[4].setEncoding('utf8').on('data', (data) => {
    const messages = (rest + data).split('\0');
    rest = messages.pop();
    for (const message of messages.map((text) => JSON.parse(text))) {
      const call = waiting.get(message.id);
      if (!call) heard.push(message);
      else if (message.error) call.reject(new Error(`${call.method}: ${message.error.message}`));
      else call.resolve(message.result);
      waiting.delete(message.id);
    }
  });
  return {
    heard,
    send: (method, params = {}, sessionId = undefined) =>
      new Promise((resolve, reject) => {
        waiting.set(++serial, { method, resolve, reject });
        child.stdio[3].write(`${JSON.stringify({ id: serial, method, params, sessionId })}\0`);
      }),
    close: async () => {
      const ended = child.exitCode === null ? new Promise((resolve) => child.once('exit', resolve)) : undefined;
      child.stdio[3].end(`${JSON.stringify({ id: ++serial, method: 'Browser.close' })}\0`);
      await ended;
      rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
    },
  };
}

/** What a page does wrong on one screen, and its screenshot. */
async function look(browser, file, screen, scheme, picture) {
  const { targetId } = await browser.send('Target.createTarget', { url: 'about:blank' });
  const { sessionId } = await browser.send('Target.attachToTarget', { targetId, flatten: true });
  const send = (method, params) => browser.send(method, params, sessionId);
  for (const domain of ['Page', 'Runtime', 'Log', 'Network']) await send(`${domain}.enable`);
  await send('Emulation.setDeviceMetricsOverride', SCREENS[screen]);
  await send('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: scheme }] });
  const url = pathToFileURL(file).href;
  await send('Page.navigate', { url });
  const evaluate = async (expression) => {
    const { result, exceptionDetails } = await send('Runtime.evaluate', {
      expression,
      awaitPromise: true,
      returnByValue: true,
    });
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  };
  const loaded = `document.readyState === 'complete' && location.href === ${JSON.stringify(url)}`;
  for (let i = 0; !(await evaluate(loaded)); i++) {
    if (i > 200) throw new Error(`${file} was not loaded within 10 s`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  const events = browser.heard.filter((event) => event.sessionId === sessionId);
  const of = (method, words) => events.filter((event) => event.method === method).map(({ params }) => words(params));
  const messages = [
    ...of('Log.entryAdded', ({ entry }) => `${entry.level}: ${entry.text}`),
    ...of('Runtime.consoleAPICalled', ({ type, args }) => `${type}: ${args.map(({ value }) => value).join(' ')}`),
    ...of('Runtime.exceptionThrown', ({ exceptionDetails }) => `exception: ${exceptionDetails.text}`),
  ];
  const requests = of('Network.requestWillBeSent', ({ request }) => request.url).filter(
    (each) => each !== url && !each.startsWith('data:'),
  );
  // What is folded away is looked at too.
  await evaluate(`for (const each of document.querySelectorAll('details')) each.open = true`);
  // A phone zooms out to show a page that is too wide, so that innerWidth would hide it.
  const found = await evaluate(`(${blemishes})(${SCREENS[screen].width})`);
  const { cssContentSize: size } = await send('Page.getLayoutMetrics');
  const clip = { x: 0, y: 0, width: SCREENS[screen].width, height: Math.min(size.height, 6000), scale: 1 };
  const { data } = await send('Page.captureScreenshot', { captureBeyondViewport: true, clip });
  writeFileSync(picture, Buffer.from(data, 'base64'));
  await browser.send('Target.closeTarget', { targetId });
  return [...messages.map((text) => `console ${text}`), ...requests.map((each) => `requests ${each}`), ...found];
}

const made = positionals.length === 0;
const pages = made ? madePages() : positionals.map((file) => path.resolve(file));
const browser = openBrowser();
const looks = [];
try {
  const { product } = await browser.send('Browser.getVersion');
  console.log(product);
  for (const file of pages)
    for (const screen of Object.keys(SCREENS))
      for (const scheme of ['light', 'dark']) {
        const picture = path.join(folder, `${path.basename(file, '.html')}-${screen}-${scheme}.png`);
        const found = await look(browser, file, screen, scheme, picture);
        console.log(`${found.length === 0 ? 'ok    ' : 'failed'}  ${path.relative(process.cwd(), picture)}`);
        for (const each of found.slice(0, 12)) console.log(`        ${each}`);
        if (found.length > 12) console.log(`        and ${found.length - 12} more`);
        const { width, height } = SCREENS[screen];
        looks.push({ page: path.basename(file), screen: `${width}x${height}`, scheme, found });
      }
  const failed = looks.filter(({ found }) => found.length > 0).length;
  const consoleMessages = looks.flatMap(({ found }) => found).filter((each) => each.startsWith('console ')).length;
  if (options.record) {
    const command = `node scripts/check-html.mjs${made ? '' : ` ${pages.map((file) => path.basename(file)).join(' ')}`}`;
    const date = new Date().toISOString().slice(0, 10);
    const screens = Object.values(SCREENS).map(({ width, height }) => `${width}x${height}`);
    const facts = {
      date,
      command,
      browser: product,
      screens,
      schemes: ['light', 'dark'],
      consoleMessages,
      failed,
      looks,
    };
    writeFileSync(options.record, `${JSON.stringify(facts, null, 1)}\n`);
  }
  console.log(`${looks.length} looks at ${pages.length} pages, ${failed} with something wrong`);
  if (failed > 0) process.exitCode = 1;
} finally {
  await browser.close();
}
