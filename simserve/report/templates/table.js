// Filters and sorts the table of points.
(() => {
  const table = document.getElementById("rows"), box = document.getElementById("rows-filter");
  if (!table || !box) return;
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const names = heads.map((head) => (head.dataset.name || head.textContent).toLowerCase());
  const value = (cell) => {
    const data = cell.querySelector("data");
    const text = data ? data.value : cell.textContent.trim();
    return text !== "" && isFinite(text) ? Number(text) : text.toLowerCase();
  };
  const column = (word) => {
    const exact = names.findIndex((name) => name === word || name.split(".").pop() === word);
    return exact >= 0 ? exact : names.findIndex((name) => name.includes(word));
  };
  const tests = { "<": (a, b) => a < b, ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b,
    "=": (a, b) => a === b };
  const parsed = (part) => {
    const found = part.match(/^(.+?)\s*(<=|>=|<|>|=)\s*(.+)$/);
    const at = found ? column(found[1].trim()) : -1;
    if (at < 0) return (row) => row.textContent.toLowerCase().includes(part);
    const wanted = isFinite(found[3]) ? Number(found[3]) : found[3];
    return (row) => tests[found[2]](value(row.cells[at]), wanted);
  };
  const filter = () => {
    const keep = box.value.toLowerCase().split(",").map((part) => part.trim()).filter(Boolean).map(parsed);
    let shown = 0;
    for (const row of body.rows) {
      row.hidden = !keep.every((test) => test(row));
      shown += !row.hidden;
    }
    document.getElementById("rows-count").textContent = `${shown} of ${body.rows.length} rows`;
  };
  heads.forEach((head, at) => {
    head.tabIndex = 0;
    head.style.cursor = "pointer";
    const sort = () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const order = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1);
      [...body.rows]
        .sort((a, b) => (down ? -1 : 1) * order(value(a.cells[at]), value(b.cells[at])))
        .forEach((row) => body.append(row));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => event.key === "Enter" && sort());
  });
  box.addEventListener("input", filter);
  filter();
})();
