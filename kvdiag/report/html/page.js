"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const root = document.documentElement;

  function sortable(table) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const numeric = head.classList.contains("num");
      head.querySelector("button").addEventListener("click", () => {
        const was = head.getAttribute("aria-sort");
        const next = was ? (was === "ascending" ? "descending" : "ascending") : numeric ? "descending" : "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", next);
        const sign = next === "ascending" ? 1 : -1;
        const key = (row) => {
          const cell = row.cells[column];
          const text = cell.dataset.order ?? (numeric ? "" : cell.textContent.trim());
          return numeric ? (text === "" ? NaN : Number(text)) : text;
        };
        const compare = (a, b) => {
          if (!numeric) return sign * a.localeCompare(b, "en", { numeric: true });
          if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b); // what is absent comes last
          return sign * (a - b);
        };
        const rows = [...body.rows].map((row) => [key(row), row]);
        rows.sort((a, b) => compare(a[0], b[0]));
        body.append(...rows.map((pair) => pair[1]));
      });
    });
  }

  async function draw() {
    const { specs, config } = read("charts");
    const failed = [];
    for (const plot of document.querySelectorAll(".plot")) {
      const spec = specs[Number(plot.dataset.chart)];
      try {
        const options = { mode: "vega-lite", renderer: "svg", actions: false, config, tooltip: { theme: "custom" } };
        plot.view = (await vegaEmbed(plot, spec, options)).view;
      } catch (error) {
        plot.textContent = `This chart could not be drawn: ${error.message}`;
        failed.push(error);
      }
    }
    failed.forEach((error) => console.error(error));
    root.dataset.ready = String(failed.length === 0);
  }

  document.querySelectorAll("table[data-sortable]").forEach(sortable);
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    opened.forEach((one) => { one.open = true; });
  });
  addEventListener("afterprint", () => opened.forEach((one) => { one.open = false; }));
  draw();
})();
