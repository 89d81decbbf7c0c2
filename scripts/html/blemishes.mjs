/* global document, getComputedStyle, NodeFilter -- runs in the page */

/** What can be measured of a page that is hard to read: sentences, none if all is well. Runs in the browser, so it is one function. */
export function blemishes(screenWidth) {
  const SMALLEST_PX = 10;
  const CONTRAST = 4.5; // WCAG 2.2, 1.4.3, level AA
  const found = [];
  const words = (text) => JSON.stringify(text.trim().replace(/\s+/g, ' ').slice(0, 60));
  const shown = (box) => box.width > 0 && box.height > 0;

  if (document.documentElement.scrollWidth > screenWidth)
    found.push(`the page is ${document.documentElement.scrollWidth} px wide on a screen of ${screenWidth}`);

  // Relative luminance and contrast: WCAG 2.2.
  const channels = (colour) => (colour.match(/[\d.]+/g) ?? []).map(Number);
  const luminance = (colour) => {
    const [r, g, b] = channels(colour).map((value) => {
      const c = value / 255;
      return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const background = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = getComputedStyle(each).backgroundColor;
      const [, , , alpha = 1] = channels(colour);
      if (alpha > 0) return colour;
    }
    return 'rgb(255, 255, 255)';
  };

  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const element = node.parentElement;
    if (node.data.trim() === '' || element.closest('title, style')) continue;
    const style = getComputedStyle(element);
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    // A table's head on a phone is for screen readers: one pixel, clipped.
    if (!shown(box) || style.visibility === 'hidden' || element.closest('thead')?.clientWidth <= 1) continue;
    const svg = element.ownerSVGElement;
    const scale = svg ? svg.getScreenCTM().a : 1;
    const size = Number.parseFloat(style.fontSize) * scale;
    const colour = svg ? style.fill : style.color;
    const behind = background(element);
    if (size < SMALLEST_PX) found.push(`${words(node.data)} is ${size.toFixed(1)} px high`);
    if (contrast(colour, behind) < CONTRAST)
      found.push(`${words(node.data)} has a contrast of ${contrast(colour, behind).toFixed(2)}`);
    if (box.left < -0.5 || box.right > screenWidth + 0.5) found.push(`${words(node.data)} runs over the edge`);
    if (svg) {
      const frame = svg.getBoundingClientRect();
      const over = Math.max(
        frame.left - box.left,
        box.right - frame.right,
        frame.top - box.top,
        box.bottom - frame.bottom,
      );
      if (over > 1) found.push(`${words(node.data)} is cut off by its chart (${over.toFixed(1)} px)`);
    }
    texts.push({ text: node.data, svg, box });
  }

  // Charts place text by numbers, so only there can one lie upon another. Boxes of lines have room above and below the letters.
  for (const [i, one] of texts.entries())
    for (const other of texts.slice(i + 1)) {
      if (!one.svg || one.svg !== other.svg) continue;
      const wide = Math.min(one.box.right, other.box.right) - Math.max(one.box.left, other.box.left);
      const high = Math.min(one.box.bottom, other.box.bottom) - Math.max(one.box.top, other.box.top);
      if (wide > 1 && high > 0.35 * Math.min(one.box.height, other.box.height))
        found.push(`${words(one.text)} lies over ${words(other.text)}`);
    }
  const main = document.querySelector('main');
  const edge = main.getBoundingClientRect().right - Number.parseFloat(getComputedStyle(main).paddingRight);
  for (const table of document.querySelectorAll('table'))
    if (table.getBoundingClientRect().right > edge + 1) found.push(`a table of ${words(table.innerText)} is too wide`);
  for (const graphic of document.querySelectorAll('svg rect, svg circle, svg polyline')) {
    const [box, frame] = [graphic.getBoundingClientRect(), graphic.ownerSVGElement.getBoundingClientRect()];
    if (shown(box) && (box.right > frame.right + 1 || box.left < frame.left - 1 || box.bottom > frame.bottom + 1))
      found.push(`a ${graphic.tagName} runs over the edge of its chart`);
  }
  return found;
}
