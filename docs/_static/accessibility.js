// What the HTML of Sphinx and of the theme lacks for readers without a mouse or without a screen.
document.addEventListener("DOMContentLoaded", () => {
  // Captions of the navigation are headings; a heading has a level.
  for (const heading of document.querySelectorAll("[role=heading]:not([aria-level])")) {
    heading.setAttribute("aria-level", "2");
  }

  // What scrolls sideways can be focused, and then scrolled with the arrow keys.
  const boxes = "pre, .table-wrapper, .math-wrapper, div.math";
  const makeFocusable = () => {
    for (const box of document.querySelectorAll(boxes)) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  makeFocusable();
  window.addEventListener("resize", makeFocusable);
  window.addEventListener("load", async () => {
    await window.MathJax?.startup?.promise; // formulas have their width only now
    makeFocusable();
  });
});
