"use strict";
// All is there without this script; it sorts, filters, compares, and chooses which curves are drawn.
const facts = JSON.parse(document.getElementById("facts").textContent);

function valueOf(row, column) {
  const cell = row.cells[column];
  return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
}

function sort(table, column, down) {
  const body = table.tBodies[0];
  const rows = [...body.rows].sort((a, b) => {
    const [x, y] = column ? [valueOf(a, column), valueOf(b, column)] : [a.dataset.row, b.dataset.row];
    if (x === null || y === null) return (x === null) - (y === null); // empty cells last
    return down ? y - x : x - y;
  });
  body.append(...rows);
  [...table.tHead.rows[0].cells].forEach((head, i) => {
    if (i === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  });
}

function filter(section, words) {
  const rows = [...section.querySelectorAll("tbody tr[data-row]")];
  for (const row of rows) {
    const said = `${row.cells[0].textContent} ${row.dataset.words}`.toLowerCase();
    row.hidden = !words.every((word) => said.includes(word));
  }
  const left = rows.filter((row) => !row.hidden).length;
  section.querySelector(".count").textContent = left < rows.length ? `${left} of ${rows.length} rows` : "";
}

function compare(section, baseline) {
  facts.against[section.id][baseline].forEach((shown, i) => {
    const row = section.querySelector(`tr[data-row="${i}"]`);
    const [difference, p] = [row.querySelector(".difference"), row.querySelector(".p")];
    const [text, value, ptext, pvalue, said] = shown ?? ["–", null, "–", null, ""];
    for (const [cell, written, number] of [[difference, text, value], [p, ptext, pvalue]]) {
      cell.textContent = written;
      if (number === null) delete cell.dataset.value;
      else cell.dataset.value = number;
    }
    difference.title = said;
  });
  section.querySelector(".with").textContent = section.querySelector(`.legend .k${baseline}`).textContent;
}

// A group keeps its colour until its curves are hidden; the next one takes the first that is free.
function draw(section, looks) {
  const where = `#${section.id} .own`;
  const ticked = [...section.querySelectorAll("tr[data-row]")]
    .filter((row) => row.querySelector("input").checked).map((row) => Number(row.dataset.row));
  for (const row of [...looks.keys()]) if (!ticked.includes(row)) looks.delete(row);
  for (const row of ticked.filter((row) => !looks.has(row))) {
    const taken = new Set(looks.values());
    let free = 0;
    while (taken.has(free)) free += 1;
    looks.set(row, free);
  }
  const kept = [...looks.keys()].map((row) => `.k${row}`).join(", ");
  const hide = `${where} .series${kept ? `:not(${kept})` : ""} { display: none; }`;
  const rules = [...looks].map(([row, look]) => `${where} .k${row} { ${facts.looks[look % facts.looks.length]} }`);
  document.getElementById(`${section.id}-drawn`).textContent = [hide, ...rules].join("\n");
}

for (const section of document.querySelectorAll("section.data")) {
  const table = section.querySelector(".sortable");
  [...table.tHead.rows[0].cells].forEach((head, i) => {
    head.firstElementChild.addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      sort(table, i, before ? before === "ascending" : i > 0);
    });
  });
  const order = section.querySelector(".order select");
  order.addEventListener("change", () => sort(table, Number(order.value), order.value !== "0"));
  section.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  section.querySelector(".filter")?.addEventListener("input", (event) => {
    filter(section, event.target.value.toLowerCase().split(" "));
  });
  const baseline = section.querySelector(".baseline");
  baseline?.addEventListener("change", () => compare(section, Number(baseline.value)));

  const boxes = [...section.querySelectorAll("tbody input")];
  const drawn = boxes.filter((box) => box.checked).map((box) => Number(box.closest("tr").dataset.row));
  const looks = new Map(drawn.map((row, i) => [row, i]));
  section.addEventListener("change", (event) => {
    if (boxes.includes(event.target)) draw(section, looks);
  });
  section.querySelector(".these")?.addEventListener("click", () => {
    for (const box of boxes) box.checked = !box.closest("tr").hidden;
    draw(section, looks);
  });
}

// Says which point of a curve is nearest to the pointer. Paths are relative moves in whole units.
function pointsOf(path) {
  const numbers = path.getAttribute("d").match(/-?\d+/g)?.map(Number) ?? [];
  const points = [];
  for (let i = 0, x = 0, y = 0; i < numbers.length; i += 2) points.push([(x += numbers[i]), (y += numbers[i + 1])]);
  return points;
}

function valueAt(scale, share) {
  const [low, high, log] = scale.split(" ");
  return log ? low * (high / low) ** share : Number(low) + share * (high - low);
}

for (const area of document.querySelectorAll(".own .area")) {
  const figure = area.closest("figure");
  const tip = document.createElement("p");
  tip.className = "tip";
  figure.append(tip);
  const [width, height] = [area.width.baseVal.value, area.height.baseVal.value];
  const lines = [...area.querySelectorAll(".line")];
  let points = null;
  const svg = area.ownerSVGElement;
  svg.addEventListener("pointermove", (event) => {
    points ??= lines.map(pointsOf);
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * scale - area.x.baseVal.value;
    const y = (event.clientY - box.top) * scale - area.y.baseVal.value;
    let [best, near, name] = [Infinity, null, ""];
    lines.forEach((line, i) => {
      const group = line.parentElement;
      if (getComputedStyle(group).display === "none") return;
      for (const [a, b] of points[i]) {
        const distance = 9 * (a - x) ** 2 + (b - y) ** 2; // first of all beside the pointer
        if (distance < best) [best, near, name] = [distance, [a, b], group.classList[1]];
      }
    });
    if (!near) return;
    const label = area.closest(".own").querySelector(`.legend .${name}`).textContent;
    const [across, up] = [valueAt(area.dataset.x, near[0] / width), valueAt(area.dataset.y, 1 - near[1] / height)];
    tip.textContent = `${label}: ${Number(up.toPrecision(3))} at ${Number(across.toPrecision(3))}`;
  });
  svg.addEventListener("pointerleave", () => { tip.textContent = ""; });
}
