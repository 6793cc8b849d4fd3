/* Makes the tables in `.sortable-table` sortable by a click on a head, and groups those whose first column is "group":
   each group has a row of its own, and the column is hidden. Another click on the head that the table is sorted by turns
   the order around; a third one restores the groups. */
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll(".sortable-table table")) {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const heads = [...table.tHead.rows[0].cells];
    const grouped = heads[0].textContent.trim() === "group";

    const text = (row, column) => row.cells[column].textContent.trim();
    const isNumber = (column) => rows.every((row) => text(row, column) !== "" && !isNaN(text(row, column)));
    const numeric = heads.map((_, column) => isNumber(column));

    const show = (order, withGroups) => {
      const shown = [];
      let last = null;
      for (const row of order) {
        if (grouped) row.cells[0].hidden = true;
        if (grouped && withGroups && text(row, 0) !== last) {
          last = text(row, 0);
          const head = document.createElement("tr");
          head.className = "group";
          const cell = head.insertCell();
          cell.colSpan = heads.length - 1;
          cell.textContent = last;
          shown.push(head);
        }
        shown.push(row);
      }
      body.replaceChildren(...shown);
    };

    const sort = (column) => {
      const before = heads[column].getAttribute("aria-sort");
      const next = { ascending: "descending", descending: null }[before] ?? (before ? null : "ascending");
      for (const head of heads) head.removeAttribute("aria-sort");
      if (next === null) {
        show(rows, true);
        return;
      }
      heads[column].setAttribute("aria-sort", next);
      const sign = next === "ascending" ? 1 : -1;
      const compare = numeric[column]
        ? (a, b) => Number(text(a, column)) - Number(text(b, column))
        : (a, b) => text(a, column).localeCompare(text(b, column), "en", { sensitivity: "base" });
      show([...rows].sort((a, b) => sign * compare(a, b)), false);
    };

    heads.forEach((head, column) => {
      if (numeric[column]) for (const row of rows) row.cells[column].classList.add("number");
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.replaceChildren(button);
      button.addEventListener("click", () => sort(column));
    });
    if (grouped) heads[0].hidden = true;
    show(rows, true);
  }
});
