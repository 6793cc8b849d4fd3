// What a reader would notice on the page that is open: an object of lists of short descriptions, one list per kind.
async () => {
  const found = { scroll: [], formulas: [], images: [], length: [] };
  const shown = (element) => element.getClientRects().length > 0;
  const name = (element) => {
    const classes = [...element.classList].slice(0, 2).map((name) => `.${name}`).join("");
    return `<${element.tagName.toLowerCase()}${element.id ? "#" + element.id : ""}${classes}>`;
  };

  // Formulas are typeset after the page has loaded.
  if (window.MathJax?.startup?.promise) await window.MathJax.startup.promise;
  await document.fonts.ready;

  const typeset = "pre, code, script, style, noscript, textarea, mjx-container, .katex";
  const tex = /\\\(|\\\[|\$\$|\\[a-zA-Z]{2,}/;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text; (text = walker.nextNode()); ) {
    if (tex.test(text.data) && !text.parentElement.closest(typeset) && shown(text.parentElement)) {
      found.formulas.push(text.data.trim().slice(0, 60));
    }
  }
  for (const error of document.querySelectorAll("mjx-merror, .katex-error")) {
    found.formulas.push(`error in a formula: ${error.textContent.slice(0, 60)}`);
  }

  for (const image of document.querySelectorAll("img")) {
    const source = image.getAttribute("src") ?? "";
    const short = source.startsWith("data:") ? "data:" : source;
    image.loading = "eager"; // a lazy one below the fold has not been asked for
    await image.decode().catch(() => {});
    if (image.naturalWidth === 0) found.images.push(`${short} was not loaded`);
    const alt = image.alt.trim();
    // Sphinx writes the name of the file where the author wrote nothing.
    if (alt === "" || /\.(png|svg|jpe?g|gif|webp)$/i.test(alt)) found.images.push(`${short} has no alternative text`);
  }

  const width = document.documentElement.scrollWidth;
  if (width > window.innerWidth) {
    const clipped = (element) => {
      for (let box = element.parentElement; box && box !== document.body; box = box.parentElement) {
        if (getComputedStyle(box).overflowX !== "visible") return true;
      }
      return getComputedStyle(element).position === "fixed";
    };
    const wide = [...document.body.querySelectorAll("*")].filter(
      (element) => element.getBoundingClientRect().right > window.innerWidth + 1 && !clipped(element),
    );
    // The innermost elements are the cause; the others are wide because of them.
    const causes = wide.filter((element) => !wide.some((other) => other !== element && element.contains(other)));
    const names = causes.slice(0, 3).map((element) => `${name(element)} ${element.textContent.trim().slice(0, 40)}`);
    found.scroll.push(`${width} of ${window.innerWidth} pixels: ${names.join("; ")}`);
  }

  const height = document.documentElement.scrollHeight;
  if (window.innerWidth > 1000 && height > 15000) found.length.push(`${height} pixels`);
  return found;
}
