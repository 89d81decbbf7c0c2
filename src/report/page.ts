import { escapeText } from './markup.js';

/**
 * Everything a page needs, in one file. Series colours differ in lightness as well as hue, in both schemes, and keep 3:1
 * against their background.
 */
const STYLE = `
:root{color-scheme:light dark;--bg:#fff;--panel:#f6f7f9;--ink:#1b1f27;--soft:#5a6373;--grid:#dde1e8;--bar:#2f6fb7;--warn:#b3261e;
--c0:#2660a8;--c1:#b4540a;--c2:#1f7a4d;--c3:#8a3fa0;--c4:#a3182f;--c5:#5b6472;--c6:#0f7f8c}
@media (prefers-color-scheme:dark){:root{--bg:#12151a;--panel:#1b2027;--ink:#e8ebf0;--soft:#a2acba;--grid:#333b46;--bar:#6ea8e8;--warn:#ff8a80;
--c0:#7fb2ef;--c1:#f0a35e;--c2:#6fce9c;--c3:#cf9be0;--c4:#f58a98;--c5:#b7bfcb;--c6:#67ccd8}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;overflow-wrap:anywhere}
main{max-width:62rem;margin:0 auto;padding:1.25rem 1rem 4rem}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0}h2{font-size:1.15rem;margin:2.25rem 0 .5rem}p{margin:.4rem 0}.soft{color:var(--soft)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.6rem;padding:0;margin:1rem 0;list-style:none}
.cards li{background:var(--panel);border-radius:.5rem;padding:.6rem .8rem}.cards b{display:block;font-size:1.2rem;font-variant-numeric:tabular-nums}
.cards span{color:var(--soft);font-size:.85rem}
figure{margin:1rem 0 .25rem}figcaption{font-weight:600;margin-bottom:.25rem}figure svg{display:block;width:100%;height:auto}
svg text{fill:var(--soft);font-size:12px;font-family:inherit}svg .label{fill:var(--ink)}svg .value{fill:var(--ink)}
.grid{stroke:var(--grid)}.rule{stroke:var(--ink);stroke-dasharray:2 3}.bar{fill:var(--bar)}.heat{fill:var(--bar)}.none{fill:var(--warn)}
.line{fill:none;stroke:currentColor;stroke-width:1.75}circle{fill:currentColor}
.s0{color:var(--c0)}.s1{color:var(--c1)}.s2{color:var(--c2)}.s3{color:var(--c3)}.s4{color:var(--c4)}.s5{color:var(--c5)}.s6{color:var(--c6)}
.legend{display:flex;flex-wrap:wrap;gap:.25rem 1rem;list-style:none;margin:.25rem 0 0;padding:0;font-size:.9rem}.legend svg{vertical-align:middle;margin-right:.35rem}
table{width:100%;border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums;margin:.5rem 0}
th{text-align:left;font-weight:600;color:var(--soft);border-bottom:2px solid var(--grid);padding:.3rem .5rem;vertical-align:bottom;overflow-wrap:normal}
td{border-bottom:1px solid var(--grid);padding:.3rem .5rem;vertical-align:top}.n{text-align:right}td.n{white-space:nowrap}th:first-child,td:first-child{min-width:9rem}
.verdict{border-left:.3rem solid var(--soft);padding:.4rem .8rem;background:var(--panel)}.close{border-color:var(--c2)}.noticeable{border-color:var(--c1)}.large{border-color:var(--warn)}
summary{cursor:pointer;font-weight:600;margin:.75rem 0}
@media (max-width:52rem){body{font-size:15px}thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
table,tbody,tr,td{display:block;width:100%}tr{background:var(--panel);border-radius:.5rem;margin:.5rem 0;padding:.35rem .6rem}
td,td.n{border:0;padding:.1rem 0;display:flex;justify-content:space-between;gap:1rem;text-align:right}
td::before{content:attr(data-label);color:var(--soft);text-align:left;flex:none}
td.long{display:block;text-align:left}td.long::before{display:block}
.pairs tbody{background:var(--panel);border-radius:.5rem}.pairs tr{display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 1rem;margin:0;padding:.15rem .6rem}
.pairs td{width:auto;min-width:0}.pairs td::before{content:none}.pairs td:first-child{color:var(--soft)}
svg text{font-size:16px}.ylabel{display:none}}
@media (max-width:30rem){svg text{font-size:21px}}
@media print{details{display:block}}
`;

/** A whole document: no script, nothing from elsewhere. */
export function page(title: string, body: readonly string[]): string {
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>${escapeText(title)}</title>
<link rel="icon" href="data:,">
<style>${STYLE}</style>
</head>
<body>
<main>
${body.filter((part) => part !== '').join('\n')}
</main>
</body>
</html>
`;
}

export function cards(facts: readonly (readonly [label: string, value: string])[]): string {
  const one = ([label, value]: readonly [string, string]) =>
    `<li><b>${escapeText(value)}</b><span>${escapeText(label)}</span></li>`;
  return `<ul class="cards">${facts.map(one).join('')}</ul>`;
}

export function section(title: string, ...parts: readonly string[]): string {
  const body = parts.filter((part) => part !== '');
  return body.length === 0 ? '' : `<section><h2>${escapeText(title)}</h2>${body.join('')}</section>`;
}

export function note(text: string): string {
  return `<p class="soft">${escapeText(text)}</p>`;
}

export function details(summary: string, open: boolean, body: string): string {
  return `<details${open ? ' open' : ''}><summary>${escapeText(summary)}</summary>${body}</details>`;
}
